"""The reward, without anything of Gym."""

from __future__ import annotations

VOWELS = frozenset("aeiouAEIOU")


def vowel_share(text: str) -> float:
    """Return which share of the characters are vowels; an empty answer earns nothing."""
    if not text:
        return 0.0
    return sum(character in VOWELS for character in text) / len(text)
