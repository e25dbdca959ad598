from typing import Any

import pytest

from tandem.run.verdict import hopeless_pod, pending_reasons, state_of, verdict_of


def rayjob(**status: str) -> dict[str, Any]:
    return {"metadata": {"name": "run"}, "status": status}


def pod(*, waiting: str = "", init: bool = False, unschedulable: str = "") -> dict[str, Any]:
    container = {"name": "ray-head", "image": "image:tag", "state": {}}
    if waiting:
        container["state"] = {"waiting": {"reason": waiting}}
    status: dict[str, Any] = {"initContainerStatuses" if init else "containerStatuses": [container]}
    if unschedulable:
        status["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": unschedulable}
        ]
    return {"metadata": {"name": "head"}, "status": status}


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
def test_a_wrong_image_is_hopeless_and_named(reason: str, init: bool) -> None:  # noqa: FBT001
    verdict = hopeless_pod([pod(), pod(waiting=reason, init=init)])
    assert verdict is not None
    assert verdict.reason == reason
    assert "image:tag" in verdict.message
    assert "image" in verdict.fix


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "CrashLoopBackOff"])
def test_ordinary_waiting_is_not_hopeless(reason: str) -> None:
    assert hopeless_pod([pod(waiting=reason)]) is None


def test_the_schedulers_words_are_repeated() -> None:
    assert pending_reasons([pod(), pod(unschedulable="Insufficient nvidia.com/gpu")]) == [
        "head: Insufficient nvidia.com/gpu"
    ]


def test_the_state_reads_as_one_phrase() -> None:
    assert state_of({}) == "New"
    assert state_of(rayjob(jobDeploymentStatus="Running", jobStatus="PENDING")) == (
        "Running / PENDING"
    )
