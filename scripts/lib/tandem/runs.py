"""`make run`, `status`, `logs`, `stop` and `clean`: runs of any variant, each with its id."""

from __future__ import annotations

import argparse
import json
import os
import sys

from rich.console import Console

from tandem.cli import Parser, whole_number
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ARTIFACTS
from tandem.render import require_variant
from tandem.run import logs
from tandem.run.identity import new_run_id, placing_of, require_run_id
from tandem.run.kube import require_cluster
from tandem.run.lifecycle import follow_to_the_end, report, set_aside
from tandem.run.queueing import SCHEDULERS
from tandem.run.start import start
from tandem.run.status import look, look_at_all, show, show_all, to_json
from tandem.run.stop import clean, stop

_NAMESPACE = "tandem"
_INTERRUPTED = 130

_EPILOG = """\
examples:
  python -m tandem.runs start --variant disagg-rayclusters --run-id ppo-7
  python -m tandem.runs start --variant disagg-rayclusters --detach    only apply it
  python -m tandem.runs start --variant disagg-jobset --scheduler kueue --queue high-prio
  python -m tandem.runs status                         all runs, a line each
  python -m tandem.runs status ppo-7 --output json
  python -m tandem.runs logs ppo-7 --follow
  python -m tandem.runs stop ppo-7
  python -m tandem.runs clean                          what ended runs have left

exit codes: start: the run's own (0 it succeeded); status: 0 it goes on or succeeded, 1 it
failed or was stopped; 2 usage; 3 there is no cluster or no such run, or the run was refused;
130 interrupted: the run goes on
"""


class _Lines(Console):
    """A console for lines that a reader may have enough of: `make logs … | head`."""

    def on_broken_pipe(self) -> None:
        """End as every program of ours does then: without a word, with code 0."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os._exit(ExitCode.OK)  # any of many threads may have been printing


def _start(args: argparse.Namespace) -> int:
    require_variant(args.variant)
    run_id = args.run_id or new_run_id()
    require_run_id(run_id)
    placing = placing_of(args.scheduler, args.queue)
    require_cluster()
    started = start(args.variant, run_id, placing)
    set_aside(ARTIFACTS / run_id)
    if args.detach:
        run = started.run
        console.ok(f"started run {run.run_id}: make status RUN_ID={run.run_id}")
        if args.output == "json":
            print(json.dumps({"run_id": run.run_id, "variant": args.variant}))
        return ExitCode.OK
    console.note(f"applied {args.variant} as run {run_id}")
    try:
        outcome = follow_to_the_end(started, args.variant, ARTIFACTS / run_id)
    except KeyboardInterrupt:
        console.warn(
            f"no longer following run {run_id}; it goes on: make status RUN_ID={run_id},"
            f" make stop RUN_ID={run_id}"
        )
        return _INTERRUPTED
    return report(outcome, args.output)


def _status(args: argparse.Namespace) -> int:
    require_cluster()
    out = Console(highlight=False)
    if not args.run_id:
        found = look_at_all(args.namespace)
        if args.output == "json":
            print(json.dumps([to_json(each) for each in found], indent=2))
        elif found:
            show_all(found, out)
        else:
            print(f"no runs in namespace {args.namespace}; make run starts one")
        return ExitCode.OK
    try:
        status = look(args.namespace, args.run_id)
    except UserError as error:
        # 1 is said of a run, not of a cluster that did not answer.
        raise UserError(error.problems, ExitCode.PRECONDITION) from error
    if args.output == "json":
        print(json.dumps(to_json(status), indent=2))
    else:
        show(status, out)
    return ExitCode.FAILURE if status.state in ("failed", "stopped") else ExitCode.OK


def _logs(args: argparse.Namespace) -> int:
    require_cluster()
    out = _Lines(highlight=False, soft_wrap=True)
    tell = logs.follow if args.follow else logs.show
    try:
        tell(args.namespace, args.run_id, out, tail=args.tail)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return ExitCode.OK


def _stop(args: argparse.Namespace) -> int:
    require_cluster()
    going = stop(args.namespace, args.run_id)
    said = "stopped" if going else "it had ended; removed what it had left of"
    console.ok(f"{said} run {args.run_id}")
    return ExitCode.OK


def _clean(args: argparse.Namespace) -> int:
    require_cluster()
    cleaned = clean(args.namespace, args.run_id)
    console.ok(f"cleaned: {', '.join(cleaned) or 'nothing was left'}")
    return ExitCode.OK


def _parser() -> Parser:
    parser = Parser("tandem.runs", "Start, see and end runs.", _EPILOG)
    parser.add_argument("--namespace", default=_NAMESPACE, help="where the runs are")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, words: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=words, description=words, epilog=_EPILOG)

    starting = command("start", "apply a variant as a run of its own and follow it to its end")
    starting.add_argument("--variant", required=True, help="folder of kustomize/overlays")
    starting.add_argument("--run-id", default="", help="a DNS label; by default of this moment")
    starting.add_argument(
        "--scheduler", choices=("", *SCHEDULERS), default="", help="in place of the variant's own"
    )
    starting.add_argument("--queue", default="", help="of that scheduler's (default: low-prio)")
    starting.add_argument("--detach", action="store_true", help="apply only")
    starting.add_argument("--output", choices=("text", "json"), default="text")
    starting.set_defaults(work=_start)
    status = command("status", "phase of each role, endpoints, queue, verdict")
    status.add_argument("run_id", nargs="?", default="", help="all runs, a line each, without")
    status.add_argument("--output", choices=("text", "json"), default="text")
    status.set_defaults(work=_status)
    telling = command("logs", "what all roles say, merged; of a run that is gone what was kept")
    telling.add_argument("run_id", nargs="?", default="")
    telling.add_argument("--follow", action="store_true", help="as it comes, to the run's end")
    telling.add_argument(
        "--tail", type=whole_number(0, 1_000_000, 100), default=0,
        help="only the last lines of each container",
    )  # fmt: skip
    telling.set_defaults(work=_logs)
    stopping = command("stop", "end a run: keep its logs, remove everything of it")
    stopping.add_argument("run_id", nargs="?", default="")
    stopping.set_defaults(work=_stop)
    cleaning = command("clean", "remove what an ended run has left (without an id: all of them)")
    cleaning.add_argument("run_id", nargs="?", default="")
    cleaning.set_defaults(work=_clean)
    return parser


def main() -> int:
    """Run the command line."""
    args = _parser().parse_args()
    if args.command in ("logs", "stop") and not args.run_id:
        raise UserError(
            Problem(
                f"{args.command}: no run id is given",
                f"make {args.command} RUN_ID=<id>; make status lists the runs",
            ),
            ExitCode.USAGE,
        )
    if args.run_id and args.command != "start":
        require_run_id(args.run_id)
    return int(args.work(args))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_main(main)
