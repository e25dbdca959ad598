"""Rehearsals of scale: what is asked of the cluster, and what is read from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tandem import platform, rehearsal, rehearsal_kueue
from tandem.errors import ExitCode, Problem, UserError
from tandem.explain.pods import pod_sets
from tandem.figures import Figure
from tandem.policy import KUEUE_PRIORITY, KUEUE_QUEUE
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


@pytest.mark.parametrize(
    ("variant", "scheduler"),
    [
        ("disagg-jobset", "default"),
        ("monolithic-jobset", "default"),
        ("prod-disagg-jobset", "default"),
        ("disagg-jobset", "kueue"),
        ("monolithic-jobset", "kueue"),
    ],
)
def test_all_pods_of_a_run_go_to_simulated_nodes_and_are_as_many_as_planned(
    variant: str, scheduler: str
) -> None:
    plan = plan_of(variant, 2, 16, 30, "h100", scheduler=scheduler)
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


def test_with_kueue_the_jobset_alone_is_in_a_queue_with_all_but_the_watcher() -> None:
    plan = plan_of("disagg-jobset", 2, 16, 20, "h100", scheduler="kueue")
    with run_folder(plan, plan.run_ids[0], render_variant(plan.variant)) as folder:
        objects = kustomize(folder)
    queued = [obj for obj in objects if KUEUE_QUEUE in (obj["metadata"].get("labels") or {})]
    assert [obj["kind"] for obj in queued] == ["JobSet"]
    assert queued[0]["metadata"]["labels"][KUEUE_PRIORITY] == "low-prio"
    assert rehearsal.group_size(objects) == 15


def test_kai_is_refused_with_what_there_is_instead() -> None:
    with pytest.raises(UserError, match="no KAI unless the bundle brings it") as caught:
        plan_of("disagg-jobset", 2, 16, 20, "h100", scheduler="kai")
    assert caught.value.code == ExitCode.USAGE
    assert "--scheduler kueue" in str(caught.value)


NOON = datetime(2026, 12, 3, 12, tzinfo=UTC)


def workload(run_id: str, *counts: int, admitted: float = 0, ready: float | None = 1) -> Any:
    when = {"Admitted": admitted} | ({} if ready is None else {"PodsReady": ready})
    return {
        "metadata": {
            "name": f"jobset-run-{run_id}-1f2e3",
            "ownerReferences": [{"kind": "JobSet", "name": f"run-{run_id}"}],
        },
        "spec": {"podSets": [{"count": count} for count in counts]},
        "status": {
            "conditions": [
                {"type": "Evicted", "status": "False", "lastTransitionTime": NOON.isoformat()},
                *(
                    {
                        "type": name,
                        "status": "True",
                        "lastTransitionTime": (NOON + timedelta(seconds=seconds)).isoformat(),
                    }
                    for name, seconds in when.items()
                ),
            ]
        },
    }


IDS = ["scale-01", "scale-02"]


@pytest.mark.parametrize(
    ("workloads", "said"),
    [
        ([workload("scale-01", 3, 12), workload("scale-02", 15)], []),
        ([workload("scale-01", 15)], ["scale-02 is not one Workload of 15 pods, but 0 of none"]),
        (
            [workload("scale-01", 3), workload("scale-01", 12), workload("scale-02", 15)],
            ["scale-01 is not one Workload of 15 pods, but 2 of 3 and 12"],
        ),
        (
            [workload("scale-01", 15), workload("scale-02", 15, ready=None)],
            ["scale-02 runs, and its Workload is not PodsReady"],
        ),
    ],
)
def test_a_run_that_is_not_one_group_or_was_not_let_in_is_told(
    workloads: list[Any], said: list[str]
) -> None:
    found = [each.what for each in rehearsal_kueue.faults_of(workloads, IDS, 15)]
    assert found == [f"run {each}" for each in said]


@pytest.mark.parametrize(
    ("second", "most"), [((5, 9), 1), ((4, 9), 2), ((5, 5), 1)], ids=["after", "meanwhile", "quick"]
)
def test_runs_that_are_let_in_beside_each_other_are_counted(
    second: tuple[int, int], most: int
) -> None:
    listed = [
        workload("scale-02", 15, admitted=second[0], ready=second[1]),
        workload("scale-01", 15, admitted=1, ready=5),
        workload("other", 15, admitted=0, ready=99),
    ]
    admissions = rehearsal_kueue.admissions_of(listed, IDS)
    assert rehearsal_kueue.most_at_once(admissions) == most
    figures = {
        each.name: each.value
        for each in rehearsal_kueue.figures_of(admissions, NOON.timestamp() - 0.5)
    }
    assert figures["first apply to the last run admitted"] == second[0] + 0.5


def test_what_was_measured_is_told_although_the_runs_would_not_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Plan, figures: list[Figure]) -> None:
        figures.append(Figure("all runs applied", 7.5))
        raise UserError(Problem("they would not go", "wait"), ExitCode.FAILURE)

    monkeypatch.setattr(rehearsal, "rehearse", fails)
    monkeypatch.setattr("sys.argv", ["rehearsal", "--runs", "1", "--nodes", "20", "--pods", "16"])
    with pytest.raises(UserError, match="would not go"):
        rehearsal.main()
    assert "all runs applied" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("releases", "values", "gpus"),
    [
        ("[]", "null", None),
        ('[{"name": "rl-platform"}]', "null", None),
        ('[{"name": "rl-platform"}]', '{"queues": {"kueue": {"enabled": false}}}', None),
        (
            '[{"name": "rl-platform"}]',
            '{"queues": {"kueue": {"enabled": true, "capacity": {"gpu": 160}}}}',
            160,
        ),
    ],
)
def test_what_kueue_shared_out_before_is_found(
    monkeypatch: pytest.MonkeyPatch, releases: str, values: str, gpus: int | None
) -> None:
    monkeypatch.setattr(
        platform, "run", lambda words, **_: releases if words[1] == "list" else values
    )
    assert platform.kueue_gpus() == gpus
