"""Loads, their samples over several rounds, and the table of the medians."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.bench_pool.subjects import BASELINE, DIRECT, Subject, program, started
from tandem.console import console

_EVENTS = 100


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
    Case("sse@64", 64, stream=True),
    # The last: what it has taken in memory stays for a while.
    Case("2MB@64", 64, 2_000_000),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One case of one subject in one round; `carrier_mib` is of what carries the requests."""

    requests_per_second: float
    events_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_request: float
    rss_mib: float
    carrier_mib: float
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


def measure(subject: Subject, case: Case, seconds: float, warmup: float) -> Sample:
    """Drive one subject with one load.

    Raises:
        UserError: The load generator failed; failed requests are in the sample.
    """
    words = [
        program("pool-load"), *case.arguments(subject.port, session=subject.session),
        "--seconds", str(seconds), "--warmup", str(warmup),
    ]  # fmt: skip
    with started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as (_, line):
        line()
        before = subject.cpu()
        said = json.loads(line())
        used, rss, carrier = subject.cpu() - before, subject.rss(), subject.carrier_rss()
    return Sample(
        said["requests_per_second"],
        said["events_per_second"],
        said["p50_ms"],
        said["p99_ms"],
        1000 * used / max(1, said["requests"]),
        rss,
        carrier,
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
    """Measure every case in rounds, the subjects one after the other in each."""
    found = {(c.name, s.name): Series(c.name, s.name) for c in cases for s in subjects}
    for case in cases:
        for number in range(rounds):
            for subject in subjects:
                sample = measure(subject, case, seconds, warmup=0.5)
                found[case.name, subject.name].samples.append(sample)
                note(
                    f"round {number + 1}/{rounds} {case.name} {subject.name}: "
                    f"{sample.requests_per_second:.0f}/s {sample.cpu_ms_per_request:.3f} ms"
                )
    return list(found.values())


def table(series: Sequence[Series]) -> str:
    """Return the medians as text, with the ratio to the baseline beside those that have one.

    The second number of memory is of what carries the requests: Envoy, without the manager and
    the supervisor.
    """
    medians = {(one.case, one.subject): one for one in series}
    head = (
        f"{'load':<9}{'subject':<23}{'requests/s':>12}{'x':>6}{'events/s':>10}{'x':>6}"
        f"{'p50 ms':>9}{'added x':>8}{'p99 ms':>9}{'CPU ms':>9}{'x':>6}"
        f"{'RSS MiB':>9}{'of it':>7}{'failed':>8}"
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
            f"{format(one.median('carrier_mib'), '.0f') if proxied else '':>7}"
            f"{sum(sample.errors for sample in one.samples):>8}"
        )
    return "\n".join(lines)
