"""Traps of KAI's queues."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.explain.facts import UNLIMITED
from tandem.explain.findings import Hit, Rule, Subject
from tandem.explain.model import PodGroup
from tandem.policy import QUEUE_LABEL


def _place(group: PodGroup) -> str:
    where = "spec.queue" if group.external else f"metadata.labels[{QUEUE_LABEL}]"
    return f"{group.source} {where}"


def _missing(subject: Subject) -> Iterator[Hit]:
    for group in subject.grouping.groups:
        if not group.queue:
            yield _place(group), "no queue is named"


def _unknown(subject: Subject) -> Iterator[Hit]:
    queues = subject.facts.queues
    for group in subject.grouping.groups:
        if queues and group.queue and group.queue not in queues:
            there = ", ".join(subject.facts.leaves)
            yield _place(group), f"no queue {group.queue}; leaf queues: {there}"


def _not_a_leaf(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    for group in subject.grouping.groups:
        name = group.queue or ""
        if name in facts.queues and name not in facts.leaves:
            below = sorted(q.name for q in facts.queues.values() if q.parent == name)
            what = f"has others below it: {', '.join(below)}" if below else "has no parent"
            yield _place(group), f"queue {name} {what}; leaf queues: {', '.join(facts.leaves)}"


def _beyond_quota(subject: Subject) -> Iterator[Hit]:
    for group in subject.grouping.groups:
        queue = subject.facts.queues.get(group.queue or "")
        if queue is None or group.preemptible:
            continue
        needed, quota = group.root.needed(), queue.quota
        for kind, unit, asked, given in (
            ("GPUs", "", needed.gpu, quota.gpu), ("CPU", " m", needed.cpu, quota.cpu),
            ("memory", " MB", needed.memory, quota.memory),
        ):  # fmt: skip
            if given != UNLIMITED and asked > given:
                what = f"needs {asked}{unit} {kind}, and the quota of {queue.name} is {given}{unit}"
                yield _place(group), what


RULES = (
    Rule(
        "queue-missing", "error",
        "KAI puts such pods into queue default-queue, which the platform does not have.",
        f"label {QUEUE_LABEL} on the object and its pods (component gang-kai)",
        _missing,
    ),
    Rule(
        "queue-unknown", "error",
        "A run in a queue that is not there stays Pending for ever.",
        "name a leaf queue, or add it to the values of charts/rl-platform",
        _unknown,
    ),
    Rule(
        "queue-not-a-leaf", "error",
        "KAI places no pods of a queue that has others below it or none above: Pending for ever.",
        "name a leaf queue",
        _not_a_leaf,
    ),
    Rule(
        "non-preemptible-beyond-quota", "error",
        "Pods that may not be pushed out (priority of 100 or more) run within the quota of "
        "their queue only; with a quota of 0 they never start.",
        "a priority class below 100, label kai.scheduler/preemptibility: preemptible, or a queue "
        "with quota",
        _beyond_quota,
    ),
)  # fmt: skip
