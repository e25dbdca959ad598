"""Traps of Kueue: a run that is let in by halves, never, or without being asked."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.explain.facts import over
from tandem.explain.findings import Hit, Rule, Subject
from tandem.explain.kueue import strays_of, units_of
from tandem.policy import KUEUE_COUNT, KUEUE_GROUP, KUEUE_QUEUE


def _unknown(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    for unit in units_of(subject.objects):
        if facts.queues and unit.queue not in facts.leaves:
            there = ", ".join(facts.leaves)
            yield f"{unit.name} {KUEUE_QUEUE}", f"no leaf queue {unit.queue}; there are: {there}"


def _halves(subject: Subject) -> Iterator[Hit]:
    units = units_of(subject.objects)
    if len(units) > 1:
        yield "the run", f"{len(units)} Workloads: {', '.join(unit.name for unit in units)}"
    for pods in strays_of(subject.objects):
        yield f"{pods.source} {pods.path}", f"{pods.where} asks for GPUs and is in no queue"


def _miscounted(subject: Subject) -> Iterator[Hit]:
    for unit in units_of(subject.objects):
        if unit.wanted is not None and unit.wanted != unit.count:
            says = unit.wanted if unit.wanted >= 0 else "no number, or several"
            yield f"{unit.name} {KUEUE_COUNT}", f"its pods are {unit.count}, and they say {says}"


def _over_limit(subject: Subject) -> Iterator[Hit]:
    for unit in units_of(subject.objects):
        for queue in subject.facts.path(unit.queue):
            for amount in over(unit.demand, queue.limit):
                yield f"{unit.name} in queue {queue.name}", f"it needs {amount}"


RULES = (
    Rule(
        "kueue-queue-unknown", "error",
        "Kueue holds a run back until its queue is there: for ever.",
        "name a leaf queue of the values of charts/rl-platform",
        _unknown,
    ),
    Rule(
        "kueue-not-one-unit", "error",
        "Kueue lets Workloads in one by one: a part of the run can hold its GPUs while the rest "
        "queues.",
        f"component scheduler-kueue/rayclusters: all pods of the run in one group ({KUEUE_GROUP})",
        _halves,
    ),
    Rule(
        "kueue-group-count", "error",
        "With fewer pods than they say Kueue waits for ever, with more it deletes the last ones.",
        "make run SCHEDULER=kueue counts them; else write the number on all of them",
        _miscounted,
    ),
    Rule(
        "kueue-over-limit", "error",
        "A queue never gets more than its limit: the run is never let in.",
        "a smaller run, another queue, or a higher limit in the values of charts/rl-platform",
        _over_limit,
    ),
)  # fmt: skip
