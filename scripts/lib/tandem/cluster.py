"""Bring a cluster up, take it down, look at it, whichever provider it comes from.

python -m tandem.cluster up|down|status [--provider auto|existing|host]
"""

from __future__ import annotations

import json
import os
import subprocess
from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tandem.cli import Parser, whole_number
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import CLUSTER, KUBECONFIG
from tandem.process import run, tool_env
from tandem_host.settings import DEFAULT_PROFILE, kwok_profiles, profile_problem

#: Which provider brought this checkout's cluster up.
PROVIDER_FILE = CLUSTER / "provider"
AUTO = "auto"
#: More simulated nodes than this no API server on one machine of ours was seen to bear.
MOST_NODES = 2000
_REACH_SECONDS = 10
_EXAMPLES = """\
examples:
  python -m tandem.cluster up                      # picks a provider and says why
  python -m tandem.cluster up --provider host --gpus 4
  python -m tandem.cluster up --kwok-nodes 1000 --kwok-profile gb300-nvl72
  python -m tandem.cluster status --output json
  python -m tandem.cluster down --purge            # deletes the node's images too

providers:
  existing  the cluster that KUBECONFIG points to; nothing is created
  host      a one-node Kubernetes on this machine; needs root, no container engine

exit codes:
  0  done; for `status`: the cluster is healthy
  1  failed; for `status`: there is no cluster, or it is not healthy
  2  wrong usage
  3  a precondition is not met: every problem is listed with its fix
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    gpus: int | None = None
    kwok_nodes: int | None = None
    kwok_profile: str | None = None
    purge: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A provider's status: whether it is healthy, as data and as text."""

    healthy: bool
    data: dict[str, Any]
    text: str


class Provider(Protocol):
    """One way a cluster comes to be."""

    def up(self, options: Options) -> None:
        """Bring it up or repair it, and write the kubeconfig."""

    def down(self, options: Options) -> None:
        """Take it down."""

    def status(self) -> Report:
        """Look at it."""

    def foresee(self) -> list[Problem]:
        """Return what would keep `up` from working once tools and images are made."""


class Host:
    """A one-node Kubernetes on this machine (package `tandem_host`)."""

    def up(self, options: Options) -> None:
        """Bring it up or repair it."""
        from tandem_host import cluster  # noqa: PLC0415 - `status` must not load all of it

        if remembered() == "existing":
            console.note("the existing cluster is forgotten here; it goes on running")
        found = cluster.up(cluster.Wish(options.gpus, options.kwok_nodes, options.kwok_profile))
        simulated = f", {found.kwok_ready} simulated nodes" if found.kwok_nodes else ""
        console.ok(
            f"host cluster: {found.gpus} GPUs{simulated}, {found.rss_mib} MiB in all,"
            f" KUBECONFIG={KUBECONFIG}"
        )

    def down(self, options: Options) -> None:
        """Take it down; another checkout's only with `force`."""
        from tandem_host import cluster  # noqa: PLC0415

        if cluster.down(purge=options.purge, force=options.force):
            console.ok("the host cluster is down")
        else:
            console.ok("no host cluster is up; nothing to do")

    def status(self) -> Report:
        """Look at its processes, its node and its DNS."""
        from tandem_host import record, settings, status  # noqa: PLC0415

        if os.geteuid() != 0 and record.load() is not None:
            raise UserError(
                Problem("only root sees the host cluster's processes", "sudo make cluster-status")
            )
        found = status.look(settings.current(), str(KUBECONFIG))
        return Report(found.healthy, asdict(found), status.table(found))

    def foresee(self) -> list[Problem]:
        """Return what the machine lacks."""
        from tandem_host import cluster  # noqa: PLC0415

        return cluster.foresee()


class Existing:
    """The cluster that KUBECONFIG points to: looked at, never changed."""

    def up(self, options: Options) -> None:
        """Check that it answers and make it the one that everything here talks to."""
        refused = []
        if options.gpus is not None:
            refused.append(
                Problem("an existing cluster has the GPUs that it has", "leave out --gpus")
            )
        if options.kwok_nodes is not None or options.kwok_profile is not None:
            refused.append(
                Problem(
                    "simulated nodes are made in the host provider's cluster only: among the"
                    " nodes of an existing one they would take pods that mean a real one",
                    "PROVIDER=host, or leave out KWOK_NODES and KWOK_PROFILE",
                )
            )
        if refused:
            raise UserError(refused, ExitCode.USAGE)
        problems = self.foresee()
        if problems:
            raise UserError(problems)
        source = os.environ["KUBECONFIG"]
        if not _own(source):
            flat = _kubectl(source, "config", "view", "--raw", "--flatten", "--minify")
            KUBECONFIG.parent.mkdir(parents=True, exist_ok=True)
            draft = KUBECONFIG.with_suffix(".draft")
            draft.touch(mode=0o600)
            draft.write_text(flat, encoding="utf-8")
            draft.replace(KUBECONFIG)
        console.ok(f"existing cluster: {self.status().text}")

    def down(self, options: Options) -> None:
        """Forget it; the cluster itself is not ours to end.

        The kubeconfig goes only where `up` of this provider wrote it: another provider's is
        the one way to a cluster that runs.
        """
        del options
        present = remembered()
        if present != "existing":
            by = f"the present one is provider {present}'s" if present else "there is none"
            console.ok(f"no existing cluster was taken up here ({by}); nothing to do")
            return
        KUBECONFIG.unlink(missing_ok=True)
        console.ok("forgot the existing cluster; it goes on running")

    def status(self) -> Report:
        """Count its nodes and GPUs."""
        if not KUBECONFIG.is_file() or not _answers(str(KUBECONFIG)):
            return Report(healthy=False, data={"running": False}, text="it does not answer")
        nodes = json.loads(_kubectl(str(KUBECONFIG), "get", "nodes", "-o", "json"))["items"]
        ready = sum(_ready(node) for node in nodes)
        gpus = sum(int(n["status"]["allocatable"].get("nvidia.com/gpu", 0)) for n in nodes)
        data = {
            "running": True,
            "nodes": len(nodes),
            "nodes_ready": ready,
            "gpus": gpus,
            "kubeconfig": str(KUBECONFIG),
        }
        text = f"{ready} of {len(nodes)} nodes Ready, {gpus} GPUs, KUBECONFIG={KUBECONFIG}"
        return Report(healthy=0 < ready == len(nodes), data=data, text=text)

    def foresee(self) -> list[Problem]:
        """Return why the cluster of KUBECONFIG cannot be used."""
        source = os.environ.get("KUBECONFIG", "")
        if not source:
            return [Problem("KUBECONFIG is not set", "export KUBECONFIG=<file>, or PROVIDER=host")]
        if not _answers(source):
            return [
                Problem(
                    f"the cluster of KUBECONFIG={source} does not answer",
                    "check the file and the network (kubectl version), or PROVIDER=host",
                )
            ]
        if remembered() == "host" or _host_runs():
            return [
                Problem(
                    "this checkout's host cluster is up, and it would be lost sight of",
                    "leave out PROVIDER=existing to use it, or: make cluster-down PROVIDER=host",
                )
            ]
        return []


PROVIDERS: dict[str, Provider] = {"existing": Existing(), "host": Host()}


def choose(
    asked: str, *, remembered: str | None, kubeconfig: str, answers: bool
) -> tuple[str, str]:
    """Return the provider to use and why.

    Args:
        asked: What the user wants: `auto` or a provider's name.
        remembered: The provider that brought the present cluster up, if any.
        kubeconfig: The environment's KUBECONFIG, empty where it is unset or our own.
        answers: Whether the cluster of `kubeconfig` answers.

    Raises:
        UserError: There is no such provider.
    """
    if asked != AUTO:
        if asked not in PROVIDERS:
            raise UserError(
                Problem(
                    f"there is no provider {asked!r}",
                    f"choose one of: {', '.join([AUTO, *PROVIDERS])}",
                ),
                ExitCode.USAGE,
            )
        return asked, "as asked"
    if remembered in PROVIDERS:
        return str(remembered), "it brought the present cluster up"
    if kubeconfig and answers:
        return "existing", f"KUBECONFIG={kubeconfig} answers"
    if kubeconfig:
        return "host", f"KUBECONFIG={kubeconfig} does not answer"
    return "host", "KUBECONFIG is not set"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    provider, why = chosen_for(options.provider)
    if options.provider == AUTO and options.command != "status":
        console.note(f"provider {provider}: {why}")
    chosen = PROVIDERS[provider]
    if options.command == "status":
        report = chosen.status()
        if options.output == "json":
            text = json.dumps({"provider": provider, **report.data}, indent=2)
        else:
            text = report.text
        print(text)
        return ExitCode.OK if report.healthy else ExitCode.FAILURE
    if options.command == "up":
        chosen.up(
            Options(
                gpus=options.gpus,
                kwok_nodes=options.kwok_nodes,
                kwok_profile=options.kwok_profile,
            )
        )
        PROVIDER_FILE.parent.mkdir(parents=True, exist_ok=True)
        PROVIDER_FILE.write_text(provider, encoding="utf-8")
    else:
        present = remembered()
        chosen.down(Options(purge=options.purge, force=options.force))
        # Another provider's mark stays with its cluster.
        if present == provider:
            PROVIDER_FILE.unlink(missing_ok=True)
    return ExitCode.OK


def remembered() -> str | None:
    """Return the provider of this checkout's present cluster, None without one."""
    if PROVIDER_FILE.is_file():
        return PROVIDER_FILE.read_text(encoding="utf-8").strip() or None
    return None


def _host_runs() -> bool:
    from tandem_host import processes, record, settings  # noqa: PLC0415

    state = settings.current().state
    found = record.load()
    # Without root the processes cannot be seen; the machine's record can.
    return bool(processes.of_cluster(state)) or (found is not None and found.state == str(state))


def chosen_for(asked: str) -> tuple[str, str]:
    """Return the provider to use here and now, and why.

    Raises:
        UserError: There is no such provider.
    """
    present = remembered()
    source = os.environ.get("KUBECONFIG", "")
    kubeconfig = "" if not source or _own(source) else source
    ask = asked == AUTO and present is None and bool(kubeconfig)
    return choose(
        asked,
        remembered=present,
        kubeconfig=kubeconfig,
        answers=ask and _answers(kubeconfig),
    )


def _own(kubeconfig: str) -> bool:
    return Path(kubeconfig).resolve() == KUBECONFIG.resolve()


def _answers(kubeconfig: str) -> bool:
    words = ["kubectl", "version", "--output=json", f"--request-timeout={_REACH_SECONDS}s"]
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, timeout=_REACH_SECONDS * 2,
            env=tool_env({"KUBECONFIG": kubeconfig}),
        )  # fmt: skip
    except FileNotFoundError:
        # Before `make tools` the cluster can be asked all the same.
        return _answers_a_library(kubeconfig)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _answers_a_library(kubeconfig: str) -> bool:
    from kubernetes import client, config  # noqa: PLC0415 - half a second that `status` has not
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    settings = client.Configuration()
    settings.retries = False
    try:
        config.load_kube_config(kubeconfig, client_configuration=settings)
        client.VersionApi(client.ApiClient(settings)).get_code(_request_timeout=_REACH_SECONDS)
    except (config.ConfigException, client.ApiException, HTTPError, OSError):
        return False
    return True


def _kubectl(kubeconfig: str, *words: str) -> str:
    return run(["kubectl", *words], timeout=30, env={"KUBECONFIG": kubeconfig})


def _ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def profile_name(name: str) -> str:
    """Return the name of a profile as it was given: an argument type that refuses others."""
    if problem := profile_problem(name):
        raise ArgumentTypeError(f"{problem.what}\n{problem.fix}")
    return name


def _parser() -> Parser:
    parser = Parser(
        "python -m tandem.cluster", "Bring a cluster up, take it down, look at it.", _EXAMPLES
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the cluster up, or repair it")
    up.add_argument(
        "--gpus",
        type=whole_number(0, 1024, example=8),
        help="simulated GPUs of the node (host; default 8)",
    )
    up.add_argument(
        "--kwok-nodes",
        type=whole_number(0, MOST_NODES, example=100),
        help="simulated nodes beside the real one (host; default: as many as there are)",
    )
    up.add_argument(
        "--kwok-profile",
        type=profile_name,
        help=f"what they are like: {', '.join(kwok_profiles())} (default: {DEFAULT_PROFILE})",
    )
    down = commands.add_parser("down", help="take the cluster down; images and logs stay")
    down.add_argument("--purge", action="store_true", help="delete images and logs too")
    down.add_argument(
        "--force", action="store_true", help="also take down another checkout's cluster"
    )
    status = commands.add_parser("status", help="show what runs and whether it works")
    status.add_argument("--output", choices=("text", "json"), default="text")
    for command in (up, down, status):
        command.add_argument(
            "--provider", default=AUTO, help=f"{', '.join([AUTO, *PROVIDERS])} (default: auto)"
        )
    return parser


if __name__ == "__main__":
    run_main(main)
