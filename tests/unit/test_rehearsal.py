"""Rehearsals of scale: what is asked of the cluster, and what is read from it."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import rehearsal
from tandem.errors import ExitCode, UserError
from tandem.explain.pods import pod_sets
from tandem.rehearsal import Plan, faults_of, gpus_that_fit, plan_of, requests_of, run_folder
from tandem.render import kustomize, render_variant

PLAN = Plan("disagg-jobset", 2, 16, 12, 4, 30, "h100")


@pytest.mark.parametrize(
    ("node_gpus", "nodes", "workers", "gpus"),
    [
        (8, 1000, 1000, 8),
        (8, 1000, 1001, 4),
        (8, 1000, 1200, 4),
        (4, 1000, 1200, 2),
        (8, 1, 8, 1),
        (8, 1, 9, 0),
    ],
)
def test_workers_get_as_many_gpus_as_all_of_them_can_have(
    node_gpus: int, nodes: int, workers: int, gpus: int
) -> None:
    assert gpus_that_fit(node_gpus, nodes, workers) == gpus


def test_the_promised_rehearsal_fits_a_thousand_nodes() -> None:
    plan = plan_of("disagg-jobset", 20, 64, 1000, "h100")
    assert plan.runs * plan.pods == 1280
    assert plan.runs * plan.workers * plan.gpus <= 8000
    assert (plan.workers, plan.gpus) == (60, 4)


@pytest.mark.parametrize(
    ("variant", "runs", "pods", "nodes", "said"),
    [
        ("disagg-rayclusters", 1, 16, 30, "no JobSet with a group rl-workers"),
        ("disagg-jobset", 1, 4, 30, "has 4 pods beside its workers: 4 are too few"),
        ("disagg-jobset", 20, 64, 100, "1200 workers"),
        ("nowhere", 1, 16, 30, "unknown variant: nowhere"),
    ],
)
def test_what_could_never_run_is_refused(
    variant: str, runs: int, pods: int, nodes: int, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        plan_of(variant, runs, pods, nodes, "h100")
    assert caught.value.code == ExitCode.USAGE
    assert said in str(caught.value).replace("20 x 60", "1200")


@pytest.mark.parametrize("variant", ["disagg-jobset", "monolithic-jobset", "prod-disagg-jobset"])
def test_all_pods_of_a_run_go_to_simulated_nodes_and_are_as_many_as_planned(variant: str) -> None:
    plan = plan_of(variant, 2, 16, 30, "h100")
    with run_folder(plan, plan.run_ids[0], render_variant(plan.variant)) as folder:
        objects = kustomize(folder)
    assert not folder.exists()
    found = [pods for obj in objects for pods in pod_sets(obj)]
    assert sum(pods.count for pods in found) == 16
    assert len(found) > 2
    for pods in found:
        assert pods.spec["nodeSelector"] == {"kwok.tandem.dev/simulated": "true"}
        [toleration] = pods.spec["tolerations"]
        assert (toleration["key"], toleration["value"]) == ("kwok.x-k8s.io/node", "fake")
    [workers] = [pods for pods in found if pods.role == rehearsal.WORKERS]
    assert (workers.count, workers.demand.gpu) == (plan.workers, plan.gpus)
    assert "PodTemplate" not in {obj["kind"] for obj in objects}


def pod(name: str, node: str = "h100-0001", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-12-02T20:00:00Z"},
        "spec": {"nodeName": node},
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "lastTransitionTime": "2026-12-02T20:00:03Z"},
                {"type": "Ready", "lastTransitionTime": "2026-12-02T20:00:04Z"},
            ],
        },
    }


def test_pods_that_do_not_run_or_run_elsewhere_are_told() -> None:
    sound = [pod(f"p{number}") for number in range(32)]
    assert faults_of(sound, PLAN) == []
    assert "31 pods instead of 32" in faults_of(sound[1:], PLAN)[0].what
    ended = [pod("a", phase="Succeeded"), pod("b", node="local"), *sound[2:]]
    assert [each.what.split()[1] for each in faults_of(ended, PLAN)] == ["a", "b"]


def test_seconds_are_counted_from_the_first_pod() -> None:
    late = pod("late")
    late["status"]["conditions"][1]["lastTransitionTime"] = "2026-12-02T20:01:00Z"
    assert rehearsal.spread_of([pod("a"), late]) == (3.0, 60.0)


def test_requests_are_summed_by_resource() -> None:
    metrics = """\
# HELP apiserver_request_total Counter
apiserver_request_total{code="200",resource="pods",verb="LIST"} 3
apiserver_request_total{code="201",resource="pods",verb="POST"} 1e+03
apiserver_request_total{code="200",resource="",verb="GET"} 2
apiserver_request_total_other{resource="pods"} 7
"""
    assert requests_of(metrics) == {"pods": 1003.0, "": 2.0}
