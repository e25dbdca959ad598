"""What is said never to fit: in limits of queues, on nodes, in domains of a topology."""

from __future__ import annotations

from typing import Any

import pytest

from support.kai_objects import (
    facts,
    jobset,
    raycluster,
    replicated_job,
    template,
    worker_group,
    workload,
)
from tandem.explain.findings import Finding
from tandem.explain.fit import fit
from tandem.explain.model import group_pods
from tandem.explain.nodes import Node, read_nodes

RACK = {"kai.scheduler/topology": "rack", "kai.scheduler/topology-required-placement": "rack"}


def node(name: str = "n1", gpus: int = 8, *, cpu: str = "64", memory: str = "512Gi",
         labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec,
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "cpu": cpu, "memory": memory}},
    }  # fmt: skip


def nodes(count: int, **more: Any) -> list[Node]:
    return read_nodes({"items": [node(f"n{index}", **more) for index in range(count)]})


def found(*objects: dict[str, Any], on: list[Node] | None = None, **values: Any) -> list[Finding]:
    offered = facts(**values)
    return fit(group_pods(objects, offered.priorities), offered, on)


def rules(*objects: dict[str, Any], on: list[Node] | None = None, **values: Any) -> list[str]:
    return [finding.rule for finding in found(*objects, on=on, **values)]


def cluster(replicas: int, least: int | None = None, queue: str = "small",
            **pods: Any) -> dict[str, Any]:  # fmt: skip
    options: dict[str, Any] = {"cpu": "1", "memory": "1G", **pods}
    group = worker_group(template(8, **options), replicas=replicas, minReplicas=least or replicas)
    obj = raycluster(group)
    obj["metadata"]["labels"]["kai.scheduler/queue"] = queue
    return obj


def test_a_gang_within_the_limit_fits() -> None:
    assert found(cluster(2)) == []
    assert found(cluster(2), on=nodes(2)) == []


def test_a_gang_above_the_limit_of_its_queue_never_starts() -> None:
    [finding] = found(cluster(3))
    assert (finding.rule, finding.level) == ("over-queue-limit", "error")
    assert finding.place == "RayCluster/rl in queue small"
    assert finding.what == "it needs 24 of 16 GPUs"


@pytest.mark.parametrize(
    ("pods", "what"),
    [
        ({"cpu": "4"}, "it needs 9000 of 8000 m CPU"),
        ({"memory": "10G"}, "it needs 21000 of 18000 MB memory"),
        (
            {"cpu": "5", "memory": "10G"},
            "it needs 11000 of 8000 m CPU, 21000 of 18000 MB memory",
        ),
    ],
)
def test_cpu_and_memory_are_limited_too(pods: dict[str, str], what: str) -> None:
    [finding] = found(cluster(2, None, "small", **pods))
    assert finding.what == what


def test_a_limit_of_a_queue_above_counts() -> None:
    tree = [
        {"name": "root", "limit": {"gpu": 8}},
        {"name": "team", "parent": "root", "limit": {"gpu": -1}},
        {"name": "leaf", "parent": "team"},
    ]
    [finding] = found(cluster(2, queue="leaf"), queues={"tree": tree})
    assert finding.place == "RayCluster/rl in queue root"


def test_gangs_of_one_run_are_counted_together() -> None:
    other = cluster(2)
    other["metadata"]["name"] = "gym"
    assert rules(cluster(2)) == []
    [finding] = found(cluster(2), other)
    assert finding.what == "it needs 32 of 16 GPUs"
    deployment = workload("Deployment", template(8), replicas=3)
    deployment["metadata"]["labels"]["kai.scheduler/queue"] = "small"
    assert rules(deployment) == ["over-queue-limit"]


def test_what_is_more_than_the_minimum_may_be_above_the_limit() -> None:
    [finding] = found(cluster(3, least=1))
    assert (finding.rule, finding.level) == ("partly-over-queue-limit", "warning")
    assert finding.what == "all of it is 24 of 16 GPUs"


def test_a_pod_bigger_than_every_node_is_told() -> None:
    [finding] = found(cluster(1, queue="low-prio"), on=nodes(4, gpus=4))
    assert finding.rule == "no-node-for-pod"
    assert finding.place == "RayCluster/rl spec.workerGroupSpecs[0].template"
    assert finding.what == (
        "a pod of workers asks for 8 GPUs, 1000 m CPU and 1000 MB; the most that a node has is "
        "4 GPUs, 64000 m CPU and 549756 MB"
    )
    assert rules(cluster(1, queue="low-prio", cpu="65"), on=nodes(4)) == ["no-node-for-pod"]


def test_nodes_that_do_not_take_a_pod_are_none() -> None:
    run = cluster(1, queue="low-prio")
    run["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] = {"pool": "gpu"}
    [finding] = found(run, on=nodes(2))
    assert "no node takes it (selector, taints)" in finding.what
    assert found(run, on=nodes(2, labels={"pool": "gpu"})) == []
    [both, workers] = found(cluster(1, queue="low-prio"), on=nodes(1, unschedulable=True))
    assert both.rule == workers.rule == "no-node-for-pod"


TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        (TAINT, None, False),
        (TAINT, {"key": "team", "operator": "Exists"}, True),
        (TAINT, {"operator": "Exists"}, True),
        (TAINT, {"key": "team", "value": "a"}, True),
        (TAINT, {"key": "team", "value": "b"}, False),
        (TAINT, {"key": "team", "value": "a", "effect": "NoExecute"}, False),
        ({**TAINT, "effect": "PreferNoSchedule"}, None, True),
        ({"key": "nvidia.com/gpu", "effect": "NoSchedule"}, None, True),
    ],
)
def test_taints(taint: dict[str, str], toleration: dict[str, str] | None, fits: bool) -> None:  # noqa: FBT001
    tolerations = [toleration] if toleration else []
    job = workload("Job", template(1, tolerations=tolerations))
    assert (rules(job, on=nodes(1, taints=[taint])) == []) is fits


def test_pods_are_counted_by_what_goes_whole_on_nodes() -> None:
    # Six pods of five GPUs: 30 of 40 GPUs, but only one goes on a node of eight.
    job = jobset(replicated_job("w", template(5), replicas=2, parallelism=3))
    [finding] = found(job, on=nodes(5))
    assert finding.rule == "too-few-nodes"
    assert finding.what == "6 pods of w are needed, 5 go on the nodes"
    assert found(job, on=nodes(6)) == []


def test_what_may_stay_out_of_the_gang_needs_no_node() -> None:
    assert rules(cluster(4, least=1, queue="low-prio"), on=nodes(1)) == []


def test_the_whole_run_needs_the_whole_cluster() -> None:
    one, other = cluster(1, queue="low-prio"), cluster(1, queue="low-prio")
    other["metadata"]["name"] = "gym"
    [finding] = found(one, other, on=nodes(1))
    assert (finding.rule, finding.place) == ("too-few-nodes", "the run")
    assert finding.what == "it needs 16 of 8 GPUs of all nodes"


def test_a_required_level_needs_nodes_with_its_label() -> None:
    job = jobset(replicated_job("w", template(8), replicas=2), annotations=RACK)
    assert rules(job) == []
    [finding] = found(job, on=nodes(4))
    assert (finding.rule, finding.what) == ("no-node-with-level", "no node has label rack")
    assert rules(job, on=nodes(4, labels={"rack": "a"})) == []


def test_a_required_domain_must_hold_all_of_it() -> None:
    racks = read_nodes([node(f"n{index}", labels={"rack": f"r{index}"}) for index in range(4)])
    job = jobset(replicated_job("w", template(8), replicas=2), annotations=RACK)
    [finding] = found(job, on=racks)
    assert finding.rule == "domain-too-small"
    assert "needs 16 GPUs" in finding.what
    assert "biggest domain of rack has 8 GPUs" in finding.what
    # Each replica in a rack of its own is another thing.
    job = jobset(replicated_job("w", template(8), replicas=2, annotations=RACK))
    assert found(job, on=racks) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kai.scheduler/topology": "gb300"}, "no Topology gb300; there are: rack"),
        (
            {"kai.scheduler/topology-required-placement": "row"},
            "Topology rack has no level row: rack, kubernetes.io/hostname",
        ),
    ],
)
def test_topologies_and_levels_that_are_not_there(changes: dict[str, str], what: str) -> None:
    job = jobset(replicated_job("w", template(8)), annotations={**RACK, **changes})
    [finding] = found(job)
    assert (finding.rule, finding.what) == ("unknown-topology", what)
    assert rules(job, topologies={}) == []


@pytest.mark.parametrize(
    "document",
    [{}, [], {"items": []}, {"items": [{"kind": "Pod"}]}, {"items": [{"metadata": {}}]}, "x"],
)
def test_what_is_no_list_of_nodes_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"it is no list|there are no nodes|it holds a Pod"):
        read_nodes(document)


def test_more_gpus_than_the_largest_node_has_are_told_without_nodes() -> None:
    [finding] = found(cluster(2), limits={"gpusPerNode": 4})
    assert finding.rule == "no-node-for-pod"
    assert finding.place == "RayCluster/rl spec.workerGroupSpecs[0].template"
    assert finding.what == "a pod of workers asks for 8 GPUs; the most that a node has is 4"
    assert found(cluster(2), limits={"gpusPerNode": 8}) == []
    # 0 is not known; and real nodes know better.
    assert found(cluster(2), limits={"gpusPerNode": 0}) == []
    assert found(cluster(2), on=nodes(2), limits={"gpusPerNode": 4}) == []
