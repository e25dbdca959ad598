import math
from typing import Any

import pytest

from tandem.run.verdict import (
    PATIENCE_SECONDS,
    UNSEEN_PATIENCE_SECONDS,
    UNSEEN_SECONDS,
    state_of,
    unplaced,
    verdict_of,
    waits_of,
)


def rayjob(**status: str) -> dict[str, Any]:
    return {"kind": "RayJob", "metadata": {"name": "run"}, "status": status}


def pod(
    *,
    waiting: str = "",
    said: str = "",
    init: bool = False,
    unschedulable: str = "",
    image: str = "registry/image:tag",
) -> dict[str, Any]:
    container = {"name": "ray-head", "image": image, "state": {}}
    if waiting:
        container["state"] = {"waiting": {"reason": waiting, "message": said}}
    status: dict[str, Any] = {"initContainerStatuses" if init else "containerStatuses": [container]}
    status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    if unschedulable:
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": unschedulable}
        ]
    return {"metadata": {"name": "head"}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"jobDeploymentStatus": "Initializing"},
        {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"},
        # The job is done, its cluster is not yet: a final word still comes.
        {"jobDeploymentStatus": "Running", "jobStatus": "SUCCEEDED"},
        # Between two attempts.
        {"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"},
    ],
)
def test_a_run_that_can_go_either_way_has_no_verdict(status: dict[str, str]) -> None:
    assert verdict_of(rayjob(**status)) is None


def test_a_complete_run_that_succeeded() -> None:
    verdict = verdict_of(rayjob(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED"))
    assert verdict is not None
    assert verdict.succeeded
    assert verdict.exit_code == 0


@pytest.mark.parametrize("deployment", ["Complete", "Failed"])
def test_the_commands_own_exit_code_is_the_runs(deployment: str) -> None:
    verdict = verdict_of(
        rayjob(
            jobDeploymentStatus=deployment,
            jobStatus="FAILED",
            reason="AppFailed",
            message="Job entrypoint command failed with exit code 7, last available logs: …",
        )
    )
    assert verdict is not None
    assert not verdict.succeeded
    assert (verdict.exit_code, verdict.reason) == (7, "AppFailed")
    assert "entrypoint command failed" in verdict.message


@pytest.mark.parametrize("message", ["", "deadline exceeded", "failed with exit code 0"])
def test_a_failure_without_a_usable_code_is_1_and_never_0(message: str) -> None:
    verdict = verdict_of(rayjob(jobDeploymentStatus="Failed", message=message))
    assert verdict is not None
    assert verdict.exit_code == 1


def test_a_run_that_somebody_deletes_has_failed() -> None:
    deleted = rayjob(jobDeploymentStatus="Running")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    verdict = verdict_of(deleted)
    assert verdict is not None
    assert (verdict.succeeded, verdict.reason) == (False, "Deleted")


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"])
def test_a_wrong_image_is_named_and_lingers(reason: str, init: bool) -> None:  # noqa: FBT001
    [wait] = waits_of([pod(), pod(waiting=reason, init=init)])
    assert wait.verdict.reason == reason
    assert "registry/image:tag" in wait.verdict.message
    assert "image" in wait.verdict.fix
    # Its RayJob goes on: whoever gives it up has to end it.
    assert wait.verdict.lingers
    assert not wait.verdict.succeeded


@pytest.mark.parametrize(
    ("image", "reason", "said", "patience"),
    [
        ("localhost/tandem/x:dev", "ImagePullBackOff", "connection refused", 0),
        ("nvcr.io/x:1", "ErrImagePull", "failed to resolve: nvcr.io/x:1: not found", 0),
        ("nvcr.io/x:1", "ImagePullBackOff", "401 Unauthorized", 0),
        ("nvcr.io/x:1", "ErrImageNeverPull", "", 0),
        ("nvcr.io/X:1", "InvalidImageName", "", 0),
        # A registry out of reach, or a Secret that is on its way, may still come.
        ("nvcr.io/x:1", "ErrImagePull", "dial tcp: i/o timeout", PATIENCE_SECONDS),
        ("nvcr.io/x:1", "CreateContainerConfigError", 'secret "token" not found', PATIENCE_SECONDS),
    ],
)
def test_only_what_cannot_come_is_given_up_at_once(
    image: str, reason: str, said: str, patience: float
) -> None:
    [wait] = waits_of([pod(waiting=reason, said=said, image=image)])
    assert wait.patience == patience


def test_the_two_reasons_of_a_failing_pull_are_one_wait() -> None:
    [first] = waits_of([pod(waiting="ErrImagePull", said="timeout")])
    [second] = waits_of([pod(waiting="ImagePullBackOff", said="timeout")])
    assert first.key == second.key


def test_what_is_certain_comes_before_what_is_not() -> None:
    waits = waits_of([pod(waiting="ErrImagePull"), pod(waiting="InvalidImageName")])
    assert [wait.verdict.reason for wait in waits] == ["InvalidImageName", "ErrImagePull"]


def test_a_pod_that_is_going_is_not_judged() -> None:
    going = pod(waiting="InvalidImageName")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert waits_of([going]) == []


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "CrashLoopBackOff"])
def test_ordinary_waiting_is_not_hopeless(reason: str) -> None:
    assert waits_of([pod(waiting=reason)]) == []


def unseen(**spec: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "head"},
        "spec": {"schedulerName": "kai-scheduler", **spec},
        "status": {"phase": "Pending"},
    }


def test_a_pod_that_no_scheduler_takes_is_given_up_after_a_grace() -> None:
    [wait] = waits_of([unseen()])
    assert wait.verdict.reason == "NoScheduler"
    assert "kai-scheduler" in wait.verdict.message
    assert "kai-scheduler" in wait.verdict.fix
    assert wait.verdict.lingers
    assert (wait.tell_after, wait.patience) == (UNSEEN_SECONDS, UNSEEN_PATIENCE_SECONDS)


def test_a_pod_that_a_scheduler_has_judged_may_wait_for_room() -> None:
    assert waits_of([pod(unschedulable="Insufficient nvidia.com/gpu")]) == []


def test_a_pod_on_a_node_has_been_seen() -> None:
    assert waits_of([unseen(nodeName="local")]) == []


def test_a_gang_may_wait_for_its_last_member_and_is_told_of() -> None:
    # KAI sets no condition before the PodGroup is complete.
    grouped = unseen()
    grouped["metadata"]["annotations"] = {"pod-group-name": "pg-run"}
    [wait] = waits_of([grouped])
    assert wait.patience == math.inf
    assert "PodGroup pg-run" in wait.verdict.message


def test_the_schedulers_words_are_repeated() -> None:
    assert unplaced([pod(), pod(unschedulable="Insufficient nvidia.com/gpu")]) == {
        "head": "Insufficient nvidia.com/gpu"
    }


def test_the_state_reads_as_one_phrase() -> None:
    assert state_of(rayjob()) == "New"
    assert state_of(rayjob(jobDeploymentStatus="Running", jobStatus="PENDING")) == (
        "Running / PENDING"
    )
