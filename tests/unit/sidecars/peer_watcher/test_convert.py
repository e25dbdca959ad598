"""What objects of the API mean: conditions, never `status.state`."""

from __future__ import annotations

from typing import Any

import pytest

from endpoint_registry import records
from peer_watcher.convert import head_facts, head_selector, matches, object_facts
from peer_watcher.facts import (
    ABSENT,
    HeadFacts,
    HeadMark,
    LeaseFacts,
    Met,
    Outcome,
    Ref,
    Target,
    Verdict,
    record_from_json,
    record_to_json,
)
from peer_watcher.registry import registry_facts

Object = dict[str, Any]


def obj(
    kind: str, *, spec: Object | None = None, status: Object | None = None, **meta: Any
) -> Object:
    metadata = {"name": "x", "uid": "u-1", **meta}
    return {"kind": kind, "metadata": metadata, "spec": spec or {}, "status": status or {}}


def conditions(**states: str) -> Object:
    return {
        "conditions": [
            {"type": name, "status": state, "reason": "Why", "message": "words",
             "lastTransitionTime": "t1"}
            for name, state in states.items()
        ]
    }  # fmt: skip


def test_the_sticky_state_of_a_raycluster_is_not_believed() -> None:
    facts = object_facts(obj("RayCluster", status={"state": "ready"}))
    assert (facts.ready, facts.started) == (None, False)
    facts = object_facts(
        obj("RayCluster", status={"state": "failed", **conditions(HeadPodReady="True")})
    )
    assert (facts.ready, facts.started, facts.ended) == (True, True, None)


def test_a_raycluster_that_was_never_whole_has_not_started() -> None:
    status = conditions(HeadPodReady="True", RayClusterProvisioned="False")
    assert not object_facts(obj("RayCluster", status=status)).started


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"suspend": True}, {}),
        ({}, conditions(RayClusterSuspending="True")),
        ({"suspend": False}, conditions(RayClusterSuspended="True")),
    ],
)
def test_a_raycluster_is_suspended_from_the_wish_to_the_resume(
    spec: Object, status: Object
) -> None:
    assert object_facts(obj("RayCluster", spec=spec, status=status)).suspended


def test_a_resume_leaves_a_mark() -> None:
    before = object_facts(obj("RayCluster", status=conditions(RayClusterSuspended="False")))
    after = conditions(RayClusterSuspended="False")
    after["conditions"][0]["lastTransitionTime"] = "t2"
    assert object_facts(obj("RayCluster", status=after)).marker != before.marker


@pytest.mark.parametrize(
    ("spec", "annotations", "tolerant"),
    [
        ({}, {}, False),
        ({"gcsFaultToleranceOptions": {"redisAddress": "r"}}, {}, True),
        ({}, {"ray.io/ft-enabled": "true"}, True),
        ({}, {"ray.io/ft-enabled": "false"}, False),
    ],
)
def test_gcs_fault_tolerance_is_an_option_or_an_annotation(
    spec: Object, annotations: Object, *, tolerant: bool
) -> None:
    assert object_facts(obj("RayCluster", spec=spec, annotations=annotations)).tolerant is tolerant
    job = obj("RayJob", spec={"rayClusterSpec": spec}, annotations=annotations)
    assert object_facts(job).tolerant is tolerant


def test_what_belongs_to_another_object_is_told() -> None:
    owners = [{"kind": "Pod", "name": "p"}, {"kind": "RayJob", "name": "rl", "controller": True}]
    assert object_facts(obj("RayCluster", ownerReferences=owners)).controller == "RayJob/rl"
    assert not object_facts(obj("RayCluster", ownerReferences=owners[:1])).controller


def test_a_replica_failure_is_told_with_its_reason() -> None:
    facts = object_facts(obj("RayCluster", status=conditions(ReplicaFailure="True")))
    assert facts.replica_failure == "Why: words"
    assert not object_facts(obj("RayCluster")).replica_failure


@pytest.mark.parametrize(
    ("deployment", "job", "ended"),
    [
        ("", "", None),
        ("Initializing", "", None),
        ("Running", "RUNNING", None),
        # The job is done, but the operator has not concluded: a retry may follow.
        ("Running", "FAILED", None),
        ("Running", "SUCCEEDED", None),
        ("Retrying", "FAILED", None),
        ("Complete", "SUCCEEDED", Outcome.SUCCEEDED),
        ("Complete", "STOPPED", Outcome.FAILED),
        ("Failed", "FAILED", Outcome.FAILED),
        ("Failed", "", Outcome.FAILED),
        ("ValidationFailed", "", Outcome.FAILED),
        ("Suspended", "", None),
    ],
)
def test_a_rayjob_has_ended_when_the_operator_says_so(
    deployment: str, job: str, ended: Outcome | None
) -> None:
    status = {"jobDeploymentStatus": deployment, "jobStatus": job, "rayClusterName": "x-1"}
    facts = object_facts(obj("RayJob", status=status))
    assert facts.ended is ended
    assert facts.suspended is (deployment == "Suspended")
    assert facts.settling is (deployment in ("", "Initializing", "Retrying"))
    assert facts.marker == "x-1"


@pytest.mark.parametrize(
    ("status", "ended", "suspended"),
    [
        ({}, None, False),
        ({"terminalState": "Completed"}, Outcome.SUCCEEDED, False),
        ({"terminalState": "Failed"}, Outcome.FAILED, False),
        (conditions(Completed="True"), Outcome.SUCCEEDED, False),
        (conditions(Failed="True"), Outcome.FAILED, False),
        (conditions(Suspended="True"), None, True),
        (conditions(Suspended="False"), None, False),
    ],
)
def test_a_jobset(status: Object, ended: Outcome | None, *, suspended: bool) -> None:
    facts = object_facts(obj("JobSet", status=status))
    assert (facts.ended, facts.suspended, facts.frees_itself) == (ended, suspended, True)


def test_a_jobset_has_started_when_all_its_jobs_are_ready() -> None:
    spec = {"replicatedJobs": [{"name": "head", "replicas": 1}, {"name": "workers", "replicas": 2}]}
    status = {"replicatedJobsStatus": [
        {"name": "head", "ready": 1, "succeeded": 0}, {"name": "workers", "ready": 1}]}  # fmt: skip
    assert not object_facts(obj("JobSet", spec=spec, status=status)).started
    status["replicatedJobsStatus"][1]["succeeded"] = 1
    assert object_facts(obj("JobSet", spec=spec, status=status)).started
    assert not object_facts(obj("JobSet")).started


def test_a_restart_of_a_jobset_leaves_a_mark_and_is_made_up_for() -> None:
    spec = {"failurePolicy": {"maxRestarts": 2}}
    first = object_facts(obj("JobSet", spec=spec, status={"restarts": 0}))
    assert first.tolerant
    assert object_facts(obj("JobSet", spec=spec, status={"restarts": 1})).marker != first.marker
    assert not object_facts(obj("JobSet")).tolerant


def test_a_job() -> None:
    assert object_facts(obj("Job", status={"active": 1, "ready": 1})).started
    # Pending pods are active; this one may never be scheduled.
    assert not object_facts(obj("Job", status={"active": 1, "ready": 0})).started
    # An older API server does not say.
    assert object_facts(obj("Job", status={"active": 1})).started
    assert object_facts(obj("Job", spec={"suspend": True})).suspended
    assert object_facts(obj("Job", status=conditions(Complete="True"))).ended is Outcome.SUCCEEDED
    failed = object_facts(obj("Job", status=conditions(Failed="True")))
    assert (failed.ended, failed.end_reason) == (Outcome.FAILED, "Why: words")


def test_another_kind_is_no_part_of_a_run() -> None:
    with pytest.raises(ValueError, match="Deployment is none of"):
        object_facts(obj("Deployment"))


# -- heads ---------------------------------------------------------------------------------


def pod(uid: str, made: str, *, ready: str = "True", **status: Any) -> Object:
    return {
        "metadata": {"uid": uid, "name": f"head-{uid}", "creationTimestamp": made},
        "spec": {"containers": [{"name": "ray-head"}, {"name": "sidecar"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [
                {"name": "sidecar", "restartCount": 7},
                {"name": "ray-head", "restartCount": 1},
            ],
            **status,
        },
    }


def test_only_rays_own_container_counts_restarts() -> None:
    head = head_facts([pod("a", "1")])
    assert isinstance(head, HeadFacts)
    assert (head.restarts, head.ready, head.phase) == (1, True, "Running")


def test_of_two_heads_the_newer_one_is_it() -> None:
    head = head_facts([pod("b", "2", ready="False"), pod("a", "1")])
    assert isinstance(head, HeadFacts)
    assert (head.uid, head.ready) == ("b", False)


def test_why_a_head_is_lost_is_kept() -> None:
    head = head_facts([pod("a", "1", phase="Failed", reason="Evicted", message="low on memory")])
    assert isinstance(head, HeadFacts)
    assert "Evicted; low on memory" in head.reason
    crashed = pod("a", "1")
    terminated = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    crashed["status"]["containerStatuses"][1]["lastState"] = terminated
    head = head_facts([crashed])
    assert isinstance(head, HeadFacts)
    assert "OOMKilled, exit code 137" in head.reason


@pytest.mark.parametrize("kind", ["DisruptionTarget", "TerminationTarget"])
def test_who_ends_a_head_and_why_is_kept(kind: str) -> None:
    target = {"type": kind, "reason": "WorkloadEvictedDueToPreempted", "message": "for another"}

    def reason(status: str) -> str:
        ending = pod("a", "1", conditions=[{**target, "status": status}])
        head = head_facts([ending])
        assert isinstance(head, HeadFacts)
        assert head.taken is (status == "True")
        return head.reason

    assert reason("True") == "WorkloadEvictedDueToPreempted: for another"
    assert reason("False") == ""


def test_no_head_is_absent() -> None:
    assert head_facts([]) is ABSENT


def test_head_pods_are_found_by_labels() -> None:
    assert head_selector(obj("RayCluster"), "") == "ray.io/cluster=x,ray.io/node-type=head"
    job = obj("RayJob", status={"rayClusterName": "x-1"})
    assert head_selector(job, "") == "ray.io/cluster=x-1,ray.io/node-type=head"
    assert head_selector(obj("RayJob"), "") is None
    assert head_selector(obj("JobSet"), "") is None
    selector = head_selector(obj("JobSet"), "head")
    assert selector is not None
    assert matches(selector, {"jobset.sigs.k8s.io/jobset-name": "x",
                              "jobset.sigs.k8s.io/replicatedjob-name": "head"})  # fmt: skip
    assert not matches(selector, {"jobset.sigs.k8s.io/jobset-name": "y"})


# -- what is written down ------------------------------------------------------------------


def test_a_verdict_reads_as_it_was_written() -> None:
    gym = Ref("RayCluster", "gym")
    verdict = Verdict("deleted", Outcome.FAILED, "gone", ("a", "b"), (Target(gym, "u"),), "t", "w")
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert verdict.covers(gym, "u")
    assert not verdict.covers(gym, "other")


def test_a_record_reads_as_it_was_written() -> None:
    record = {
        Ref("RayCluster", "rl"): Met("u-1", "m", HeadMark("p", 2), up=True),
        Ref("Job", "driver"): Met("u-2"),
    }
    assert record_from_json(record_to_json(record)) == record


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"rule": 1}', '{"a": {"uid": "x"}}', "null"]
)
def test_what_is_no_verdict_and_no_record_is_nothing(text: str) -> None:
    assert Verdict.from_json(text) is None
    assert record_from_json(text) == {}


# -- the registry --------------------------------------------------------------------------


def config_map(
    data: dict[str, str], *, run: str = "", owners: tuple[str, ...] = (), **kept: records.Record
) -> Object:
    metadata: Object = {"uid": "cm-1", "name": "nemo-rl-endpoints-x"}
    if run:
        metadata["labels"] = {records.RUN_LABEL: run}
    metadata["ownerReferences"] = [{"uid": uid} for uid in owners]
    metadata["annotations"] = {
        f"{records.RECORD}{key}": record.encode() for key, record in kept.items()
    }
    return {"metadata": metadata, "data": data}


def test_an_error_belongs_to_the_run_of_its_object() -> None:
    facts = registry_facts(config_map({"error": "oops"}, run="u-1.2"))
    assert facts.error == "oops"
    assert facts.error_runs == {"u-1"}


def test_without_a_run_the_owners_tell_whose_it_is() -> None:
    # NeMo RL's own client makes it so.
    facts = registry_facts(config_map({"error": "oops"}, owners=("u-1", "u-2")))
    assert facts.error_runs == {"u-1", "u-2"}
    assert registry_facts(config_map({"error": "oops"})).error_runs == frozenset()


def test_an_error_of_a_former_attempt_is_nobodys() -> None:
    old = records.Record(run="u-1", writer="gym", digest=records.digest("oops"))
    found = config_map({"error": "oops"}, run="u-1.1", error=old)
    assert registry_facts(found).error_runs == frozenset()
    # One that a client without records wrote over it is of now.
    newer = config_map({"error": "again"}, run="u-1.1", error=old)
    assert registry_facts(newer).error_runs == {"u-1"}


def test_an_empty_error_is_none() -> None:
    assert registry_facts(config_map({"error": ""}, run="u-1")).error_runs == frozenset()


def test_leases_are_those_of_writers_at_work_for_this_run() -> None:
    beat = records.Record(run="u-1", writer="gym", pod="p", at="t", lease_seconds=30.0, beat=4)
    found = config_map(
        {}, run="u-1", gym_head_server=beat,
        vllm_base_urls=records.Record(run="u-0", writer="rl", lease_seconds=30.0),
        done=records.Record(
            run="u-1", writer="x", lease_seconds=30.0, state=records.State.WITHDRAWN
        ),
        no_lease=records.Record(run="u-1", writer="y"),
    )  # fmt: skip
    assert registry_facts(found).leases == (
        LeaseFacts("gym_head_server", "p#4@t", 30.0, "u-1", "gym"),
    )


def test_a_renewal_is_seen_as_a_change() -> None:
    def renewed(beat: int) -> str:
        record = records.Record(run="u-1", writer="gym", lease_seconds=30.0, beat=beat)
        return registry_facts(config_map({}, run="u-1", k=record)).leases[0].renewed

    assert renewed(1) != renewed(2)
