"""`make explain`: what KAI, or Kueue, will make of a run, and what would keep it from running."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.cli import Parser
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.explain.inputs import PLATFORM, nodes_of, placed, read_facts, read_objects
from tandem.explain.report import Report, as_json, report_of
from tandem.explain.text import plural, text
from tandem.run.identity import Placing, placing_of
from tandem.run.queueing import SCHEDULERS

_EPILOG = """\
examples:
  python -m tandem.explain prod-disagg-jobset                 a variant of kustomize/overlays
  python -m tandem.explain disagg-jobset --scheduler kueue    as make run SCHEDULER=kueue has it
  python -m tandem.explain .runs/ppo-7                        a folder with a kustomization
  kubectl kustomize . | python -m tandem.explain -            manifests from stdin
  python -m tandem.explain run.yaml --nodes cluster           does it fit the cluster's nodes?
  python -m tandem.explain run.yaml --nodes nodes.json        … of `kubectl get nodes -o json`
  python -m tandem.explain run.yaml --queues site.yaml --kai v0.16.7 --output json

What it says of gangs is a model of KAI's grouping rules (tandem.explain.model), not KAI; of a run
in a queue of Kueue's it says what Kueue lets in at once (tandem.explain.kueue).

exit codes: 0 ok, 1 an error was found (all is said first), 2 usage, 3 an input cannot be read
"""


def _parser() -> Parser:
    parser = Parser("tandem.explain", "Say what KAI or Kueue will make of a run.", _EPILOG)
    parser.add_argument(
        "subject", metavar="VARIANT", help="a variant, a file or folder of manifests, or -"
    )
    parser.add_argument(
        "--queues", type=Path, default=PLATFORM, metavar="FILE",
        help="values of charts/rl-platform or its objects (default: the chart's own values)",
    )  # fmt: skip
    parser.add_argument("--nodes", metavar="FILE|cluster", help="check against these nodes as well")
    parser.add_argument("--kai", metavar="VERSION", help="default: the pinned version")
    parser.add_argument(
        "--scheduler", choices=("", *SCHEDULERS), default="", help="in place of the variant's own"
    )
    parser.add_argument("--queue", default="", help="of that scheduler's (default: low-prio)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _explained(
    subject: str, queues: Path, kai: str | None, nodes: str | None, placing: Placing
) -> Report:
    facts = read_facts(queues, kai)
    objects = placed(subject, placing) if placing.scheduler else read_objects(subject)
    title = "stdin" if subject == "-" else subject
    there = nodes_of(nodes) if nodes else None
    try:
        return report_of(title, objects, facts, there)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            Problem(f"{title}: an object is not of its kind's shape: {error!r}",
                    "the schemas say where: make validate, or kubectl apply --dry-run=server")
        ) from error  # fmt: skip


def main() -> int:
    """Run the command line."""
    args = _parser().parse_args()
    placing = placing_of(args.scheduler, args.queue)
    report = _explained(args.subject, args.queues, args.kai, args.nodes, placing)
    if args.output == "json":
        print(json.dumps(as_json(report), indent=2))
    else:
        print(text(report), end="")
    if report.errors:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in report.errors))
        raise UserError(
            Problem(f"{report.title}: {plural(len(report.errors), 'error')} ({rules})",
                    "mend what the report says, each with its own fix"),
            ExitCode.FAILURE,
        )  # fmt: skip
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
