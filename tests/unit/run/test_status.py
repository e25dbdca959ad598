"""One screen about a run, from what the cluster and this checkout know."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from peer_watcher.convert import VERDICT_ANNOTATION
from peer_watcher.facts import Outcome, Verdict
from support.run_objects import RUN_ID, job, jobset, meta, pod, raycluster
from tandem.run.status import Status, age_of, show, status_of, to_json
from tandem.run.verdict import verdict_of

GOING = [
    job(), raycluster("rl-a7", "rl", workers=1), raycluster("gym-a7", "gym"),
    pod("rl", "head"), pod("rl", "worker"), pod("gym", "head"), pod("driver"),
]  # fmt: skip


def status(things: list[dict[str, Any]], **more: Any) -> Status:
    found = status_of(RUN_ID, things, more.get("registry"), more.get("events", []),
                      more.get("summary"))  # fmt: skip
    assert found is not None
    return found


def event(reason: str, note: str, time: str = "2026-12-02T10:05:00Z", run: str = RUN_ID) -> Any:
    return {
        "metadata": {"name": "e", "labels": {"tandem.dev/run-id": run}},
        "involvedObject": {"kind": "RayCluster", "name": "rl-a7"},
        "reason": reason, "message": note, "eventTime": time, "type": "Warning",
    }  # fmt: skip


def verdict(outcome: Outcome = Outcome.FAILED) -> dict[str, str]:
    said = Verdict("head-lost", outcome, "RayCluster/gym-a7 lost its head", ("evicted",))
    return {VERDICT_ANNOTATION: said.to_json()}


def test_nobody_knows_it() -> None:
    assert status_of("other", [], None, [event("RunFailed", "x")]) is None


def test_a_run_that_goes_on() -> None:
    registry = {"data": {"gym_head_server": "http://198.18.0.9:9090"}}
    found = status(GOING, registry=registry)
    assert (found.state, found.over, found.verdict) == ("running", False, None)
    assert [str(each.group) for each in found.groups] == [
        "rl/head", "rl/workers", "gym/head", "driver",
    ]  # fmt: skip
    out = io.StringIO()
    show(found, Console(file=out, width=120))
    for said in ("run a7", "running", "gym/head", "gym_head_server = http://198.18.0.9:9090"):
        assert said in out.getvalue()
    assert "\x1b" not in out.getvalue(), "colour is for a TTY"


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ([], "pending"),
        ([pod("rl", "head", phase="Pending", words="no room")], "pending"),
        ([pod("rl", "head", ready=False)], "starting"),
        ([pod("rl", "head"), pod("gym", "head")], "starting"),
    ],
)
def test_a_run_that_is_not_yet_whole(pods: list[dict[str, Any]], state: str) -> None:
    assert status([*GOING[:3], *pods]).state == state


def test_its_queue_and_why_it_waits_are_told() -> None:
    top = job()
    top["metadata"]["labels"]["kai.scheduler/queue"] = "low-prio"
    waiting = pod("driver", phase="Pending", words="gang of 4: queue low-prio is full")
    found = status([top, waiting])
    assert found.queue == "low-prio"
    assert to_json(found)["roles"][0]["why"] == "gang of 4: queue low-prio is full"


def test_a_queue_of_kueues_is_told_from_the_run_or_its_pods() -> None:
    top, waiting = job(), pod("driver", phase="Pending")
    waiting["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "low-prio"
    assert status([top, waiting]).queue == "low-prio"
    top["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "high-prio"
    assert status([top]).queue == "high-prio"


def test_a_run_that_is_being_deleted_is_ending() -> None:
    things = [job(), raycluster("rl-a7", "rl", deletionTimestamp="now"), pod("rl", "head")]
    assert status(things).state == "ending"


def test_a_watchers_verdict_is_the_runs_on_whatever_object_it_stands() -> None:
    on_job = status([job(annotations=verdict()), pod("driver")])
    on_side = status([job(), raycluster("rl-a7", "rl", annotations=verdict())])
    for found in (on_job, on_side):
        assert found.state == "failed"
        assert found.verdict is not None
        assert found.verdict.reason == "head-lost"
        assert found.verdict.message == "RayCluster/gym-a7 lost its head; evicted"
    good = status([job(ended="Complete", annotations=verdict(Outcome.SUCCEEDED))])
    assert good.state == "succeeded"


def test_events_tell_of_a_run_whose_objects_are_gone() -> None:
    events = [event("RunFailed", "gym lost its head"), event("RunFailed", "not mine", run="b")]
    found = status([], events=events)
    assert (found.state, found.verdict and found.verdict.message) == ("failed", "gym lost its head")
    later = event("RunStopped", "stopped by make stop", "2026-12-02T10:09:00Z")
    assert status([], events=[later, *events]).state == "stopped"
    # A run of this id that goes on is not judged by a former one's Event.
    assert status(GOING, events=events).state == "running"


def test_what_was_kept_tells_of_a_run_whose_events_are_gone() -> None:
    summary = {"succeeded": True, "exit_code": 0, "reason": "succeeded", "variant": "v"}
    found = status([], summary=summary)
    assert (found.state, found.variant) == ("succeeded", "v")


def test_warnings_of_its_own_objects_are_told_while_it_goes_on() -> None:
    mine = event("FailedCreate", "no ServiceAccount")
    other = event("FailedCreate", "another")
    other["involvedObject"]["name"] = "rl-b"
    assert status(GOING, events=[mine, other]).warnings == (
        "RayCluster/rl-a7: FailedCreate: no ServiceAccount",
    )
    assert status([job(ended="Complete")], events=[mine]).warnings == ()


def test_an_age_has_two_units_at_most() -> None:
    now = datetime(2026, 12, 2, 12, 0, 5, tzinfo=UTC)
    assert age_of("2026-12-02T12:00:00Z", now) == "5s"
    assert age_of("2026-12-02T10:58:00Z", now) == "1h2m"
    assert age_of("", now) == ""


@pytest.mark.parametrize(
    ("code", "expected"),
    [(7, 7), (137, 1), (143, 1), (None, 1)],
    ids=["its own", "killed", "terminated", "not known"],
)
@pytest.mark.parametrize("made", [job(ended="Failed"), jobset(ended="Failed")], ids=["job", "set"])
def test_the_drivers_own_exit_code_is_the_runs(
    made: dict[str, Any], code: int | None, expected: int
) -> None:
    pods = [pod("driver", exit_code=code, phase="Failed")] if code is not None else []
    found = verdict_of(made, pods)
    assert found is not None
    assert (found.succeeded, found.exit_code) == (False, expected)


def test_an_ended_jobset_or_driver_is_a_success() -> None:
    for made in (job(ended="Complete"), jobset(ended="Completed")):
        found = verdict_of(made, [])
        assert found is not None
        assert (found.succeeded, found.exit_code) == (True, 0)
    assert verdict_of(job(), []) is None
    assert verdict_of(jobset(), []) is None
    gone = verdict_of(jobset(deletionTimestamp="now"), [])
    assert gone is not None
    assert gone.reason == "Deleted"
    assert meta("x", "rl")["labels"]["tandem.dev/role"] == "rl"


def test_only_the_drivers_container_has_the_runs_exit_code() -> None:
    beside = pod("driver", exit_code=5, phase="Failed")
    beside["status"]["containerStatuses"][0]["name"] = "proxy"
    elsewhere = pod("rl", "head", exit_code=6, phase="Failed")
    elsewhere["status"]["containerStatuses"][0]["name"] = "driver"
    found = verdict_of(job(ended="Failed"), [beside, elsewhere])
    assert found is not None
    assert found.exit_code == 1


def test_a_watcher_knows_more_than_the_condition() -> None:
    found = verdict_of(job(ended="Failed", annotations=verdict()), [pod("driver", exit_code=4)])
    assert found is not None
    assert (found.reason, found.exit_code) == ("head-lost", 4)
