"""`make bench-pool`: what the pool costs, beside a plain aiohttp proxy.

Three subjects over the same compiled fake replicas, one after the other in every round: no proxy
(direct), the baseline (`bench/baseline_proxy.py`) and the pool, a whole balancer. Figures are
medians of rounds. Nothing is asserted. Load, replicas and proxy share the machine, so requests per
second flatter whoever has more threads; CPU per request is the sturdier figure.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from tandem.bench_pool import moments
from tandem.bench_pool.load import CASES, Series, compare, table
from tandem.bench_pool.subjects import DIRECT, POOL_SESSION, Subject, baseline, flat_fakes, pool
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.figures import Figure, machine
from tandem.figures import table as figures_table

_EPILOG = """\
examples:
  python -m tandem.bench_pool                      the table (make tools TOOLS=pool comes first)
  python -m tandem.bench_pool --rounds 5 --seconds 4
  python -m tandem.bench_pool --only 1kB@64 --only sse@64 --output json

exit codes: 0 ok, 1 a request failed or a step did, 2 usage, 3 a precondition is not met
"""
_REPLICAS = 3


def _parser() -> Parser:
    parser = Parser("tandem.bench_pool", "Measure the pool beside a plain aiohttp proxy.", _EPILOG)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case in each round")
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in CASES], help="only these loads"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _loads(only: list[str] | None, rounds: int, seconds: float) -> list[Series]:
    cases = [case for case in CASES if only is None or case.name in only]
    with flat_fakes(_REPLICAS) as ports, baseline(ports) as plain, pool(ports) as ours:
        subjects = [
            Subject(DIRECT, ports[0]),
            plain,
            ours,
            Subject(POOL_SESSION, ours.port, ours.processes, session=True),
        ]
        return compare(subjects, cases, rounds=rounds, seconds=seconds)


def _moments() -> list[Figure]:
    # What hangs on purpose would be taken out by the canary.
    with moments.fakes(_REPLICAS) as replicas, pool(replicas.ports, canary=False) as ours:
        with console.phase("clients that leave"):
            found = moments.cancellations(ours, replicas)
        with console.phase("a stream that nobody reads"):
            found += moments.unread(ours, replicas)
    with moments.fakes(_REPLICAS) as replicas, pool(replicas.ports) as ours:
        return found + moments.joining(ours, replicas)


def main() -> int:
    """Measure and print."""
    args = _parser().parse_args()
    series = _loads(args.only, args.rounds, args.seconds)
    figures = _moments() if args.only is None else []
    where = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    said = f"{where['machine']}, {where['date']}"
    if args.output == "json":
        parts = {"series": [asdict(one) for one in series], "figures": [asdict(f) for f in figures]}
        print(json.dumps({**where, **parts}, indent=2))
    else:
        print(f"{said}, medians of {args.rounds} rounds")
        print(table(series))
        if figures:
            print(figures_table(said, figures))
    failed = sum(sample.errors for one in series for sample in one.samples)
    return ExitCode.FAILURE if failed else ExitCode.OK


if __name__ == "__main__":
    run_main(main)
