"""`make sync` and `make destroy`: the platform's releases, in an order that cannot hang.

An operator that goes before its objects leaves finalizers that nobody answers, and a
`kubectl delete` that hangs for ever. So: runs first, while their operators live; then the
releases; CRDs only when asked for. Every step has a deadline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from tandem import crds
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import BUILD, ROOT
from tandem.process import run
from tandem.render import ENVIRONMENTS
from tandem.run.kube import kubeconfig, kubectl

RUNS_NAMESPACE = "tandem"
#: Kinds whose objects carry finalizers of operators that `destroy` removes.
WORKLOADS = (
    "rayjobs.ray.io",
    "rayclusters.ray.io",
    "rayservices.ray.io",
    "jobsets.jobset.x-k8s.io",
)
_DELETE_SECONDS = 90
_HELMFILE_SECONDS = 600

_EPILOG = """\
examples:
  python -m tandem.platform sync
  python -m tandem.platform sync --environment prod
  python -m tandem.platform destroy            runs in namespace tandem, then releases; CRDs stay
  python -m tandem.platform destroy --crds     the CRDs too

exit codes: 0 ok, 1 failure, 2 usage, 3 runs in other namespaces would be left without operators
"""


def _helmfile(environment: str, command: str) -> None:
    log = BUILD / "logs" / f"helmfile-{command}-{environment}.log"
    run(
        ["helmfile", "--environment", environment, command], timeout=_HELMFILE_SECONDS, cwd=ROOT,
        env={"KUBECONFIG": str(kubeconfig())}, log=log,
        fix="make cluster-status tells whether the cluster is well",
    )  # fmt: skip


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


def destroy(environment: str, *, with_crds: bool) -> None:
    """Remove runs, releases and, if asked for, CRDs, in this order.

    Raises:
        UserError: Runs of others would be left behind, or a step ran out of time.
    """
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
            _helmfile(args.environment, "sync")
    else:
        destroy(args.environment, with_crds=args.crds)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
