"""Single acts at the real API server: what a race can do between a look and a write."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from peer_watcher.act import Actor
from peer_watcher.convert import VERDICT_ANNOTATION
from peer_watcher.facts import Outcome, Ref, Target, Verdict
from peer_watcher.main import wall_time
from support.fault_proxy import Answer, FaultProxy
from support.stage import GYM, MEMBERS, RL, Stage
from tandem_common.clock import Deadline
from tandem_common.kube import EVENTS, Client

pytestmark = pytest.mark.api_server


def actor(client: Client, name: str = "one") -> Actor:
    return Actor(client, identity=name, now=wall_time)


def until(met: Callable[[], bool]) -> None:
    deadline = Deadline(30)
    while not met():
        assert not deadline.passed
        time.sleep(0.05)


def verdict(*targets: Target, rule: str = "deleted") -> Verdict:
    return Verdict(rule, Outcome.FAILED, "gone", ("seen",), targets)


def test_an_incarnation_that_came_between_look_and_deletion_is_spared(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.raycluster(GYM)
    old = stage.get(GYM)
    assert old is not None
    target = Target(GYM, str(old["metadata"]["uid"]))
    stage.delete(GYM)
    until(lambda: stage.gone(GYM))
    stage.raycluster(GYM)
    fresh = stage.uid(GYM)
    hands = actor(client)
    faults: list[str] = []
    assert hands._delete(target, old, faults)
    assert faults == []
    # What it saw a moment ago is what it believes, until it looks again.
    looks, look = iter([old]), hands._find
    monkeypatch.setattr(hands, "_find", lambda t, faults: next(looks, None) or look(t, faults))
    progress = hands.advance(verdict(target))
    assert stage.uid(GYM) == fresh
    found = stage.get(GYM)
    assert found is not None
    assert VERDICT_ANNOTATION not in (found["metadata"].get("annotations") or {})
    assert progress.left == ()


def test_a_verdict_is_told_when_nothing_is_left_to_write_it_on(
    stage: Stage, client: Client
) -> None:
    gone = Target(RL, "00000000-0000-0000-0000-000000000000")
    hands = actor(client)
    assert hands.advance(verdict(gone)).done
    assert hands.advance(verdict(gone)).done
    listed = client.list(EVENTS).items
    [told] = [each for each in listed if each["reason"] == "RunFailed"]
    assert told["regarding"]["name"] == RL.name
    assert "[deleted]" in told["note"]
    assert stage.get(RL) is None


def test_the_first_verdict_stays(stage: Stage, client: Client, proxy: FaultProxy) -> None:
    stage.raycluster(RL)
    stage.hold(RL)
    target = Target(RL, stage.uid(RL))
    first, second = actor(client, "first"), actor(client, "second")
    assert first.advance(verdict(target, rule="deleted")).left == (target,)
    second.advance(verdict(target, rule="registry-error"))
    found = stage.get(RL)
    assert found is not None
    standing = Verdict.from_json(found["metadata"]["annotations"][VERDICT_ANNOTATION])
    assert standing is not None
    assert (standing.rule, standing.by) == ("deleted", "first")
    assert len(stage.events()) == 1
    # It is on its way; nobody asks twice.
    assert proxy.count("delete") == 1
    stage.drop_finalizers(RL)


def test_a_verdict_written_between_look_and_write_stays(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.raycluster(RL)
    stage.hold(RL)
    target = Target(RL, stage.uid(RL))
    before = stage.get(RL)
    assert before is not None
    actor(client, "first").advance(verdict(target))
    second = actor(client, "second")
    monkeypatch.setattr(second, "_find", lambda _target, _faults: before)
    second.advance(verdict(target, rule="registry-error"))
    found = stage.get(RL)
    assert found is not None
    standing = Verdict.from_json(found["metadata"]["annotations"][VERDICT_ANNOTATION])
    assert standing is not None
    assert standing.by == "first"
    stage.drop_finalizers(RL)


def test_a_conflict_on_a_deletion_does_not_make_it_gone(
    stage: Stage, client: Client, proxy: FaultProxy
) -> None:
    stage.raycluster(RL)
    target = Target(RL, stage.uid(RL))
    proxy.inject(Answer(409), verb="delete", count=1)
    hands = actor(client)
    progress = hands.advance(verdict(target))
    assert progress.left == (target,)
    assert "Conflict" in progress.faults[0]
    until(lambda: hands.advance(verdict(target)).done)
    assert stage.gone(RL)


@pytest.mark.parametrize("status", [429, 503])
def test_a_fault_during_the_teardown_is_tried_again(
    stage: Stage, client: Client, proxy: FaultProxy, status: int
) -> None:
    stage.raycluster(RL)
    target = Target(RL, stage.uid(RL))
    proxy.inject(Answer(status), verb=("create", "patch", "delete"), count=3)
    hands = actor(client)
    until(lambda: hands.advance(verdict(target)).done)
    assert stage.gone(RL)


def test_the_registry_stays_until_a_failed_jobsets_pods_have_ended(
    stage: Stage, client: Client
) -> None:
    whole = Ref("JobSet", "run")
    pod = stage.jobset(whole)
    stage.registry(run=whole)
    stage.status(whole, conditions=[{
        "type": "Failed", "status": "True", "reason": "Test", "message": "",
        "lastTransitionTime": "2026-12-01T00:00:00Z",
    }])  # fmt: skip
    target = Target(whole, stage.uid(whole))
    config_map = Ref("ConfigMap", MEMBERS.registry)
    end = verdict(target, Target(config_map, stage.uid(config_map)))
    hands = actor(client)
    # It says that it has failed; the driver still ends, and may write why.
    assert hands.advance(end).left == (target,)
    assert stage.get(config_map) is not None
    stage.pod(pod, phase="Failed")
    until(lambda: hands.advance(end).done)
    until(lambda: stage.gone(config_map))
    # It keeps its own record.
    assert stage.get(whole) is not None


def test_a_reason_of_any_length_and_script_is_told_by_an_event(
    stage: Stage, client: Client
) -> None:
    stage.raycluster(RL)
    target = Target(RL, stage.uid(RL))
    # Ray frames its messages with lines of three bytes a character.
    reason = "the actor died " + "\u2500" * 900
    end = Verdict("registry-error", Outcome.FAILED, reason, ("seen",), (target,))
    hands = actor(client)
    assert hands.advance(end).faults == ()
    [event] = stage.events()
    assert event["note"].startswith("the actor died \u2500")
    assert len(event["note"].encode()) <= 1024
