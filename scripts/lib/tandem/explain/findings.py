"""What is wrong with a run, as rules with a name say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tandem.explain.facts import Facts
from tandem.explain.model import Grouping
from tandem.explain.pods import PodSet, pod_sets

Object = dict[str, Any]
#: An error keeps the run from starting or ends it; a warning is worth knowing.
Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that something breaks: where, what is there, why it matters, what to do."""

    rule: str
    level: Level
    place: str
    what: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What rules look at: the objects in the order of their application, their groups, facts."""

    objects: tuple[Object, ...]
    grouping: Grouping
    facts: Facts

    def pods(self) -> list[PodSet]:
        """Return all pods that KAI is asked to place."""
        return [pods for obj in self.objects for pods in pod_sets(obj) if pods.by_kai]

    def kai_objects(self, *kinds: str) -> list[Object]:
        """Return the objects of some kinds any of whose pods KAI places."""
        return [
            obj
            for obj in self.objects
            if obj["kind"] in kinds and any(pods.by_kai for pods in pod_sets(obj))
        ]


#: Place (object and path) and what is there.
Hit = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A trap: its name never changes, since people search for it."""

    name: str
    level: Level
    reason: str
    fix: str
    check: Callable[[Subject], Iterator[Hit]]

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what it finds."""
        for place, what in self.check(subject):
            yield Finding(self.name, self.level, place, what, self.reason, self.fix)
