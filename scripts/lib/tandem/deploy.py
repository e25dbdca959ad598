"""`make deploy` and `make undeploy`: a variant under its own, fixed run id, not followed.

What `kubectl apply -k kustomize/overlays/<variant>` does, with everything refused first that
could never run. `make run` gives the run an id of its own.
"""

from __future__ import annotations

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.render import require_variant
from tandem.run.kube import require_cluster
from tandem.run.start import remove, start

_EPILOG = """\
examples:
  python -m tandem.deploy up --variant monolithic-rayjob
  python -m tandem.deploy up --variant disagg-rayclusters
  python -m tandem.deploy down --variant monolithic-rayjob

exit codes: 0 ok, 1 failure, 2 unknown variant, 3 there is no cluster, it lacks what the variant
needs (the platform, an image), or a run of it goes on
"""


def main() -> int:
    """Run the command line."""
    parser = Parser("tandem.deploy", "Apply or remove a variant.", _EPILOG)
    parser.add_argument("command", choices=("up", "down"))
    parser.add_argument("--variant", default="disagg-rayclusters", help="of kustomize/overlays")
    args = parser.parse_args()
    require_variant(args.variant)
    if args.command == "up":
        run = start(args.variant).run
        console.ok(f"applied {args.variant}: make status RUN_ID={run.run_id}")
    else:
        require_cluster()
        remove(args.variant)
        console.ok(f"removed {args.variant}")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
