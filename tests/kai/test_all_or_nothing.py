"""A run is placed whole or not at all, in each of its shapes."""

from __future__ import annotations

from typing import Any

import pytest

from support.kai_cluster import (
    Workloads,
    bound,
    filler,
    filler_node,
    podgroups,
    pods,
    refused,
    run_id_of,
    under_kai,
    until,
)
from tandem.explain.inputs import read_facts
from tandem.explain.report import report_of

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
GPUS_OF_THE_NODE = 8


def workers(variant: str, count: int) -> tuple[Object, list[Object]]:
    """A patch that makes it a run of so many workers, each with its GPU."""
    kind, name = SHAPES[variant]
    target = {"kind": kind, "name": name}
    fields: tuple[str, ...]
    if kind == "JobSet":
        [obj] = [each for each in under_kai(variant) if each["kind"] == kind]
        names = [job["name"] for job in obj["spec"]["replicatedJobs"]]
        spec = f"/spec/replicatedJobs/{names.index('rl-workers')}/template/spec"
        fields = ("parallelism", "completions")
    else:
        spec = "/spec/rayClusterSpec" if kind == "RayJob" else "/spec"
        spec += "/workerGroupSpecs/0"
        fields = ("replicas", "minReplicas", "maxReplicas")
    return target, [{"op": "add", "path": f"{spec}/{field}", "value": count} for field in fields]


#: Kind and name of the object that has the workers, by variant.
SHAPES = {
    "disagg-rayclusters": ("RayCluster", "rl"),
    "disagg-jobset": ("JobSet", "run"),
    "monolithic-jobset": ("JobSet", "mono"),
    "monolithic-rayjob": ("RayJob", "monolithic"),
}


@pytest.mark.parametrize("variant", sorted(SHAPES))
def test_one_gpu_short_places_nothing_and_one_more_places_all(
    variant: str, workloads: Workloads
) -> None:
    run_id = run_id_of(variant)
    objects = under_kai(variant, patches=[workers(variant, 3)])
    [gang] = report_of(variant, objects, read_facts()).grouping.groups
    expected = {node.name: node.min_members for node in gang.root.walk()[1:] if not node.children}
    members, gpus = gang.pod_count, gang.gpus
    assert gpus == 3

    short = filler(GPUS_OF_THE_NODE - gpus + 1)
    workloads.apply([short])
    until(filler_node, "the filler runs")
    workloads.apply(objects)
    until(lambda: len(pods(run_id)) == members, "all pods are there")
    until(lambda: len(refused(run_id)) == members, "KAI refuses all")
    assert bound(run_id) == []

    [made] = podgroups(run_id)
    leaves = {each["name"]: each["minMember"] for each in made["spec"]["subGroups"]
              if each.get("minMember")}  # fmt: skip
    assert leaves == expected, "the model says what KAI makes of it"
    assert made["spec"]["queue"] == gang.queue

    workloads.delete(short)
    until(lambda: len(bound(run_id)) == members, "all are placed")
