"""The reward of the demonstration: share of tokens of one class."""

from __future__ import annotations

import pytest

from tandem_trainer.rewards import VOWEL_WORD, TokenClassReward, tokens_matching

VOCABULARY = {"a": 0, "Ġis": 1, "the": 2, "Ġthe": 3, "A": 4, "0": 5, "e1": 6, "Ġ": 7}


def test_words_that_begin_with_a_vowel_with_or_without_a_space() -> None:
    assert tokens_matching(VOCABULARY, VOWEL_WORD) == {0, 1}


@pytest.mark.parametrize("pattern", ["zzz", ".*"])
def test_a_class_of_none_or_all_teaches_nothing_and_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="nothing to learn"):
        tokens_matching(VOCABULARY, pattern)


@pytest.mark.parametrize(
    ("tokens", "reward"), [([0, 1], 1.0), ([0, 2, 3, 1], 0.5), ([2], 0.0), ([], 0.0)]
)
def test_the_reward_is_the_share(tokens: list[int], reward: float) -> None:
    assert TokenClassReward(frozenset({0, 1})).score(tokens) == reward
