"""`make deploy` and `make undeploy`: one variant's run, without following it."""

from __future__ import annotations

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.render import OVERLAYS, require_variant
from tandem.run.kube import kubectl, require_cluster
from tandem.run.start import start

_DELETE_SECONDS = 120
_EPILOG = """\
examples:
  python -m tandem.deploy up --variant monolithic-rayjob
  python -m tandem.deploy down --variant monolithic-rayjob

exit codes: 0 ok, 1 failure, 2 unknown variant, 3 there is no cluster, it lacks what the variant
needs (the platform, an image), or a run of it goes on
"""


def main() -> int:
    """Run the command line."""
    parser = Parser("tandem.deploy", "Apply or remove a variant.", _EPILOG)
    parser.add_argument("command", choices=("up", "down"))
    parser.add_argument("--variant", default="monolithic-rayjob", help="of kustomize/overlays")
    args = parser.parse_args()
    require_variant(args.variant)
    if args.command == "up":
        started = start(args.variant)
        name, namespace = started.run.name, started.run.namespace
        console.ok(f"applied {args.variant}: kubectl get rayjob {name} -n {namespace} --watch")
    else:
        require_cluster()
        kubectl(
            "delete", "-k", OVERLAYS / args.variant, "--ignore-not-found", "--cascade=foreground",
            f"--timeout={_DELETE_SECONDS}s", timeout=_DELETE_SECONDS + 10,
        )  # fmt: skip
        console.ok(f"removed {args.variant}")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
