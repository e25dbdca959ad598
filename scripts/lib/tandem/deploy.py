"""`make deploy` and `make undeploy`: one variant's run, without following it."""

from __future__ import annotations

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.render import render_variant, require_variant
from tandem.run.kube import require_cluster
from tandem.run.start import remove, start, start_driver

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
    parser.add_argument("--variant", default="monolithic-rayjob", help="of kustomize/overlays")
    args = parser.parse_args()
    require_variant(args.variant)
    if args.command == "up":
        if any(obj["kind"] == "RayJob" for obj in render_variant(args.variant)):
            run = start(args.variant).run
            look = f"kubectl get rayjob {run.name} -n {run.namespace} --watch"
        else:
            namespace, name = start_driver(args.variant)
            look = f"kubectl logs --follow job/{name} -n {namespace} --pod-running-timeout=5m"
        console.ok(f"applied {args.variant}: {look}")
    else:
        require_cluster()
        remove(args.variant)
        console.ok(f"removed {args.variant}")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
