from __future__ import annotations

from typing import Any

from tandem.platform import from_the_leaves, strangers


def workload(namespace: str, kind: str = "RayJob") -> dict[str, object]:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": "a"}}


def test_runs_of_other_namespaces_are_strangers() -> None:
    found = [workload("tandem"), workload("team-a"), workload("team-b", "JobSet")]
    assert strangers(found) == ["team-a/RayJob/a", "team-b/JobSet/a"]


def test_our_own_are_not() -> None:
    assert strangers([workload("tandem")]) == []


def queue(name: str, parent: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"parentQueue": parent} if parent else {}}


def test_no_queue_goes_before_those_below_it() -> None:
    tree = [queue("a-top"), queue("b", "a-top"), queue("z-leaf", "b"), queue("leaf", "a-top")]
    assert from_the_leaves(tree) == ["z-leaf", "b", "leaf", "a-top"]
    # One whose parent is somebody else's, and a circle: each is named once, and it ends.
    assert from_the_leaves([queue("x", "theirs")]) == ["x"]
    assert sorted(from_the_leaves([queue("x", "y"), queue("y", "x")])) == ["x", "y"]
