"""What the cluster offers to runs: queues, priorities, topologies, which KAI.

Read from values of charts/rl-platform or from the objects that the chart makes, whichever a
file holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.explain.quantity import Resources

Object = dict[str, Any]

UNLIMITED = -1
_KINDS = ("gpu", "cpu", "memory")
_POLICY = "ValidatingAdmissionPolicy"
#: On the chart's admission policy: what it holds namespaces to, and the GPUs of the largest node.
_QUEUES_ANNOTATION = "tandem.dev/queues"
_GPUS_ANNOTATION = "tandem.dev/gpus-per-node"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue; amounts are devices, millicores and 10^6 bytes, -1 without a limit."""

    name: str
    parent: str | None
    quota: Resources
    limit: Resources


def over(asked: Resources, limit: Resources) -> list[str]:
    """Return what is above a limit, in words."""
    kinds = (
        ("GPUs", asked.gpu, limit.gpu), ("m CPU", asked.cpu, limit.cpu),
        ("MB memory", asked.memory, limit.memory),
    )  # fmt: skip
    return [
        f"{wanted} of {there} {unit}" for unit, wanted, there in kinds if UNLIMITED < there < wanted
    ]


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a report needs to know beside the objects.

    Attributes:
        queues: By name; empty when the cluster's are unknown.
        priorities: Values of PriorityClasses by name, without KAI's own.
        topologies: Labels of nodes by Topology, from the widest level to the narrowest; empty
            when the cluster's are unknown.
        namespaces: The leaves that a namespace may name, where the API server holds it to them.
        gpus_per_node: GPUs of the largest node; 0 when unknown.
        kai: Version of KAI, such as `v0.17.1`.
        chart_values: Values given to KAI's chart, by the file that holds them.
        scheduler_staleness: Staleness grace period of the scheduler, when the platform sets one.
    """

    queues: Mapping[str, Queue] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    namespaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus_per_node: int = 0
    kai: str = ""
    chart_values: Mapping[str, Object] = field(default_factory=dict)
    scheduler_staleness: str | None = None

    @property
    def leaves(self) -> list[str]:
        """The queues that take pods."""
        parents = {queue.parent for queue in self.queues.values()}
        return sorted(
            name for name, queue in self.queues.items() if queue.parent and name not in parents
        )

    def path(self, name: str) -> list[Queue]:
        """Return a queue and those above it, itself first; empty for an unknown one."""
        found: list[Queue] = []
        while (queue := self.queues.get(name)) is not None and queue not in found:
            found.append(queue)
            name = queue.parent or ""
        return found

    @property
    def kai_version(self) -> tuple[int, int, int]:
        """The version as numbers.

        Raises:
            ValueError: It is none.
        """
        return version_of(self.kai)


def version_of(text: str) -> tuple[int, int, int]:
    """Return a version such as `v0.17.1` as numbers.

    Raises:
        ValueError: It is none.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no version such as v0.17.1")
    return int(match[1]), int(match[2]), int(match[3])


def _amounts(table: Mapping[str, Any]) -> Resources:
    # What is not written is not checked: only the cluster knows what it makes of it.
    gpu, cpu, memory = (int(table.get(kind, UNLIMITED)) for kind in _KINDS)
    return Resources(gpu, cpu, memory)


def _queues_of_values(queues: Object) -> Iterator[Queue]:
    for each in queues.get("tree") or []:
        yield Queue(
            each["name"], each.get("parent"),
            _amounts(each.get("quota") or {}), _amounts(each.get("limit") or {}),
        )  # fmt: skip


def _lists(namespaces: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(queues) for name, queues in namespaces.items()}


def _of_values(values: Object) -> Facts:
    topologies, queues = values.get("topologies") or {}, values.get("queues") or {}
    # As in the chart, admission is on unless somebody says otherwise.
    held = (values.get("admission") or {}).get("enabled", True)
    named = "namespace" in values and "runs" in queues
    runs = {values["namespace"]: queues["runs"]} if named else {}
    return Facts(
        queues={each.name: each for each in _queues_of_values(queues)},
        priorities={
            each["name"]: int(each["value"]) for each in values.get("priorityClasses") or []
        },
        topologies={
            name: tuple(each.get("levels") or ())
            for name, each in topologies.items()
            if each.get("enabled", True)
        },
        namespaces=_lists({**runs, **(queues.get("namespaces") or {})}) if held else {},
        gpus_per_node=int((values.get("limits") or {}).get("gpusPerNode", 0)),
    )


def _queue_of(obj: Object) -> Queue:
    spec = obj.get("spec") or {}
    resources = spec.get("resources") or {}
    quota, limit = (
        _amounts({kind: each[what] for kind, each in resources.items() if what in each})
        for what in ("quota", "limit")
    )
    return Queue(obj["metadata"]["name"], spec.get("parentQueue"), quota, limit)


def _of_objects(objects: list[Object]) -> Facts:
    def named(kind: str) -> Iterator[tuple[str, Object]]:
        return ((obj["metadata"]["name"], obj) for obj in objects if obj.get("kind") == kind)

    shards = (obj.get("spec") or {} for _, obj in named("SchedulingShard"))
    notes = [obj["metadata"].get("annotations") or {} for _, obj in named(_POLICY)]
    held = next((each for each in notes if _QUEUES_ANNOTATION in each), {})
    graces = [(spec.get("args") or {}).get("default-staleness-grace-period") for spec in shards]
    return Facts(
        queues={name: _queue_of(obj) for name, obj in named("Queue")},
        priorities={name: int(obj["value"]) for name, obj in named("PriorityClass")},
        topologies={
            name: tuple(level["nodeLabel"] for level in obj["spec"]["levels"])
            for name, obj in named("Topology")
        },
        namespaces=_lists(json.loads(held.get(_QUEUES_ANNOTATION, "{}"))),
        gpus_per_node=int(held.get(_GPUS_ANNOTATION, 0)),
        scheduler_staleness=next((grace for grace in graces if grace), None),
    )


def read_platform(documents: Iterable[Object]) -> Facts:
    """Return what a file says of the platform: chart values, or objects.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is neither.
    """
    found = list(documents)
    objects = [each for each in found if "kind" in each and "metadata" in each]
    if objects:
        return _of_objects(objects)
    return _of_values(found[0]) if found else Facts()
