"""What a run reports: one record a step, a verdict at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol, TextIO

#: Begin of the lines on stdout that programs read.
LINE_PREFIX = "tandem-metrics "
#: Steps at each end of a run whose mean reward is compared.
WINDOW = 5


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step of training."""

    step: int
    mean_reward: float
    #: The version that vLLM reports after this step's refit.
    weight_version: str
    seconds: float
    loss: float
    #: Mean distance between the log-probabilities that vLLM and the learner give the same
    #: tokens: near 0 as long as vLLM serves what the learner has.
    logprob_gap: float
    tokens: int


class MetricsSink(Protocol):
    """Where the records of a run go."""

    def write(self, metrics: StepMetrics) -> None:
        """Take the record of one step."""
        ...


class RunFiles:
    """Writes `metrics.jsonl` in the output folder and a line on stdout for each step."""

    def __init__(self, folder: Path, out: TextIO = sys.stdout) -> None:
        """Begin an empty file.

        Raises:
            OSError: The folder cannot be made or written to.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "metrics.jsonl"
        self._path.write_text("", encoding="utf-8")
        self._out = out

    def write(self, metrics: StepMetrics) -> None:
        """Append the record, at once: a run that is killed leaves what it had."""
        record = {
            # Four digits that count: enough for a person, and small gaps stay visible.
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in asdict(metrics).items()
        }
        line = json.dumps(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._out.write(LINE_PREFIX + line + "\n")
        self._out.flush()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether training has worked."""

    first: float
    last: float
    gain: float
    wanted: float

    @property
    def passed(self) -> bool:
        """Whether the mean reward has risen enough."""
        return self.gain >= self.wanted

    def __str__(self) -> str:
        """Return the verdict as a sentence."""
        word = "passed" if self.passed else "failed"
        return (
            f"{word}: mean reward {self.first:.3f} -> {self.last:.3f}, "
            f"{self.gain:.1f} times as high (wanted: {self.wanted:g})"
        )


def judge(rewards: Sequence[float], wanted: float) -> Verdict:
    """Compare the mean reward of the last steps with that of the first ones.

    A start of exactly 0 counts as half of what one run of this size can show, so that the
    gain stays a number.

    Raises:
        ValueError: There are fewer than two steps.
    """
    if len(rewards) < 2:  # noqa: PLR2004 - a first and a last
        raise ValueError("a verdict needs at least two steps")
    window = min(WINDOW, len(rewards) // 2)
    first, last = fmean(rewards[:window]), fmean(rewards[-window:])
    return Verdict(first, last, last / max(first, 1e-3), wanted)
