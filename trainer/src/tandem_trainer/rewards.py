"""A reward that is simple to see through: the share of tokens that are of one class."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A word or its beginning that starts with a vowel. `Ġ` is a byte-level tokenizer's space.
VOWEL_WORD = r"Ġ?[aeiou][a-z]*"


def tokens_matching(vocabulary: Mapping[str, int], pattern: str) -> frozenset[int]:
    """Return the ids of the tokens whose whole text matches a pattern.

    Raises:
        ValueError: None does or all do: such a reward could teach nothing.
    """
    members = frozenset(i for token, i in vocabulary.items() if re.fullmatch(pattern, token))
    if not members or len(members) == len(vocabulary):
        raise ValueError(
            f"{pattern!r} matches {len(members)} of {len(vocabulary)} tokens: nothing to learn"
        )
    return members


@dataclass(frozen=True, slots=True)
class TokenClassReward:
    """Share of an answer's tokens that belong to a class, between 0 and 1."""

    members: frozenset[int]

    def score(self, tokens: Sequence[int]) -> float:
        """Return the share; an empty answer earns nothing."""
        if not tokens:
            return 0.0
        return sum(token in self.members for token in tokens) / len(tokens)
