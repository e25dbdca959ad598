"""Custom resource definitions: a step of their own, that no release can undo.

`helmfile sync` runs this first (hook `crds` in helmfile.yaml); every release is installed
with `--skip-crds`. Server-side apply under a field manager of ours installs and upgrades
them; nothing but `delete` below, which a person has to ask for, ever removes one. Helm
deletes what a release's new manifest no longer holds, and a deleted CRD takes every object
of its kind with it.

Where they come from: the bundle in the local environments (the operators' Go modules),
the environment's own pinned charts (`helm show crds`) in the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.bundle import kueue_chart
from tandem.bundle.layout import Layout, problems_of, sha256_of
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import BUILD, ROOT
from tandem.process import run
from tandem.releases import require_settled
from tandem.yamls import dump, load_all

DEFAULT_ENVIRONMENT = "default"
#: The same cluster with Kueue on it.
KUEUE_ENVIRONMENT = "kueue"
#: Environments of the local cluster: charts from the bundle, images built here.
LOCAL_ENVIRONMENTS = (DEFAULT_ENVIRONMENT, KUEUE_ENVIRONMENT)
#: How the names of Kueue's CRDs end. Without Kueue nobody answers their conversion webhook.
_KUEUE_CRDS = ".kueue.x-k8s.io"
FIELD_MANAGER = "tandem-crds"
#: helmfile commands that install something; for all others there is nothing to apply.
INSTALLING = ("sync", "apply")
#: helmfile commands that need the bundle's charts but no cluster.
READING = ("template", "lint", "diff", "build", "write-values", "fetch", "unittest")
#: Nodes of a cluster that `make images` loads into (provider `host` sets it).
LOCAL_LABEL = "tandem.dev/local"
#: Annotation with the checksum and the generation of what was applied last.
RECORD = "tandem.dev/applied"
_HASH_LENGTH = 16
_APPLY_TIMEOUT_SECONDS = 120
_ESTABLISHED_TIMEOUT_SECONDS = 60
_SHOW_TIMEOUT_SECONDS = 120
_DELETE_TIMEOUT_SECONDS = 120
#: Set while helmfile is asked for its releases: its own hook must not come back here.
_NESTED = "TANDEM_CRDS_NESTED"

_EPILOG = """\
examples:
  python -m tandem.crds apply                        what the default environment needs
  python -m tandem.crds apply --environment=prod     out of the pinned upstream charts
  python -m tandem.crds list
  python -m tandem.crds delete --yes                 and with them EVERY RayCluster, RayJob, JobSet

exit codes: 0 ok, 1 failure, 2 usage, 3 bundle missing or corrupt, or not the local cluster
"""


def _is_remote(chart: str) -> bool:
    return "://" in chart


def releases_of(environment: str) -> list[dict[str, Any]]:
    """Return the releases that an environment installs, as `helmfile list` tells them."""
    said = run(
        ["helmfile", "--environment", environment, "--quiet", "list", "--skip-charts",
         "--output", "json"],
        timeout=_SHOW_TIMEOUT_SECONDS, cwd=ROOT, env={_NESTED: "1"}, fix="make tools",
    )  # fmt: skip
    return [rel for rel in json.loads(said) if rel["enabled"] and rel["installed"]]


def crds_of_chart(release: dict[str, Any]) -> list[Any]:
    """Return the CRDs that come with a remote chart."""
    version = ["--version", release["version"]] if release["chart"].startswith("oci:") else []
    if release["name"] == kueue_chart.RELEASE:
        return kueue_chart.crds_of(release["chart"], *version)
    said = run(
        ["helm", "show", "crds", release["chart"], *version], timeout=_SHOW_TIMEOUT_SECONDS,
        fix=f"check that {release['chart']} can be reached from here",
    )  # fmt: skip
    return load_all(said)


def sources(environment: str) -> list[Path]:
    """Return the files of the CRDs that an environment needs.

    Raises:
        UserError: The bundle is missing or corrupt, or a chart cannot be reached.
    """
    if environment in LOCAL_ENVIRONMENTS:
        layout = Layout()
        problems = problems_of(layout)
        if problems:
            raise UserError(problems)
        kueue = environment == KUEUE_ENVIRONMENT
        files = sorted(layout.crds.glob("*.yaml"))
        return [path for path in files if kueue or not path.stem.endswith(_KUEUE_CRDS)]
    folder = BUILD / "crds" / environment
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.yaml"):
        stale.unlink()
    for release in releases_of(environment):
        if _is_remote(release["chart"]):
            for crd in crds_of_chart(release):
                (folder / f"{crd['metadata']['name']}.yaml").write_text(dump(crd), "utf-8")
    return sorted(folder.glob("*.yaml"))


def _kubectl(*words: str | Path, timeout: float) -> str:
    return run(
        ["kubectl", *words], timeout=timeout,
        fix="is KUBECONFIG set (export KUBECONFIG=$PWD/.cluster/kubeconfig)? "
        "make cluster-status tells whether the cluster is well",
    )  # fmt: skip


def foreign_nodes(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the nodes that are of no local cluster of ours; none when one of them is."""
    labels = {n["metadata"]["name"]: n["metadata"].get("labels") or {} for n in nodes}
    if any(each.get(LOCAL_LABEL) == "true" for each in labels.values()):
        return []
    return sorted(labels)


def not_local(nodes: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Return why a local environment must not be installed on a cluster of these nodes."""
    return [
        Problem(
            f"environments default and kueue are for the local cluster, this one has node {node} "
            f"without label {LOCAL_LABEL}=true: images built here are not on it",
            "use -e prod, kind or nvkind; or correct KUBECONFIG; or, if the images are "
            f"there, kubectl label node {node} {LOCAL_LABEL}=true",
        )
        for node in foreign_nodes(nodes)[:1]
    ]


def require_local() -> None:
    """Refuse a cluster that is not local: a local environment would break its operators.

    Raises:
        UserError: The cluster has nodes and none carries the label of a local one.
    """
    nodes = json.loads(_kubectl("get", "nodes", "-o", "json", timeout=60))["items"]
    problems = not_local(nodes)
    if problems:
        raise UserError(problems)


def _names(files: Iterable[Path]) -> list[str]:
    return [f"customresourcedefinition/{path.stem}" for path in files]


@dataclass(frozen=True, slots=True)
class Installed:
    """What the cluster has of one CRD."""

    generation: int
    record: str
    established: bool


def installed() -> dict[str, Installed]:
    """Return the CRDs of the cluster by name."""
    said = _kubectl("get", "customresourcedefinitions", "-o", "json", timeout=60)
    found = {}
    for crd in json.loads(said)["items"]:
        meta = crd["metadata"]
        # One just made has conditions null: not known yet.
        conditions = (crd.get("status") or {}).get("conditions") or []
        found[meta["name"]] = Installed(
            generation=int(meta["generation"]),
            record=(meta.get("annotations") or {}).get(RECORD, ""),
            established=any(
                c["type"] == "Established" and c["status"] == "True" for c in conditions
            ),
        )
    return found


def record_of(path: Path, generation: int) -> str:
    """Return what is noted on a CRD after it was applied from a file."""
    return f"{sha256_of(path)[:_HASH_LENGTH]}.{generation}"


def outdated(files: Iterable[Path], found: Mapping[str, Installed]) -> list[Path]:
    """Return the files that differ from what the cluster has.

    A CRD is current when its record names this file's checksum and the generation that it
    has now: a change by anybody else raises the generation.
    """
    late = []
    for path in files:
        crd = found.get(path.stem)
        if crd is None or not crd.established or crd.record != record_of(path, crd.generation):
            late.append(path)
    return late


def _await_established(names: set[str]) -> dict[str, Installed]:
    """Wait until the API server serves the CRDs; `kubectl wait` fails on one just made."""
    deadline = time.monotonic() + _ESTABLISHED_TIMEOUT_SECONDS
    while True:
        found = installed()
        missing = {n for n in names if n not in found or not found[n].established}
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise UserError(
                Problem(
                    f"not established after {_ESTABLISHED_TIMEOUT_SECONDS} s: "
                    f"{', '.join(sorted(missing))}",
                    "kubectl describe customresourcedefinition NAME tells why",
                ),
                ExitCode.FAILURE,
            )
        time.sleep(0.3)


def _note(path: Path, generation: int) -> None:
    _kubectl(
        "annotate", "--overwrite", f"--field-manager={FIELD_MANAGER}-record", *_names([path]),
        f"{RECORD}={record_of(path, generation)}", timeout=60,
    )  # fmt: skip


def apply(files: list[Path]) -> int:
    """Apply the CRDs that are not as wanted, wait until all are served, return how many.

    Conflicts are forced: where Helm or a person installed one before, it is ours from now
    on. The API server itself refuses to drop a version that objects are stored in.
    Applying a large CRD again costs the API server seconds even when nothing changes;
    hence the record of what was applied.

    Raises:
        UserError: The cluster does not answer, refuses one, or is too slow.
    """
    late = outdated(files, installed())
    if not late:
        return 0
    _kubectl(
        "apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}",
        *[word for path in late for word in ("--filename", path)], timeout=_APPLY_TIMEOUT_SECONDS,
    )  # fmt: skip
    found = _await_established({path.stem for path in late})
    for path in late:
        _note(path, found[path.stem].generation)
    return len(late)


def delete(files: list[Path]) -> None:
    """Delete CRDs and every object of their kinds, with a deadline.

    Raises:
        UserError: Objects still hold finalizers that nobody answers any more.
    """
    _kubectl(
        "delete", "--ignore-not-found", f"--timeout={_DELETE_TIMEOUT_SECONDS}s",
        *_names(files), timeout=_DELETE_TIMEOUT_SECONDS + 10,
    )  # fmt: skip


def _parser() -> Parser:
    parser = Parser(
        "tandem.crds", "Install and upgrade the CRDs that the platform's releases need.", _EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True)
    applier = commands.add_parser("apply", help="server-side apply, then wait until established")
    applier.add_argument("--for", dest="reason", default="sync", help="helmfile command (hook)")
    lister = commands.add_parser("list", help="the files they come from")
    deleter = commands.add_parser("delete", help="delete them and every object of their kinds")
    deleter.add_argument("--yes", action="store_true", help="really")
    for command in (applier, lister, deleter):
        command.add_argument("--environment", default=DEFAULT_ENVIRONMENT, help="of helmfile.yaml")
    return parser


def _apply(environment: str, reason: str) -> None:
    if reason not in INSTALLING:
        if reason in READING and environment in LOCAL_ENVIRONMENTS:
            sources(environment)  # the charts are needed: say so here, not in helm's words
        return
    started = time.monotonic()
    files = sources(environment)
    if environment in LOCAL_ENVIRONMENTS:
        require_local()
    require_settled(release["name"] for release in releases_of(environment))
    if not files:
        console.note(f"environment {environment} needs no CRDs")
        return
    changed = apply(files)
    seconds = time.monotonic() - started
    # On stdout: helmfile shows a hook's stdout.
    print(f"CRDs: {changed} applied, {len(files) - changed} current ({seconds:.1f} s)")


def main() -> int:
    """Run the command line."""
    if os.environ.get(_NESTED):
        return ExitCode.OK
    args = _parser().parse_args()
    if args.command == "apply":
        _apply(args.environment, args.reason)
    elif args.command == "list":
        for path in sources(args.environment):
            print(path)
    elif args.yes:
        delete(sources(args.environment))
    else:
        raise UserError(
            Problem("deleting CRDs deletes every object of their kinds", "add --yes to do it"),
            ExitCode.USAGE,
        )
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
