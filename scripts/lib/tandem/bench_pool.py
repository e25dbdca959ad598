"""`make bench-pool`: what the pool's data plane costs, beside a plain aiohttp proxy.

Three subjects over the same compiled fake replicas, one after the other in every round: no proxy
(direct), the baseline (`bench/baseline_proxy.py`) and the pool. Figures are medians of rounds.
Nothing is asserted. Load, replicas and proxy share the machine, so requests per second flatter
whoever has fewer threads; CPU per request is the sturdier figure.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.figures import machine
from tandem.paths import BIN, ROOT
from tandem.sidecar_process import free_port
from tandem_common.clock import Deadline
from vllm_pool.dataplane import files, process
from vllm_pool.dataplane.config import Backend, PlaneSettings

_EPILOG = """\
examples:
  python -m tandem.bench_pool                      the table (make tools TOOLS=pool comes first)
  python -m tandem.bench_pool --rounds 5 --seconds 4
  python -m tandem.bench_pool --only 1kB@64 --only sse@64 --output json

exit codes: 0 ok, 1 a request failed or a step did, 2 usage, 3 a precondition is not met
"""
_REPLICAS = 3
_START_SECONDS = 30.0
_EVENTS = 100
_MIB = 2**20
DIRECT, BASELINE, POOL = "direct", "baseline", "vllm-pool"
POOL_SESSION = "vllm-pool, by session"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    name: str
    clients: int
    body_bytes: int = 1000
    stream: bool = False

    def arguments(self, port: int, *, session: bool) -> list[str]:
        """Return what `pool-load` is told."""
        words = [
            "--port", str(port), "--clients", str(self.clients), "--bytes", str(self.body_bytes),
            "--distinct", "256",
        ]  # fmt: skip
        if self.stream:
            words += ["--stream", "--tokens", str(_EVENTS)]
        if session:
            words.append("--session")
        return words


CASES = (
    Case("1kB@1", 1),
    Case("1kB@64", 64),
    Case("1kB@512", 512),
    Case("32kB@64", 64, 32_000),
    Case("2MB@64", 64, 2_000_000),
    Case("sse@64", 64, stream=True),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: where it listens, and the processes it consists of."""

    name: str
    port: int
    processes: tuple[psutil.Process, ...] = ()
    session: bool = False

    def cpu(self) -> float:
        """Seconds of CPU that its processes have used, user's and kernel's."""
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)

    def rss(self) -> float:
        """MiB of memory that they hold."""
        return sum(one.memory_info().rss for one in self.processes) / _MIB


@dataclass(frozen=True, slots=True)
class Sample:
    """One case of one subject in one round."""

    requests_per_second: float
    events_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_request: float
    rss_mib: float
    errors: int


@dataclass(slots=True)
class Series:
    """All rounds of one case and one subject."""

    case: str
    subject: str
    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of one of the sample's values."""
        return statistics.median(float(getattr(sample, name)) for sample in self.samples)


def _program(name: str) -> str:
    path = BIN / name
    if not path.is_file():
        raise UserError(
            Problem(f"bin/{name} is missing", "make tools TOOLS=pool"), ExitCode.PRECONDITION
        )
    return str(path)


@contextmanager
def _started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(words, text=True, **options)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for stream in (running.stdin, running.stdout):
            if stream is not None:
                stream.close()


def _first_line(stream: IO[str] | None, who: str) -> str:
    line = stream.readline() if stream is not None else ""
    if not line:
        raise UserError(Problem(f"{who} ended before it served", "run it by hand"))
    return line


@contextmanager
def fakes(count: int) -> Iterator[list[int]]:
    """Yield the ports of so many fake replicas; they end with the block."""
    words = [_program("fake-vllm"), "--flat", "--ports", ",".join(["0"] * count)]
    with _started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        said = json.loads(_first_line(running.stdout, "fake-vllm"))
        yield list(said["replicas"].values())


@contextmanager
def baseline(replicas: Sequence[int]) -> Iterator[Subject]:
    """Yield the aiohttp proxy over the replicas."""
    words = [
        sys.executable, str(ROOT / "bench" / "baseline_proxy.py"),
        *(f"http://127.0.0.1:{port}" for port in replicas),
    ]  # fmt: skip
    with _started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        port = int(_first_line(running.stdout, "the baseline"))
        yield Subject(BASELINE, port, (psutil.Process(running.pid),))


@contextmanager
def pool(replicas: Sequence[int], **settings: Any) -> Iterator[Subject]:
    """Yield the data plane over the replicas."""
    run_dir = Path(tempfile.mkdtemp(prefix="bench-pool-"))
    wanted = PlaneSettings(run_dir=run_dir, listen_port=free_port(), **settings)
    files.write_plane(wanted)
    files.write_endpoints(
        run_dir, [Backend(f"r{n}", "127.0.0.1", port) for n, port in enumerate(replicas)]
    )
    try:
        with _started(
            process.command(run_dir, wanted), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as running:  # fmt: skip
            yield Subject(POOL, wanted.listen_port, (psutil.Process(running.pid),))
    finally:
        shutil.rmtree(run_dir)


def _wait_until_it_answers(subject: Subject) -> None:
    deadline = Deadline(_START_SECONDS)
    while True:
        sample = measure(subject, Case("probe", 1), 0.1, 0)
        if sample.errors == 0 and sample.requests_per_second > 0:
            return
        if deadline.passed:
            raise UserError(Problem(f"{subject.name} does not answer", "run it by hand"))
        time.sleep(0.05)


def measure(subject: Subject, case: Case, seconds: float, warmup: float) -> Sample:
    """Drive one subject with one load.

    Raises:
        UserError: The load generator failed; failed requests are in the sample.
    """
    words = [
        _program("pool-load"), *case.arguments(subject.port, session=subject.session),
        "--seconds", str(seconds), "--warmup", str(warmup),
    ]  # fmt: skip
    with _started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as running:
        _first_line(running.stdout, "pool-load")
        before = subject.cpu()
        said = json.loads(_first_line(running.stdout, "pool-load"))
        used, rss = subject.cpu() - before, subject.rss()
    return Sample(
        said["requests_per_second"],
        said["events_per_second"],
        said["p50_ms"],
        said["p99_ms"],
        1000 * used / max(1, said["requests"]),
        rss,
        sum(said["errors"].values()),
    )


def compare(
    subjects: Sequence[Subject],
    cases: Sequence[Case],
    *,
    rounds: int,
    seconds: float,
    note: Callable[[str], None] = console.note,
) -> list[Series]:
    """Measure every case of every subject, round by round."""
    found = {(c.name, s.name): Series(c.name, s.name) for c in cases for s in subjects}
    for number in range(rounds):
        for case in cases:
            for subject in subjects:
                sample = measure(subject, case, seconds, warmup=0.5)
                found[case.name, subject.name].samples.append(sample)
                note(
                    f"round {number + 1}/{rounds} {case.name} {subject.name}: "
                    f"{sample.requests_per_second:.0f}/s {sample.cpu_ms_per_request:.3f} ms"
                )
    return list(found.values())


def table(series: Sequence[Series]) -> str:
    """Return the medians as text, with the ratio to the baseline beside those that have one."""
    medians = {(one.case, one.subject): one for one in series}
    head = (
        f"{'load':<9}{'subject':<23}{'requests/s':>12}{'x':>6}{'events/s':>10}{'x':>6}"
        f"{'p50 ms':>9}{'added x':>8}{'p99 ms':>9}{'CPU ms':>9}{'x':>6}{'RSS MiB':>9}{'failed':>8}"
    )
    lines = [head]
    for one in series:
        base, direct = medians.get((one.case, BASELINE)), medians.get((one.case, DIRECT))

        def ratio(name: str, less: Series | None = None, one: Series = one,
                  base: Series | None = base) -> str:  # fmt: skip
            if base is None or one.subject == DIRECT:
                return ""
            minus = less.median(name) if less else 0.0
            below = base.median(name) - minus
            return f"{(one.median(name) - minus) / below:.2f}" if below > 0 else ""

        events = f"{one.median('events_per_second'):.0f}" if one.median("events_per_second") else ""
        proxied = one.subject != DIRECT
        lines.append(
            f"{one.case:<9}{one.subject:<23}{one.median('requests_per_second'):>12.0f}"
            f"{ratio('requests_per_second'):>6}{events:>10}"
            f"{ratio('events_per_second') if events else '':>6}{one.median('p50_ms'):>9.3f}"
            f"{ratio('p50_ms', direct) if direct else '':>8}{one.median('p99_ms'):>9.1f}"
            f"{format(one.median('cpu_ms_per_request'), '.3f') if proxied else '':>9}"
            f"{ratio('cpu_ms_per_request'):>6}"
            f"{format(one.median('rss_mib'), '.0f') if proxied else '':>9}"
            f"{sum(sample.errors for sample in one.samples):>8}"
        )
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser("tandem.bench_pool", "Measure the pool beside a plain aiohttp proxy.", _EPILOG)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case in each round")
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in CASES], help="only these loads"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def main() -> int:
    """Measure and print."""
    args = _parser().parse_args()
    cases = [case for case in CASES if args.only is None or case.name in args.only]
    with ExitStack() as stack:

        def enter(made: AbstractContextManager[Subject]) -> Subject:
            subject = stack.enter_context(made)
            _wait_until_it_answers(subject)
            return subject

        ports = stack.enter_context(fakes(_REPLICAS))
        plain = enter(baseline(ports))
        ours = enter(pool(ports))
        subjects = [
            Subject(DIRECT, ports[0]),
            plain,
            ours,
            Subject(POOL_SESSION, ours.port, ours.processes, session=True),
        ]
        series = compare(subjects, cases, rounds=args.rounds, seconds=args.seconds)
    where = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    if args.output == "json":
        print(json.dumps({**where, "series": [asdict(one) for one in series]}, indent=2))
    else:
        print(f"{where['machine']}, {where['date']}, medians of {args.rounds} rounds")
        print(table(series))
    failed = sum(sample.errors for one in series for sample in one.samples)
    return ExitCode.FAILURE if failed else ExitCode.OK


if __name__ == "__main__":
    run_main(main)
