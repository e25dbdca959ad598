"""The table of `make bench-pool`: medians, and ratios to the baseline of the same load."""

from __future__ import annotations

from tandem.bench_pool.load import CASES, Sample, Series, table
from tandem.bench_pool.subjects import BASELINE, DIRECT, POOL


def series(subject: str, *samples: tuple[float, float, float], errors: int = 0) -> Series:
    """Return rounds of one load: requests/s, p50 and CPU of each."""
    return Series(
        "1kB@1", subject, [Sample(rps, 0, p50, 9, cpu, 50, 40, errors) for rps, p50, cpu in samples]
    )


def cells(text: str, subject: str) -> list[str]:
    """Return one line of the table, in its words."""
    (line,) = [line for line in text.splitlines() if f" {subject} " in line]
    return line.split()


def test_ratios_are_of_medians_and_what_is_added_is_above_direct() -> None:
    text = table(
        [
            series(DIRECT, (9000, 0.1, 0)),
            series(BASELINE, (100, 0.3, 0.2), (1000, 0.5, 0.2), (7000, 0.7, 0.9)),
            series(POOL, (4000, 0.2, 0.05), (5000, 0.3, 0.06), (9000, 0.2, 0.05), errors=2),
        ]
    )
    assert cells(text, POOL) == [
        "1kB@1", POOL, "5000", "5.00", "0.200", "0.25", "9.0", "0.050", "0.25", "50", "40", "6",
    ]  # fmt: skip
    assert cells(text, BASELINE)[3] == "1.00"
    # No proxy: no CPU of one, no memory, nothing to compare.
    assert cells(text, DIRECT) == ["1kB@1", DIRECT, "9000", "0.100", "9.0", "0"]


def test_a_load_says_what_it_is() -> None:
    for case in CASES:
        words = case.arguments(8000, session=False)
        assert case.name.endswith(f"@{words[words.index('--clients') + 1]}")
        assert ("--stream" in words) == case.name.startswith("sse")
        assert "--session" not in words
        assert "--session" in case.arguments(8000, session=True)
