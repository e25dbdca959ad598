"""What Kueue will let in of a run, and whether it is one: a model of Kueue 0.17, not Kueue.

Source: `kueue.x-k8s.io/queue-name` of an object that Kueue knows (RayJob, JobSet, RayCluster)
makes it one Workload, with all of its pods; of pods that name a group, the group; of other pods,
each pod by itself. KAI's rules are not looked at: none of them holds here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.explain.pods import Object, PodSet, labels_of, pod_sets
from tandem.explain.quantity import Resources
from tandem.policy import KUEUE_COUNT, KUEUE_GROUP, KUEUE_PRIORITY, KUEUE_QUEUE, name_of

#: Kinds that Kueue suspends and lets in as a whole (charts/values/kueue.yaml).
WHOLE = ("RayJob", "JobSet", "RayCluster")


@dataclass(frozen=True, slots=True)
class Unit:
    """What Kueue lets in at once, or not at all: a Workload.

    Attributes:
        name: `RayJob/run`, or `group disagg`.
        queue: Its LocalQueue.
        priority: Its WorkloadPriorityClass, "" without one.
        pods: Those that start with it.
        wanted: How many pods a group says it has; None where Kueue counts by itself.
        comes_back: Whether it starts anew by itself after a preemption.
    """

    name: str
    queue: str
    priority: str
    pods: tuple[PodSet, ...]
    wanted: int | None = None
    comes_back: bool = True

    @property
    def count(self) -> int:
        """How many pods it has."""
        return sum(pods.count for pods in self.pods)

    @property
    def demand(self) -> Resources:
        """What all of them ask for."""
        return sum((pods.demand * pods.count for pods in self.pods), Resources())


def _group(name: str, members: list[PodSet]) -> Unit:
    counts = {pods.annotation(KUEUE_COUNT) or "" for pods in members}
    wanted = next(iter(counts)) if len(counts) == 1 else ""
    first = members[0]
    return Unit(
        f"group {name}", first.label(KUEUE_QUEUE) or "", first.label(KUEUE_PRIORITY) or "",
        tuple(members), int(wanted) if wanted.isdigit() else -1, comes_back=False,
    )  # fmt: skip


def units_of(objects: Iterable[Object]) -> list[Unit]:
    """Return what Kueue makes of rendered objects; empty for a run in no queue of Kueue's."""
    found: list[Unit] = []
    groups: dict[str, list[PodSet]] = {}
    for obj in objects:
        labels, sets = labels_of(obj["metadata"]), pod_sets(obj)
        if obj["kind"] in WHOLE and labels.get(KUEUE_QUEUE):
            queue, priority = labels[KUEUE_QUEUE], labels.get(KUEUE_PRIORITY, "")
            found.append(Unit(name_of(obj), queue, priority, tuple(sets)))
            continue
        for pods in sets:
            if not pods.label(KUEUE_QUEUE):
                continue
            if group := pods.label(KUEUE_GROUP):
                groups.setdefault(group, []).append(pods)
                continue
            found.append(
                Unit(
                    f"each pod of {pods.where}",
                    pods.label(KUEUE_QUEUE) or "",
                    pods.label(KUEUE_PRIORITY) or "",
                    (pods,),
                    comes_back=False,
                )
            )
    return found + [_group(name, members) for name, members in groups.items()]


def strays_of(objects: Iterable[Object]) -> Iterator[PodSet]:
    """Yield the pods with GPUs of a run in a queue that are in no queue themselves."""
    listed = list(objects)
    queued = {id(pods.spec) for unit in units_of(listed) for pods in unit.pods}
    if queued:
        for obj in listed:
            for pods in pod_sets(obj):
                if id(pods.spec) not in queued and pods.demand.gpu * pods.count:
                    yield pods
