"""Whether a run can ever fit: in its queues' limits and, when they are known, on the nodes.

Everything else is taken to be gone: what is said not to fit never will. The reverse is no
promise: others' pods, affinities and fragments of nodes are not looked at. A gang is counted
with its minimum, the least with which it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tandem.explain.facts import Facts, over
from tandem.explain.findings import Finding, Level
from tandem.explain.model import Grouping, Placement, PodGroup, SubGroup
from tandem.explain.nodes import Node
from tandem.explain.pods import PodSet
from tandem.explain.quantity import Resources
from tandem.explain.words import words

#: What each of these means, and what to do: the same words in every finding. Those that the API
#: server says too are in `words`.
_WORDS: dict[str, tuple[Level, str, str]] = {
    "over-queue-limit": (
        "error", "A queue never gets more than its limit: the gang stays Pending for ever.",
        "a smaller run, another queue, or a higher limit in the values of charts/rl-platform",
    ),
    "partly-over-queue-limit": (
        "warning", "The gang starts with its minimum, and the rest never gets a place.",
        "replicas within the queue's limit",
    ),
    "too-few-nodes": (
        "error", "Not all of the gang's minimum finds a place, even on an empty cluster.",
        "fewer or smaller pods, or more nodes",
    ),
    "no-node-with-level": (
        "error", "A required level that no node is labelled with has no place for the gang.",
        "label the nodes, or name the label that they have in the Topology",
    ),
    "domain-too-small": (
        "error", "All of it must be placed in one domain of the level, and none is big enough.",
        "a wider level, a preferred placement instead of a required one, or a smaller run",
    ),
}  # fmt: skip


def _finding(rule: str, place: str, what: str) -> Finding:
    if rule not in _WORDS:
        # The API server has the rule as well.
        return Finding(rule, "error", place, what, words(rule).reason, words(rule).fix)
    level, reason, fix = _WORDS[rule]
    return Finding(rule, level, place, what, reason, fix)


def _sum(amounts: Iterable[Resources]) -> Resources:
    return sum(amounts, Resources())


def _limits(groups: Sequence[PodGroup], facts: Facts) -> Iterator[Finding]:
    for queue in facts.queues.values():
        below = [group for group in groups if queue in facts.path(group.queue or "")]
        if not below:
            continue
        place = f"{', '.join(group.source for group in below)} in queue {queue.name}"
        needed = over(_sum(each.root.needed() * each.copies for each in below), queue.limit)
        total = over(_sum(each.root.total() * each.copies for each in below), queue.limit)
        if needed:
            yield _finding("over-queue-limit", place, f"it needs {', '.join(needed)}")
        elif total:
            yield _finding("partly-over-queue-limit", place, f"all of it is {', '.join(total)}")


def _slots(pods: PodSet, nodes: Iterable[Node]) -> int | None:
    """Return how many of such pods empty nodes take; None = any number."""
    demand = pods.demand
    counts = [demand.times_in(node.room) for node in nodes if node.takes(pods)]
    return None if None in counts else sum(count or 0 for count in counts)


def _minimums(node: SubGroup) -> Iterator[tuple[PodSet, int]]:
    """Yield the pods below a node and how many of them are needed, where that is certain."""
    whole = node.min_subgroups is None or node.min_subgroups >= len(node.children)
    for child in node.children if whole else ():
        yield from _minimums(child)
    if not node.children and len(node.pods) == 1:
        yield node.pods[0], min(node.min_members or 0, node.pods[0].count)


def _biggest(nodes: Sequence[Node]) -> str:
    room = _biggest_room(nodes)
    return f"{room.gpu} GPUs, {room.cpu} m CPU and {room.memory} MB"


def _biggest_room(nodes: Sequence[Node]) -> Resources:
    room = Resources()
    for node in nodes:
        room = room.at_least(node.room)
    return room


def _says(demand: Resources) -> str:
    return f"{demand.gpu} GPUs, {demand.cpu} m CPU and {demand.memory} MB"


def _pods_on_nodes(group: PodGroup, nodes: Sequence[Node]) -> Iterator[Finding]:
    needed: dict[str, tuple[PodSet, int]] = {}
    for pods, minimum in _minimums(group.root):
        # Replicas of a replicatedJob are leaves of their own, of equal pods.
        before = needed.get(pods.path + pods.source, (pods, 0))[1]
        needed[pods.path + pods.source] = (pods, before + minimum)
    for pods, minimum in needed.values():
        slots = _slots(pods, nodes)
        place = f"{pods.source} {pods.path}"
        if slots == 0 and minimum:
            usable = [node for node in nodes if node.takes(pods)]
            there = (
                f"the most that a node has is {_biggest(usable)}"
                if usable
                else "no node takes it (selector, taints)"
            )
            what = f"a pod of {pods.role} asks for {_says(pods.demand)}; {there}"
            yield _finding("no-node-for-pod", place, what)
        elif slots is not None and slots < minimum:
            what = f"{minimum} pods of {pods.role} are needed, {slots} go on the nodes"
            yield _finding("too-few-nodes", place, what)


def _most_gpus(groups: Sequence[PodGroup], facts: Facts) -> Iterator[Finding]:
    """Yield pods with more GPUs than any node has, as the platform's values tell."""
    most = facts.gpus_per_node
    for pods in (pods for group in groups for pods in group.root.all_pods):
        asked = pods.demand.gpu
        if most and asked > most:
            what = words("no-node-for-pod").say("gpus", role=pods.role, gpus=asked, most=most)
            yield _finding("no-node-for-pod", f"{pods.source} {pods.path}".strip(), what)


def _topologies(group: PodGroup, facts: Facts) -> Iterator[Finding]:
    if not facts.topologies:
        return  # Unknown: a platform of before had none among its values.
    say = words("unknown-topology").say
    for node, placement in _placements(group):
        levels = facts.topologies.get(placement.topology)
        place = f"{group.source} {node.name}"
        if levels is None:
            there = ", ".join(sorted(facts.topologies)) or "none"
            what = say("topology", topology=placement.topology, topologies=there)
            yield _finding("unknown-topology", place, what)
            continue
        for level in filter(None, (placement.required, placement.preferred)):
            if level not in levels:
                there = ", ".join(levels)
                what = say("level", topology=placement.topology, level=level, levels=there)
                yield _finding("unknown-topology", place, what)


def _placements(group: PodGroup) -> Iterator[tuple[SubGroup, Placement]]:
    for node in group.root.walk():
        if node.placement is not None and node.placement.topology:
            yield node, node.placement


def _domains(group: PodGroup, nodes: Sequence[Node]) -> Iterator[Finding]:
    for node, placement in _placements(group):
        if not placement.required:
            continue
        rooms: dict[str, Resources] = {}
        for each in nodes:
            value = each.labels.get(placement.required)
            if value is not None:
                rooms[value] = rooms.get(value, Resources()) + each.room
        place, needed = f"{group.source} {node.name}", node.needed()
        if not rooms:
            what = f"no node has label {placement.required}"
            yield _finding("no-node-with-level", place, what)
        elif all(over(needed, room) for room in rooms.values()):
            most = max(rooms.values(), key=lambda room: (room.gpu, room.cpu, room.memory))
            what = (
                f"it needs {_says(needed)}; the biggest domain of {placement.required} has "
                f"{_says(most)}"
            )
            yield _finding("domain-too-small", place, what)


def _cluster(groups: Sequence[PodGroup], nodes: Sequence[Node]) -> Iterator[Finding]:
    room = _sum(node.room for node in nodes if not node.unschedulable)
    needed = over(_sum(each.root.needed() * each.copies for each in groups), room)
    if needed:
        yield _finding("too-few-nodes", "the run", f"it needs {', '.join(needed)} of all nodes")


def fit(grouping: Grouping, facts: Facts, nodes: Sequence[Node] | None) -> list[Finding]:
    """Return why a run can never fit.

    Args:
        grouping: Its gangs.
        facts: The queues with their limits; nothing is said of queues that are unknown.
        nodes: None when they are unknown.
    """
    groups = grouping.groups
    found = list(_limits(groups, facts))
    if nodes is None:
        found += _most_gpus(groups, facts)
    for group in groups:
        found += _topologies(group, facts)
        if nodes is not None:
            found += _pods_on_nodes(group, nodes)
            found += _domains(group, nodes)
    if nodes is not None and not any(
        each.rule in ("no-node-for-pod", "too-few-nodes") for each in found
    ):
        found += _cluster(groups, nodes)
    return found
