"""The model of KAI's grouping: rules of its pod-grouper, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from support.kai_objects import (
    jobset,
    member,
    metadata,
    podgroup,
    ray_spec,
    raycluster,
    replicated_job,
    template,
    worker_group,
    workload,
)
from tandem.explain.model import Grouping, Placement, PodGroup, SubGroup, group_pods

PRIORITIES = {"rl-head": 60, "rl-worker": 50, "production": 120}


def grouped(*objects: dict[str, Any]) -> Grouping:
    return group_pods(objects, PRIORITIES)


def the_group(*objects: dict[str, Any]) -> PodGroup:
    [group] = grouped(*objects).groups
    return group


def outline(node: SubGroup) -> dict[str, Any]:
    """A subgroup as a table: its minimum, with what it is a minimum of, and what is below."""
    minimum = node.min_members if node.min_subgroups is None else f"{node.min_subgroups} subgroups"
    return {node.name: (minimum, [outline(child) for child in node.children])}


def below(group: PodGroup) -> list[dict[str, Any]]:
    return [outline(child) for child in group.root.children]


def test_a_jobset_is_one_gang_of_all_replicas_of_all_its_jobs() -> None:
    group = the_group(
        jobset(
            replicated_job("head", template(priority="rl-head")),
            replicated_job("workers", template(8), replicas=2, parallelism=3, completions=3),
        )
    )
    assert group.source == "JobSet/mono"
    assert not group.external
    assert group.root.min_subgroups == 2
    assert below(group) == [
        {"head": ("1 subgroups", [{"head-replica-0": (1, [])}])},
        {
            "workers": (
                "2 subgroups",
                [{"workers-replica-0": (3, [])}, {"workers-replica-1": (3, [])}],
            )
        },
    ]
    assert group.pod_count == 7
    assert group.gpus == 48


def test_completions_do_not_change_the_minimum_of_a_jobset() -> None:
    group = the_group(jobset(replicated_job("w", template(1), parallelism=4, completions=2)))
    assert below(group) == [{"w": ("1 subgroups", [{"w-replica-0": (4, [])}])}]
    assert group.pod_count == 2


@pytest.mark.parametrize(
    ("annotation", "order", "expected"),
    [(None, "AnyOrder", 3), (None, "InOrder", 1), ("2", "InOrder", 2), ("9", "AnyOrder", 3)],
)
def test_how_many_replicated_jobs_a_jobset_needs(
    annotation: str | None, order: str, expected: int
) -> None:
    annotations = {"kai.scheduler/batch-min-member": annotation} if annotation else {}
    jobs = [replicated_job(name, template()) for name in ("a", "b", "c")]
    policy = {"startupPolicyOrder": order}
    group = the_group(jobset(*jobs, annotations=annotations, startupPolicy=policy))
    assert group.root.min_subgroups == expected


def test_an_annotation_on_a_replicated_job_sets_the_minimum_of_its_replicas() -> None:
    annotations = {"kai.scheduler/batch-min-member": "2"}
    job = replicated_job("w", template(), annotations=annotations, parallelism=4)
    assert below(the_group(jobset(job))) == [{"w": ("1 subgroups", [{"w-replica-0": (2, [])}])}]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"replicas": 4, "minReplicas": 4}, 4),
        ({"replicas": 4, "minReplicas": 1}, 1),
        ({"replicas": 4, "minReplicas": 0}, 4),
        ({"replicas": 4}, 4),
        ({"replicas": 2, "minReplicas": 1, "numOfHosts": 3}, 3),
        ({"replicas": 2, "minReplicas": 0, "numOfHosts": 3}, 6),
    ],
)
def test_a_worker_group_needs_its_least_replicas_or_all(
    group: dict[str, int], expected: int
) -> None:
    found = the_group(raycluster({"groupName": "workers", "template": template(8), **group}))
    assert below(found) == [{"headgroup": (1, [])}, {"workers": (expected, [])}]
    assert found.root.min_members == 1 + expected
    assert found.pod_count == 1 + group["replicas"] * group.get("numOfHosts", 1)


def test_a_worker_group_of_nothing_is_left_out() -> None:
    empty = worker_group(template(8), replicas=0)
    assert below(the_group(raycluster(empty))) == [{"headgroup": (1, [])}]


def test_a_suspended_worker_group_has_no_pods_and_counts() -> None:
    group = the_group(raycluster(worker_group(template(8), replicas=2, suspend=True)))
    assert below(group) == [{"headgroup": (1, [])}, {"workers": (2, [])}]
    assert group.pod_count == 1


def test_more_least_replicas_than_replicas_is_refused_by_kai() -> None:
    found = grouped(raycluster(worker_group(template(), replicas=1, minReplicas=2)))
    assert found.groups == ()
    [(obj, reason)] = found.ungrouped
    assert obj["kind"] == "RayCluster"
    assert "minReplicas 2 of replicas 1" in reason


@pytest.mark.parametrize(
    ("kind", "field"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")]
)
def test_what_makes_a_raycluster_is_grouped_like_it(kind: str, field: str) -> None:
    obj = {
        "kind": kind, "apiVersion": "ray.io/v1", "metadata": metadata("mono"),
        "spec": {field: ray_spec(worker_group(template(8), replicas=2))},
    }  # fmt: skip
    group = the_group(obj)
    assert group.source == f"{kind}/mono"
    assert below(group) == [{"headgroup": (1, [])}, {"workers": (2, [])}]


def test_a_job_needs_one_pod_or_what_its_annotation_says() -> None:
    group = the_group(workload("Job", template(1), parallelism=3))
    assert (group.root.min_members, group.pod_count) == (1, 3)
    annotations = {"kai.scheduler/batch-min-member": "3"}
    group = the_group(workload("Job", template(1), annotations=annotations, parallelism=3))
    assert group.root.min_members == 3


def test_an_annotation_that_is_no_number_is_refused_by_kai() -> None:
    annotations = {"kai.scheduler/batch-min-member": "all"}
    found = grouped(workload("Job", template(), annotations=annotations))
    assert found.groups == ()
    assert "'all'" in found.ungrouped[0][1]


def test_each_pod_of_a_deployment_is_a_gang_of_its_own() -> None:
    group = the_group(workload("Deployment", template(2), replicas=3))
    assert (group.copies, group.pod_count, group.gpus) == (3, 3, 6)
    assert group.root.needed().gpu == 2
    assert the_group(workload("Deployment", template(2))).copies == 1
    group = the_group(workload("StatefulSet", template(2), replicas=3))
    assert (group.copies, group.root.min_members, group.pod_count) == (1, 1, 3)


def test_pods_of_another_scheduler_are_in_no_gang() -> None:
    found = grouped(workload("Job", template(scheduler="default-scheduler")))
    assert found.groups == ()
    assert [pods.source for pods in found.outside] == ["Job/job"]


TREE = (
    {"name": "rl", "minSubGroup": 2},
    {"name": "rl-head", "parent": "rl", "minMember": 1},
    {
        "name": "rl-workers", "parent": "rl", "minMember": 2,
        "topologyConstraint": {"topology": "rack", "requiredTopologyLevel": "rack"},
    },
    {"name": "driver", "minMember": 1},
)  # fmt: skip


def disaggregated(**spec: Any) -> list[dict[str, Any]]:
    cluster = raycluster(worker_group(member("rl-workers", 8), replicas=2), head=member("rl-head"))
    return [podgroup(*TREE, minSubGroup=2, **spec), cluster, workload("Job", member("driver"))]


def test_a_podgroup_of_ones_own_is_the_tree_that_it_writes_with_the_pods_that_name_it() -> None:
    group = the_group(*disaggregated())
    assert group.external
    assert group.source == "PodGroup/gang"
    assert group.root.min_subgroups == 2
    assert below(group) == [
        {"rl": ("2 subgroups", [{"rl-head": (1, [])}, {"rl-workers": (2, [])}])},
        {"driver": (1, [])},
    ]
    leaves = [node for node in group.root.walk() if not node.children]
    assert {node.name: [p.where for p in node.pods] for node in leaves} == {
        "rl-head": ["RayCluster/rl headgroup"],
        "rl-workers": ["RayCluster/rl workers"],
        "driver": ["Job/job"],
    }
    assert (group.pod_count, group.gpus) == (4, 16)
    workers = next(node for node in leaves if node.name == "rl-workers")
    assert workers.placement == Placement("rack", required="rack")


def test_it_may_stand_behind_its_pods() -> None:
    objects = disaggregated()
    assert the_group(*reversed(objects)).pod_count == the_group(*objects).pod_count == 4


def test_pods_join_a_podgroup_of_their_namespace_only() -> None:
    group, *others = disaggregated()
    group["metadata"]["namespace"] = "elsewhere"
    found = grouped(group, *others)
    assert found.groups[0].pod_count == 0
    assert {pods.where for pods in found.lost} == {
        "RayCluster/rl headgroup", "RayCluster/rl workers", "Job/job",
    }  # fmt: skip


def test_an_owner_may_say_that_pods_are_left_alone() -> None:
    pods = template(annotations={"pod-group-name": "gang"})
    skip = {"kai.scheduler/skip-podgrouper": "true"}
    group = the_group(podgroup(minMember=1), workload("Job", pods, annotations=skip))
    assert group.external
    assert group.pod_count == 1


def test_a_podgroup_of_another_scheduler_is_none() -> None:
    other = {**podgroup(minMember=1), "apiVersion": "scheduling.x-k8s.io/v1alpha1"}
    assert grouped(other).groups == ()


def test_subgroups_without_a_way_to_the_top_are_told() -> None:
    tree = (
        {"name": "a", "minMember": 1, "parent": "b"}, {"name": "b", "minMember": 1, "parent": "a"},
        {"name": "c", "minMember": 1, "parent": "gone"},
    )  # fmt: skip
    group = the_group(podgroup(*tree, minSubGroup=1))
    assert group.strays == ("a", "b", "c")
    assert group.root.children == ()


def test_the_queue_is_the_objects_then_the_pods_and_a_podgroups_own() -> None:
    pods = template(labels={"kai.scheduler/queue": "of-pods"})
    job = workload("Job", pods)
    assert the_group(job).queue == "low-prio"
    del job["metadata"]["labels"]["kai.scheduler/queue"]
    assert the_group(job).queue == "of-pods"
    del job["spec"]["template"]["metadata"]["labels"]["kai.scheduler/queue"]
    assert the_group(job).queue is None
    assert the_group(*disaggregated(queue="high-prio")).queue == "high-prio"


def test_priority_is_the_owners_label_then_the_pods_class_then_train() -> None:
    cluster = raycluster(worker_group(template()))
    assert the_group(cluster).priority_classes == ("rl-head", "rl-worker")
    cluster["metadata"]["labels"]["priorityClassName"] = "rl-worker"
    assert the_group(cluster).priority_classes == ("rl-worker",)
    cluster["metadata"]["labels"]["ray.io/priority-class-name"] = "production"
    assert the_group(cluster).priority_classes == ("production",)
    assert the_group(workload("Job", template(priority=""))).priority_classes == ("train",)


@pytest.mark.parametrize(
    ("priority", "label", "expected"),
    [
        ("rl-worker", None, True),
        ("production", None, False),
        ("inference", None, False),
        ("build-preemptible", None, True),
        ("nobody-knows", None, True),
        ("production", "preemptible", True),
        ("rl-worker", "non-preemptible", False),
        ("production", "perhaps", False),
    ],
)
def test_who_may_be_pushed_out(priority: str, label: str | None, expected: bool) -> None:  # noqa: FBT001
    job = workload("Job", template(priority=priority))
    if label:
        job["metadata"]["labels"]["kai.scheduler/preemptibility"] = label
    assert the_group(job).preemptible is expected


def test_placements_are_read_where_kai_reads_them() -> None:
    whole = {"kai.scheduler/topology": "rack", "kai.scheduler/topology-required-placement": "rack"}
    part = {"kai.scheduler/topology": "rack", "kai.scheduler/topology-preferred-placement": "host"}
    group = the_group(jobset(replicated_job("w", template(), annotations=part), annotations=whole))
    [parent] = group.root.children
    assert group.root.placement == Placement("rack", required="rack")
    assert parent.placement is None
    assert parent.children[0].placement == Placement("rack", preferred="host")

    group = the_group(raycluster(worker_group(template(annotations=part))))
    head, workers = group.root.children
    assert (head.placement, workers.placement) == (None, Placement("rack", preferred="host"))


def test_a_gang_needs_the_least_of_what_may_start() -> None:
    workers = worker_group(template(8, cpu="2"), replicas=4, minReplicas=1)
    group = the_group(raycluster(workers))
    assert (group.root.needed().gpu, group.root.total().gpu) == (8, 32)
    assert (group.root.needed().cpu, group.root.total().cpu) == (3000, 9000)
    one_of = podgroup(
        {"name": "big", "minMember": 1}, {"name": "little", "minMember": 1}, minSubGroup=1
    )
    jobs = [workload("Job", member("big", 8)), workload("Job", member("little", 2))]
    group = the_group(one_of, *jobs)
    assert (group.root.needed().gpu, group.root.total().gpu) == (2, 10)


def test_claims_are_named_and_no_gpus() -> None:
    claims = [{"name": "nics", "resourceClaimTemplateName": "roce"}]
    group = the_group(workload("Job", template(1, resourceClaims=claims)))
    assert (group.claims, group.gpus) == (("nics",), 1)
