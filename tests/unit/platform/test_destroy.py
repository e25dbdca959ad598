from __future__ import annotations

from tandem.platform import strangers


def workload(namespace: str, kind: str = "RayJob") -> dict[str, object]:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": "a"}}


def test_runs_of_other_namespaces_are_strangers() -> None:
    found = [workload("tandem"), workload("team-a"), workload("team-b", "JobSet")]
    assert strangers(found) == ["team-a/RayJob/a", "team-b/JobSet/a"]


def test_our_own_are_not() -> None:
    assert strangers([workload("tandem")]) == []
