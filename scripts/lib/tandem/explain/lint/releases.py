"""Traps of particular versions of KAI and its chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tandem.explain.findings import Hit, Rule, Subject

_NEVER = "-1s"
#: Values of KAI's chart that have another name from a version on.
_RENAMED = (
    (
        (0, 16, 0),
        ("admission", "gpuPodRuntimeClassName"),
        ("admission", "gpuFractionRuntimeClassName"),
    ),
)


def _evicts_after_success(version: tuple[int, int, int]) -> bool:
    return (0, 16, 2) <= version <= (0, 16, 8) or version == (0, 17, 0)


def _eviction(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if not facts.kai or not _evicts_after_success(facts.kai_version):
        return
    if facts.scheduler_staleness == _NEVER:
        return
    for group in subject.grouping.groups:
        # 0.16 does not know a period of the gang's own.
        own = facts.kai_version >= (0, 17, 0) and group.staleness == _NEVER
        if sum(pods.count for pods in group.pods) > 1 and not own:
            yield (
                f"{group.source} under KAI {facts.kai}",
                "its first pod to succeed ends the others",
            )


def _has(values: Any, path: tuple[str, ...]) -> bool:
    for word in path:
        if not isinstance(values, dict) or word not in values:
            return False
        values = values[word]
    return True


def _renamed(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    if not facts.kai:
        return
    for place, values in facts.chart_values.items():
        for since, before, after in _RENAMED:
            renamed = facts.kai_version >= since
            wrong, right = (before, after) if renamed else (after, before)
            if _has(values, wrong):
                yield f"{place} {'.'.join(wrong)}", f"KAI {facts.kai} reads {'.'.join(right)}"


RULES = (
    Rule(
        "evicted-after-first-success", "error",
        "KAI 0.16.2 to 0.16.8 and 0.17.0 do not count pods that have succeeded: a minute later "
        "the gang is below its minimum, and the others are evicted.",
        'KAI 0.17.1; or args of the SchedulingShard: default-staleness-grace-period: "-1s" '
        '(0.17: annotation kai.scheduler/staleness-grace-period: "-1s" as well)',
        _eviction,
    ),
    Rule(
        "chart-value-renamed", "error",
        "The chart ignores a value that it does not know, without a word.",
        "use the name that the pinned version reads",
        _renamed,
    ),
)  # fmt: skip
