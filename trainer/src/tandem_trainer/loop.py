"""The training loop, without any notion of where its parts run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from statistics import fmean

from tandem_trainer.advantages import group_advantages
from tandem_trainer.errors import TrainerError
from tandem_trainer.learner import Learner
from tandem_trainer.metrics import MetricsSink, StepMetrics
from tandem_trainer.refit import RefitClient
from tandem_trainer.rollouts import RolloutSource

#: Largest mean distance between the server's and the learner's log-probabilities. Both
#: compute in float32 and differ by 4e-7; weights that are one step old differ by 0.4.
MAX_LOGPROB_GAP = 1e-3


class TrainingStep:
    """One step: sample, score, learn, save, refit."""

    def __init__(
        self, source: RolloutSource, learner: Learner, refit: RefitClient, weights: Path
    ) -> None:
        """Take the parts, and the folder that learner and server share."""
        self._source = source
        self._learner = learner
        self._refit = refit
        self._weights = weights
        self._previous: Path | None = None

    def run(self, step: int) -> StepMetrics:
        """Run one step.

        Raises:
            TrainerError: A part failed, or the server samples with other weights than the
                learner has.
        """
        started = time.monotonic()
        rollouts = self._source.collect(step)
        report = self._learner.update(rollouts, group_advantages(rollouts))
        if report.logprob_gap > MAX_LOGPROB_GAP:
            raise TrainerError(
                f"step {step}: log-probabilities of vLLM and learner differ by "
                f"{report.logprob_gap:.4f} a token: they have different weights"
            )
        version = f"step-{step}"
        folder = self._weights / version
        self._learner.save(folder)
        self._refit.apply(folder, version)
        if self._previous is not None:
            shutil.rmtree(self._previous, ignore_errors=True)
        self._previous = folder
        return StepMetrics(
            step=step,
            mean_reward=fmean(rollout.reward for rollout in rollouts),
            weight_version=version,
            seconds=time.monotonic() - started,
            loss=report.loss,
            logprob_gap=report.logprob_gap,
            tokens=sum(len(rollout.tokens) for rollout in rollouts),
        )


def train(run_step: Callable[[int], StepMetrics], sink: MetricsSink, steps: int) -> list[float]:
    """Run all steps and return the mean reward of each.

    Raises:
        TrainerError: A step failed, or a reward is not a number.
    """
    rewards: list[float] = []
    for step in range(1, steps + 1):
        metrics = run_step(step)
        sink.write(metrics)
        if not isfinite(metrics.mean_reward):
            raise TrainerError(f"step {step}: the mean reward is {metrics.mean_reward}")
        rewards.append(metrics.mean_reward)
    return rewards
