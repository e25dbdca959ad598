"""Traps of KAI's queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tandem.explain.facts import UNLIMITED
from tandem.explain.findings import Hit, Rule, Subject
from tandem.explain.model import PodGroup
from tandem.explain.pods import pod_sets
from tandem.explain.words import words
from tandem.policy import QUEUE_LABEL, RUN_LABEL, name_of


def _place(group: PodGroup) -> str:
    where = "spec.queue" if group.external else f"metadata.labels[{QUEUE_LABEL}]"
    return f"{group.source} {where}"


def _missing(subject: Subject) -> Iterator[Hit]:
    for group in subject.grouping.groups:
        if not group.queue:
            yield _place(group), words("queue-missing").say("none")


def _unknown(subject: Subject) -> Iterator[Hit]:
    queues = subject.facts.queues
    for group in subject.grouping.groups:
        if queues and group.queue and group.queue not in queues:
            there = ", ".join(subject.facts.leaves)
            say = words("queue-unknown").say
            yield _place(group), say("unknown", queue=group.queue, leaves=there)


def _not_a_leaf(subject: Subject) -> Iterator[Hit]:
    facts = subject.facts
    there = ", ".join(facts.leaves)
    for group in subject.grouping.groups:
        name = group.queue or ""
        if name in facts.queues and name not in facts.leaves:
            below = sorted(q.name for q in facts.queues.values() if q.parent == name)
            say, case = words("queue-not-a-leaf").say, "parent" if below else "root"
            yield _place(group), say(case, queue=name, below=", ".join(below), leaves=there)


def _not_of_namespace(subject: Subject) -> Iterator[Hit]:
    facts, say = subject.facts, words("queue-not-of-namespace").say
    for group in subject.grouping.groups:
        name, there = group.queue or "", facts.namespaces.get(group.namespace)
        if there is not None and name in facts.leaves and name not in there:
            theirs = ", ".join(there)
            what = say("foreign", queue=name, namespace=group.namespace, queues=theirs)
            yield _place(group), what


def _no_run(subject: Subject) -> Iterator[Hit]:
    for obj in subject.objects:
        found = pod_sets(obj)
        if found and not any(pods.run_id for pods in found):
            yield (
                f"{name_of(obj)} metadata.labels[{RUN_LABEL}]",
                words("run-id-missing").say("none"),
            )


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


def _rule(name: str, check: Callable[[Subject], Iterator[Hit]]) -> Rule:
    """Return a rule that the API server has as well."""
    return Rule(name, "error", words(name).reason, words(name).fix, check)


RULES = (
    _rule("run-id-missing", _no_run),
    _rule("queue-missing", _missing),
    _rule("queue-unknown", _unknown),
    _rule("queue-not-a-leaf", _not_a_leaf),
    _rule("queue-not-of-namespace", _not_of_namespace),
    Rule(
        "non-preemptible-beyond-quota", "error",
        "Pods that may not be pushed out (priority of 100 or more) run within the quota of "
        "their queue only; with a quota of 0 they never start.",
        "a priority class below 100, label kai.scheduler/preemptibility: preemptible, or a queue "
        "with quota",
        _beyond_quota,
    ),
)  # fmt: skip
