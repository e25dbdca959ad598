"""Group-normalised advantages (GRPO): an answer is judged against its siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite
from statistics import fmean, pstdev

from tandem_trainer.errors import TrainerError
from tandem_trainer.rollouts import Rollout

#: Keeps a group whose rewards are nearly equal from being blown up.
EPSILON = 1e-4


def group_advantages(rollouts: Sequence[Rollout]) -> list[float]:
    """Return (reward - mean of its group) / (standard deviation of its group) per rollout.

    A group whose rewards are all equal teaches nothing: its advantages are 0.

    Raises:
        TrainerError: A reward is not a number; training on it would destroy the weights.
    """
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if not isfinite(rollout.reward):
            raise TrainerError(f"reward {rollout.reward} in group {rollout.group}: not a number")
        groups[rollout.group].append(rollout.reward)
    scale = {group: (fmean(rewards), pstdev(rewards)) for group, rewards in groups.items()}
    return [
        (rollout.reward - scale[rollout.group][0]) / (scale[rollout.group][1] + EPSILON)
        for rollout in rollouts
    ]
