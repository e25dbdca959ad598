"""What training consumes: sampled answers with token ids, log-probabilities and a reward.

A source of rollouts is anything with `collect`. Colocated, it is vLLM's HTTP API with a reward
of ours (`vllm_source`); disaggregated, NeMo Gym samples and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer."""

    #: Rollouts of one group answer the same prompt; their rewards are compared with each other.
    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    #: Log-probability of each token under the weights that sampled it.
    logprobs: tuple[float, ...]
    reward: float


class RolloutSource(Protocol):
    """Where rollouts come from."""

    def collect(self, step: int) -> Sequence[Rollout]:
        """Sample one batch with the weights that are being served."""
        ...


class Reward(Protocol):
    """Scores an answer; higher is better."""

    def score(self, tokens: Sequence[int]) -> float:
        """Return the reward of the answer's tokens."""
        ...
