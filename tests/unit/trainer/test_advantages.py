"""Group-normalised advantages."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_trainer.advantages import group_advantages
from tandem_trainer.errors import TrainerError
from tandem_trainer.rollouts import Rollout


def _rollout(group: int, reward: float) -> Rollout:
    return Rollout(group, (1,), (2,), (-1.0,), reward)


def test_an_answer_is_judged_against_its_own_group_only() -> None:
    # The worse answer of the good group loses, although it beats the whole other group.
    advantages = group_advantages([_rollout(*r) for r in [(0, 0.9), (1, 0.1), (0, 0.7), (1, 0.3)]])
    assert [advantage > 0 for advantage in advantages] == [True, False, False, True]


def test_a_group_without_differences_teaches_nothing() -> None:
    assert group_advantages([_rollout(0, 0.5), _rollout(0, 0.5)]) == [0.0, 0.0]


def test_no_rollouts_give_no_advantages() -> None:
    assert group_advantages([]) == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_ends_the_run(reward: float) -> None:
    with pytest.raises(TrainerError, match="group 3"):
        group_advantages([_rollout(0, 1.0), _rollout(3, reward)])


@given(st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=2, max_size=16))
def test_a_group_has_mean_nought_and_deviation_one(rewards: list[float]) -> None:
    advantages = group_advantages([_rollout(0, reward) for reward in rewards])
    assert fmean(advantages) == pytest.approx(0, abs=1e-9)
    if pstdev(rewards) > 0:
        assert pstdev(advantages) == pytest.approx(1, rel=0.05)
    # Order is kept: a better answer never gets the smaller advantage.
    ranked = sorted(zip(rewards, advantages, strict=True))
    assert [a for _, a in ranked] == sorted(advantages)
