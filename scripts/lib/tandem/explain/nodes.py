"""Nodes as `kubectl get nodes -o json` tells of them, and which pods may go there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandem.explain.pods import Object, PodSet
from tandem.explain.quantity import Resources, resources_of

_BLOCKING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its labels, the taints that keep pods away, and all that it can give to pods."""

    name: str
    labels: dict[str, str]
    taints: tuple[Object, ...]
    unschedulable: bool
    room: Resources

    def takes(self, pods: PodSet) -> bool:
        """Return whether such pods may be placed here, whatever their size.

        Node selectors and taints count; affinities do not, so that what is said to be too
        much is so in any case.
        """
        selector = pods.spec.get("nodeSelector") or {}
        return (
            not self.unschedulable
            and all(self.labels.get(key) == value for key, value in selector.items())
            and all(_tolerated(taint, pods) for taint in self.taints)
        )


def _tolerated(taint: Object, pods: PodSet) -> bool:
    if taint.get("effect") not in _BLOCKING:
        return True
    # Many clusters let pods tolerate the taint of a device that they ask for.
    if taint["key"] == "nvidia.com/gpu" and pods.demand.gpu:
        return True
    return any(_matches(each, taint) for each in pods.spec.get("tolerations") or [])


def _matches(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def read_nodes(document: Any) -> list[Node]:
    """Return the nodes of a list in JSON.

    Raises:
        ValueError: It is no list of nodes, or holds none.
    """
    items = document.get("items") if isinstance(document, dict) else document
    if not isinstance(items, list) or not items:
        raise ValueError("there are no nodes in it")
    try:
        return [_node(each) for each in items]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no list of nodes ({error!r})") from error


def _node(obj: Object) -> Node:
    if obj.get("kind", "Node") != "Node":
        raise ValueError(f"it holds a {obj['kind']}")
    spec = obj.get("spec") or {}
    return Node(
        name=obj["metadata"]["name"],
        labels=obj["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        room=resources_of(obj["status"]["allocatable"]),
    )
