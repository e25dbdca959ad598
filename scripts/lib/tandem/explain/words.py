"""What is wrong with a run, in the words that the API server refuses it with as well.

They are written once, in a file of charts/rl-platform, of which the chart makes its admission
policy: somebody who reads one of both finds the same in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tandem.paths import ROOT
from tandem.yamls import load_all

FILE = ROOT / "charts" / "rl-platform" / "files" / "faults.yaml"


@dataclass(frozen=True, slots=True)
class Words:
    """Words of a rule.

    Attributes:
        what: What is there, by case; words in braces are to be filled in.
        reason: Why it matters.
        fix: What to do.
    """

    what: Mapping[str, str]
    reason: str
    fix: str

    def say(self, case: str, **filled: object) -> str:
        """Return what is there.

        Raises:
            KeyError: There is no such case, or a word of it is not filled in.
        """
        return self.what[case].format(**filled)


@cache
def _all() -> dict[str, Words]:
    [rules] = load_all(FILE.read_text(encoding="utf-8"))
    return {
        name: Words(words["what"], words["reason"], words["fix"]) for name, words in rules.items()
    }


def rules() -> list[str]:
    """Return the names of the rules that have their words here."""
    return list(_all())


def words(rule: str) -> Words:
    """Return the words of a rule.

    Raises:
        KeyError: It has none here.
    """
    return _all()[rule]
