"""`make sync` and `make destroy`: the platform's releases, in an order that cannot hang.

An operator that goes before its objects leaves finalizers that nobody answers, and a
`kubectl delete` that hangs for ever. So: runs first, while their operators live; then the
releases; CRDs only when asked for. Every step has a deadline.

KAI keeps a queue that has others below it, and Helm deletes all queues of a release at once, each
with one attempt: so they go before it does, from the leaves up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem import crds
from tandem.bundle.layout import FILL, Layout, problems_of
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import BUILD, ROOT
from tandem.process import run
from tandem.releases import require_settled
from tandem.render import ENVIRONMENTS
from tandem.run.kube import kubeconfig, kubectl, require_cluster

RUNS_NAMESPACE = "tandem"
#: Kinds whose objects carry finalizers of operators that `destroy` removes.
WORKLOADS = (
    "rayjobs.ray.io",
    "rayclusters.ray.io",
    "rayservices.ray.io",
    "jobsets.jobset.x-k8s.io",
)
QUEUES = "queues.scheduling.run.ai"
_OURS = "app.kubernetes.io/name=rl-platform"
_DELETE_SECONDS = 90
_HELMFILE_SECONDS = 600

_EPILOG = """\
examples:
  python -m tandem.platform sync
  python -m tandem.platform sync --environment prod
  python -m tandem.platform destroy            runs in namespace tandem, then releases; CRDs stay
  python -m tandem.platform destroy --crds     the CRDs too

exit codes: 0 ok, 1 failure, 2 usage, 3 the bundle is missing or corrupt, there is no cluster or not
the local one, a release is half-way, or runs in other namespaces would be left without operators
"""


def require_ready(environment: str, *, layout: Layout | None = None) -> None:
    """Refuse what would fail within helmfile, whose words would hide what to do about it.

    Raises:
        UserError: The bundle is missing or corrupt, there is no cluster, it is not the local
            one, or a release is half-way.
    """
    local = environment in crds.LOCAL_ENVIRONMENTS
    problems = _bundle_problems(layout or Layout()) if local else []
    try:
        require_cluster()
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems)
    if local:
        crds.require_local()
    require_settled(release["name"] for release in crds.releases_of(environment))


def _bundle_problems(layout: Layout) -> list[Problem]:
    try:
        return problems_of(layout)
    except UserError as error:  # not even a manifest
        return error.problems


def sync(
    environment: str, log: Path | None = None, *, values: Mapping[str, object] | None = None
) -> None:
    """Install or upgrade the platform's releases.

    Args:
        environment: Of helmfile.yaml.
        log: File for what helmfile says; below build/logs by default.
        values: In the place of the environment's own, by path: {"kueue.gpus": 8000}.

    Raises:
        UserError: It was refused before it began (code 3), or helmfile failed.
    """
    require_ready(environment)
    sets = (f"--state-values-set={path}={value}" for path, value in (values or {}).items())
    _helmfile(environment, "sync", log, options=tuple(sets))


def _helmfile(
    environment: str,
    command: str,
    log: Path | None = None,
    *,
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> None:
    log = log or BUILD / "logs" / f"helmfile-{command}-{environment}.log"
    run(
        ["helmfile", "--environment", environment, *options, command, *flags],
        timeout=_HELMFILE_SECONDS, cwd=ROOT, env={"KUBECONFIG": str(kubeconfig())}, log=log,
        fix="read the log; make cluster-status tells whether the cluster is well",
    )  # fmt: skip


def kueue_gpus() -> int | None:
    """Return how many GPUs the queues of Kueue share out; None when there are none of Kueue.

    Raises:
        UserError: The cluster does not answer.
    """
    where = ("--namespace", "tandem-system", "--output", "json")
    env = {"KUBECONFIG": str(kubeconfig())}
    said = run(["helm", "list", "--filter", "^rl-platform$", *where], timeout=60, env=env)
    if not json.loads(said):
        return None
    said = run(["helm", "get", "values", "rl-platform", *where], timeout=60, env=env)
    kueue = ((json.loads(said) or {}).get("queues") or {}).get("kueue") or {}
    return int(kueue["capacity"]["gpu"]) if kueue.get("enabled") else None


def remove_kueue(log: Path | None = None) -> None:
    """Take Kueue off the local cluster, and leave the rest of the platform.

    Raises:
        UserError: helmfile failed.
    """
    # Queues first, while somebody answers for their finalizers.
    only = ("--selector", "name=rl-platform")
    _helmfile("default", "sync", log, options=only, flags=("--skip-needs",))
    _helmfile("kueue", "destroy", log, options=("--selector", "name=kueue"))


def workloads() -> list[dict[str, Any]]:
    """Return every object of the operators' kinds, of all namespaces."""
    served = kubectl("api-resources", "--output=name", "--cached=false").split()
    kinds = [kind for kind in WORKLOADS if kind in served]
    if not kinds:
        return []
    said = kubectl("get", ",".join(kinds), "--all-namespaces", "-o", "json")
    found: list[dict[str, Any]] = json.loads(said)["items"]
    return found


def strangers(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return the workloads outside our namespace, as `namespace/Kind/name`."""
    return [
        f"{o['metadata']['namespace']}/{o['kind']}/{o['metadata']['name']}"
        for o in found
        if o["metadata"]["namespace"] != RUNS_NAMESPACE
    ]


def _delete_runs(found: list[dict[str, Any]]) -> None:
    ours = [o for o in found if o["metadata"]["namespace"] == RUNS_NAMESPACE]
    # An owner takes what it owns along; asking for both would only race with it.
    tops = [o for o in ours if not o["metadata"].get("ownerReferences")]
    for each in tops:
        group = each["apiVersion"].partition("/")[0]
        kubectl(
            "delete", f"{each['kind'].lower()}.{group}", each["metadata"]["name"],
            "-n", RUNS_NAMESPACE, "--ignore-not-found", "--cascade=foreground",
            f"--timeout={_DELETE_SECONDS}s", timeout=_DELETE_SECONDS + 10,
        )  # fmt: skip


def from_the_leaves(queues: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of KAI's queues, none before those that are below it."""
    parents = {o["metadata"]["name"]: o["spec"].get("parentQueue") for o in queues}

    def depth(name: str) -> int:
        # A circle has no top; the webhook has a say about it, and this must end.
        above = [name]
        while (parent := parents.get(above[-1])) in parents and parent not in above:
            above.append(str(parent))
        return len(above)

    return sorted(parents, key=lambda name: (-depth(name), name))


def delete_queues() -> int:
    """Delete the queues that the chart made, if KAI is there; return how many they were."""
    served = kubectl("api-resources", "--output=name", "--cached=false").split()
    if QUEUES not in served:
        return 0
    names = from_the_leaves(json.loads(kubectl("get", QUEUES, "-l", _OURS, "-o", "json"))["items"])
    for name in names:
        kubectl(
            "delete", QUEUES, name, "--ignore-not-found", f"--timeout={_DELETE_SECONDS}s",
            timeout=_DELETE_SECONDS + 10,
        )  # fmt: skip
    return len(names)


def destroy(environment: str, *, with_crds: bool) -> None:
    """Remove runs, queues, releases and, if asked for, CRDs, in this order.

    Raises:
        UserError: Runs of others would be left behind, or a step ran out of time.
    """
    require_cluster()
    if environment in crds.LOCAL_ENVIRONMENTS and not Layout().environment.is_file():
        # helmfile cannot even name the releases without it.
        raise UserError(Problem(f"bundle: {Layout().environment} is missing", FILL))
    found = workloads()
    others = strangers(found)
    if others:
        raise UserError(
            Problem(
                f"these would be left without an operator: {', '.join(others)}",
                "delete them first (kubectl delete), or keep the platform",
            )
        )
    with console.phase("runs") as phase:
        _delete_runs(found)
        phase.detail = f"{len(found)} objects"
    with console.phase("queues") as phase:
        phase.detail = f"{delete_queues()} objects"
    with console.phase("releases"):
        _helmfile(environment, "destroy")
    if with_crds:
        with console.phase("CRDs"):
            crds.delete(crds.sources(environment))
    else:
        console.note("CRDs stay (CRDS=1 deletes them, and every object of their kinds)")


def main() -> int:
    """Run the command line."""
    parser = Parser(
        "tandem.platform", "Install, upgrade and remove the platform's releases.", _EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True)
    syncer = commands.add_parser("sync", help="install or upgrade")
    destroyer = commands.add_parser("destroy", help="remove runs, then releases")
    destroyer.add_argument("--crds", action="store_true", help="delete the CRDs too")
    for command in (syncer, destroyer):
        command.add_argument("--environment", default="default", choices=ENVIRONMENTS)
    args = parser.parse_args()
    os.environ["KUBECONFIG"] = str(kubeconfig())
    if args.command == "sync":
        with console.phase(f"helmfile sync ({args.environment})"):
            sync(args.environment)
    else:
        destroy(args.environment, with_crds=args.crds)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
