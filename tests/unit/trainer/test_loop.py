"""The loop around the parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.learner import UpdateReport
from tandem_trainer.loop import MAX_LOGPROB_GAP, TrainingStep, train
from tandem_trainer.metrics import StepMetrics
from tandem_trainer.refit import RefitClient
from tandem_trainer.rollouts import Rollout


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.steps: list[StepMetrics] = []

    def write(self, metrics: StepMetrics) -> None:
        self.steps.append(metrics)


class FixedSource:
    """Always the same two rollouts."""

    def collect(self, step: int) -> list[Rollout]:
        del step
        return [Rollout(0, (1,), (2, 3), (-1.0, -1.0), reward) for reward in (0.25, 0.75)]


class RecordingLearner:
    """Learns nothing; says what gap it is told to say, and writes a file as weights."""

    def __init__(self, gap: float = 0.0) -> None:
        self.gap = gap
        self.advantages: list[float] = []

    def update(self, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> UpdateReport:
        assert len(rollouts) == len(advantages)
        self.advantages = list(advantages)
        return UpdateReport(-0.5, self.gap)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"w")


class RecordingRefit(RefitClient):
    """Remembers what the server would have loaded."""

    def __init__(self) -> None:
        super().__init__(JsonApi("http://127.0.0.1:9"))
        self.loaded: list[str] = []

    def apply(self, weights: Path, version: str) -> str:
        assert (weights / "model.safetensors").is_file()
        self.loaded.append(version)
        return version


def test_a_step_samples_learns_and_refits_and_keeps_only_the_served_weights(tmp_path: Path) -> None:
    learner, refit = RecordingLearner(), RecordingRefit()
    step = TrainingStep(FixedSource(), learner, refit, tmp_path)
    first, second = step.run(1), step.run(2)
    assert (first.mean_reward, first.tokens, first.weight_version) == (0.5, 4, "step-1")
    assert second.weight_version == "step-2"
    assert learner.advantages[0] < 0 < learner.advantages[1]
    assert refit.loaded == ["step-1", "step-2"]
    # Weights lie in memory: the old ones have to go.
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_server_with_other_weights_than_the_learner_ends_the_run(tmp_path: Path) -> None:
    refit = RecordingRefit()
    step = TrainingStep(FixedSource(), RecordingLearner(MAX_LOGPROB_GAP * 2), refit, tmp_path)
    with pytest.raises(TrainerError, match="different weights"):
        step.run(1)
    assert refit.loaded == []


def _metrics(step: int, reward: float) -> StepMetrics:
    return StepMetrics(step, reward, f"step-{step}", 0.1, 0.0, 0.0, 1)


def test_a_reward_that_is_no_number_ends_the_run_after_it_was_recorded() -> None:
    sink = Kept()
    with pytest.raises(TrainerError, match="step 2: the mean reward is nan"):
        train(lambda n: _metrics(n, 0.5 if n == 1 else float("nan")), sink, 5)
    assert [m.step for m in sink.steps] == [1, 2]


def test_every_step_is_recorded_in_order() -> None:
    sink = Kept()
    assert train(lambda n: _metrics(n, n / 10), sink, 3) == [0.1, 0.2, 0.3]
    assert [m.step for m in sink.steps] == [1, 2, 3]
