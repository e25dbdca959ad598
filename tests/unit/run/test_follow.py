"""What the follower tells a person, and when it gives a run up; the clock is handed in."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import Problem, UserError
from tandem.run import follow
from tandem.run.follow import PENDING_SECONDS, Follower
from tandem.run.shapes import Run
from tandem.run.verdict import (
    PATIENCE_SECONDS,
    UNSEEN_PATIENCE_SECONDS,
    UNSEEN_SECONDS,
    Verdict,
)
from tandem.run.watches import Seen
from tandem_common.kube.resources import RAYJOBS

RUN = Run("tandem", "run", RAYJOBS, "run", "uid-1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def follower(clock: Clock) -> Follower:
    made = Follower(RUN, clock)
    template = {"metadata": {"labels": {"tandem.dev/role": "rl"}}}
    rayjob = {
        "metadata": {"uid": "uid-1"},
        "spec": {"rayClusterSpec": {"headGroupSpec": {"template": template}}},
        "status": {"rayClusterName": "run-x"},
    }
    made.take(Seen("top", deleted=False, obj=rayjob))
    return made


def pod(name: str = "head", *, words: str = "", waiting: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Pending"}
    if words:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": words}]
    if waiting:
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        state = {"waiting": {"reason": waiting, "message": "i/o timeout"}}
        status["containerStatuses"] = [{"name": "ray-head", "image": "nvcr.io/x", "state": state}]
    labels = {"ray.io/cluster": "run-x"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def see(follower: Follower, obj: dict[str, Any], *, deleted: bool = False) -> None:
    assert follower.take(Seen("pod", deleted=deleted, obj=obj)) is None


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "warn" in line]


def test_the_schedulers_words_are_told_once_for_each_change(
    follower: Follower, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    see(follower, pod(words="0/1 nodes: Insufficient cpu"))
    follower.tell()
    assert told(capsys) == []  # A moment of Pending is normal.
    clock.now += PENDING_SECONDS + 1
    for _ in range(3):
        follower.tell()
    [line] = told(capsys)
    assert "pending: head: 0/1 nodes: Insufficient cpu" in line
    see(follower, pod(words="0/1 nodes: Insufficient memory"))
    follower.tell()
    see(follower, pod(words="0/1 nodes: Insufficient cpu"))
    follower.tell()
    assert ["memory" in line for line in told(capsys)] == [True, False]


def test_a_pod_without_a_scheduler_is_told_of_and_then_given_up(
    follower: Follower, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    see(follower, pod())
    follower.tell()
    clock.now += UNSEEN_SECONDS
    follower.tell()
    follower.tell()
    [line] = told(capsys)
    assert "no scheduler has taken it" in line
    assert follower.given_up() is None
    clock.now += UNSEEN_PATIENCE_SECONDS - UNSEEN_SECONDS
    verdict = follower.given_up()
    assert verdict is not None
    assert verdict.reason == "NoScheduler"


def test_the_clock_of_a_wait_starts_anew_when_it_ended_meanwhile(
    follower: Follower, clock: Clock
) -> None:
    see(follower, pod(waiting="ErrImagePull"))
    assert follower.given_up() is None
    clock.now += PATIENCE_SECONDS - 1
    see(follower, pod(words="on its way"))
    assert follower.given_up() is None
    see(follower, pod(waiting="ErrImagePull"))
    clock.now += PATIENCE_SECONDS - 1
    assert follower.given_up() is None
    clock.now += PATIENCE_SECONDS
    assert follower.given_up() is not None


def waits_too_long(follower: Follower, clock: Clock) -> None:
    see(follower, pod(waiting="ErrImagePull"))
    assert follower.given_up() is None
    clock.now += PATIENCE_SECONDS + 1
    assert follower.given_up() is not None


def test_a_pod_that_went_unseen_gives_no_run_up(
    follower: Follower, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_too_long(follower, clock)
    monkeypatch.setattr(follow, "get", lambda *_, **__: {"items": []})
    assert follower.confirmed() is None
    assert follower.given_up() is None


def test_an_api_server_that_is_away_gives_no_run_up(
    follower: Follower, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_too_long(follower, clock)

    def away(*_: object, **__: object) -> None:
        raise UserError(Problem("no answer", "wait"))

    monkeypatch.setattr(follow, "get", away)
    assert follower.confirmed() is None


def test_a_wait_that_is_still_there_gives_the_run_up(
    follower: Follower, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_too_long(follower, clock)
    still = {"items": [pod(waiting="ImagePullBackOff")]}
    monkeypatch.setattr(follow, "get", lambda *_, **__: still)
    verdict = follower.confirmed()
    assert verdict is not None
    assert verdict.reason == "ImagePullBackOff"


def test_a_failure_names_the_part_that_ended_by_itself(follower: Follower) -> None:
    failed = pod("head")
    failed["metadata"]["labels"] |= {"tandem.dev/role": "rl", "ray.io/node-type": "head"}
    terminated = {"exitCode": 3, "finishedAt": "2026-12-02T10:00:00Z"}
    failed["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "ray-token", "state": {"terminated": terminated}}],
    }
    verdict = Verdict(succeeded=False, exit_code=1, reason="Failed", message="FailJobSet")
    assert follower.explained(verdict) == verdict
    see(follower, failed)
    # A pod that is gone has said its last word.
    see(follower, failed, deleted=True)
    told = follower.explained(verdict)
    assert told.message == "FailJobSet; rl/head: container ray-token ended with code 3"
    assert follower.explained(told) == told
    good = Verdict(succeeded=True, exit_code=0, reason="Succeeded", message="done")
    assert follower.explained(good) == good


def test_another_run_of_that_name_is_not_this_one(follower: Follower) -> None:
    other = {
        "kind": "RayJob", "metadata": {"uid": "uid-2"},
        "status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"},
    }  # fmt: skip
    assert follower.take(Seen("top", deleted=False, obj=other)) is None
    own = {**other, "metadata": {"uid": "uid-1"}}
    assert follower.take(Seen("top", deleted=False, obj=own)) is not None


def test_a_run_that_went_while_the_api_server_was_away_is_noticed(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[dict[str, Any] | None] = [{"metadata": {"uid": "uid-1"}}]
    monkeypatch.setattr(follow, "get", lambda *_, **__: there[0])
    assert follower.look() is None
    for gone in (None, {"metadata": {"uid": "uid-2"}}):
        there[0] = gone
        verdict = follower.look()
        assert verdict is not None
        assert verdict.reason == "Deleted"
    # Of a run that nobody has seen yet, too.
    assert Follower(RUN).look() is not None


def test_pods_of_the_next_run_of_this_id_are_not_waited_for(follower: Follower) -> None:
    shown: list[str] = []
    follower.see_pod = lambda obj: shown.append(obj["metadata"]["name"])
    see(follower, pod("head"))
    follower.decided = True
    see(follower, pod("another"))
    see(follower, pod("head"))
    assert shown == ["head", "head"], "nor are their words kept among ours"
    assert [each["metadata"]["name"] for each in follower.pods()] == ["head"]
    see(follower, pod("head"), deleted=True)
    assert follower.pods() == []


def test_a_run_that_queues_is_known_to_be_suspended(follower: Follower) -> None:
    assert not follower.suspended
    rayjob = {"metadata": {"uid": "uid-1"}, "spec": {"suspend": True, "rayClusterSpec": {}}}
    follower.take(Seen("top", deleted=False, obj=rayjob))
    assert follower.suspended
