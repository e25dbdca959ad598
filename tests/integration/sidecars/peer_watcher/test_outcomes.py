"""Every situation of the README's table, at the real API server: what happens, and what not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from peer_watcher.convert import RECORD_ANNOTATION, VERDICT_ANNOTATION
from peer_watcher.facts import Members, Outcome, Ref, Verdict
from peer_watcher.observe import RESOURCES
from support.fault_proxy import Answer, FaultProxy, Hang
from support.stage import DRIVER, GYM, LIMITS, MEMBERS, PEERS_VIEW, RL, Hands, Running, Stage
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode
from tandem_common.kube import CONFIGMAPS, Client
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

Make = Callable[..., Hands]


def verdict_on(stage: Stage, ref: Ref) -> Verdict:
    found = stage.get(ref)
    assert found is not None
    verdict = Verdict.from_json(found["metadata"]["annotations"][VERDICT_ANNOTATION])
    assert verdict is not None
    return verdict


def test_a_dead_head_ends_both_sides_and_the_driver(stage: Stage, hands: Make) -> None:
    heads = stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.pod(heads[GYM], phase="Failed", reason="Evicted")
    watcher.until(lambda: not watcher.alive, "torn down")
    assert watcher.code is ExitCode.OK
    # Foreground: the pods are gone too.
    assert stage.gone(RL, GYM, DRIVER, Ref("ConfigMap", MEMBERS.registry))
    assert stage.client.list(RESOURCES["Job"]).items == ()
    events = stage.events()
    names = {event["regarding"]["name"] for event in events}
    assert names == {"rl", "gym", "driver", MEMBERS.registry}
    assert {event["reason"] for event in events} == {"RunFailed"}
    assert all("Evicted" in event["note"] and "[head-lost]" in event["note"] for event in events)


def test_a_preempted_head_ends_the_run_with_the_words_of_who_took_it(
    stage: Stage, hands: Make
) -> None:
    heads = stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    # As Kueue marks the pods of a group before it deletes them.
    stage.pod(heads[GYM], phase="Failed", taken="Preempted to accommodate a workload")
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, GYM, DRIVER)
    for event in stage.events():
        assert "Preempted to accommodate a workload" in event["note"]
        assert "[head-evicted]" in event["note"]


def test_the_verdict_stands_before_anything_is_deleted(
    stage: Stage, hands: Make, proxy: FaultProxy
) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.write_error("out of memory")
    watcher.until(lambda: not watcher.alive, "torn down")
    writes = [
        (seen.verb, seen.resource) for seen in proxy.seen
        if seen.verb in ("patch", "create", "delete")
    ]  # fmt: skip
    first = writes.index(("delete", "rayclusters"))
    assert writes[:first].count(("create", "events")) == 3
    # Each side's annotation, the driver's, and before them the watcher's own record.
    assert writes[:first].count(("patch", "rayclusters")) >= 2
    assert ("patch", "jobs") in writes[:first]


@pytest.mark.parametrize("reason", ["annotation", "event"])
def test_without_a_verdict_on_the_server_nothing_is_deleted(
    stage: Stage, hands: Make, proxy: FaultProxy, reason: str
) -> None:
    stage.run_up()
    watcher = hands(teardown_seconds=3.0)
    watcher.until_up(RL, GYM, DRIVER)
    watcher.step()
    refused = Answer(403)
    proxy.inject(refused, verb="create", resource="events", count=None)
    if reason == "annotation":
        proxy.inject(refused, verb="patch", count=None)
    stage.write_error("out of memory")
    watcher.until(lambda: not watcher.alive, "gave up or done")
    if reason == "annotation":
        assert watcher.code is ExitCode.FAILURE
        assert proxy.count("delete") == 0
    else:
        # One of the two is enough, but a verdict that half stands is told as a fault.
        assert proxy.count("delete") >= 3


def test_a_run_of_which_only_the_registry_is_left_tells_its_end_there(
    stage: Stage, hands: Make, proxy: FaultProxy
) -> None:
    stage.run_up()
    watcher = hands(teardown_seconds=3.0)
    watcher.until_up(RL, GYM, DRIVER)
    proxy.inject(Answer(403), verb="create", resource="events", count=None)
    for ref in (RL, GYM, DRIVER):
        stage.delete(ref)
    # A person deleted all of it at once, before the watcher looked again.
    deadline = Deadline(60)
    while not stage.gone(RL, GYM, DRIVER):
        assert not deadline.passed
        time.sleep(0.05)
    watcher.until(lambda: watcher.code is ExitCode.FAILURE, "gave up")
    registry = Ref("ConfigMap", MEMBERS.registry)
    assert stage.get(registry), "deleted without a word"
    proxy.clear()
    watcher.go_on()
    watcher.until(lambda: watcher.code is ExitCode.OK, "torn down")
    watcher.until(lambda: stage.gone(registry), "gone")
    [event] = stage.events()
    assert event["regarding"]["name"] == MEMBERS.registry
    assert "[deleted]" in event["note"]


def test_the_drivers_success_frees_both_sides_and_keeps_its_logs(stage: Stage, hands: Make) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.end_job("Succeeded")
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, GYM)
    verdict = verdict_on(stage, DRIVER)
    assert (verdict.rule, verdict.outcome) == ("succeeded", Outcome.SUCCEEDED)
    assert {event["type"] for event in stage.events()} == {"Normal"}


def test_the_drivers_failure_is_a_failure(stage: Stage, hands: Make) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.end_job("Failed")
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, GYM)
    verdict = verdict_on(stage, DRIVER)
    assert (verdict.rule, verdict.outcome) == ("ended-failed", Outcome.FAILED)
    assert "BackoffLimitExceeded" in verdict.reason


def test_a_rayjob_and_a_jobset_are_sides_too(stage: Stage, hands: Make) -> None:
    job, gym = Ref("RayJob", "rl"), Ref("JobSet", "gym")
    pod = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "ray:v1"}]}}}
    stage.client.create(RESOURCES["RayJob"], {
        "metadata": {"name": "rl"},
        "spec": {"entrypoint": "true", "shutdownAfterJobFinishes": True,
                 "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, **pod}}},
    })  # fmt: skip
    template = {"spec": {"template": {"spec": {**pod["template"]["spec"],
                                               "restartPolicy": "Never"}}}}  # fmt: skip
    stage.client.create(RESOURCES["JobSet"], {
        "metadata": {"name": "gym"},
        "spec": {"replicatedJobs": [{"name": "head", "replicas": 1, "template": template}]},
    })  # fmt: skip
    ready = [{"type": "HeadPodReady", "status": "True", "reason": "x", "message": "",
              "lastTransitionTime": "2026-12-01T00:00:00Z"}]  # fmt: skip
    stage.status(job, jobDeploymentStatus="Running", jobStatus="RUNNING", rayClusterName="rl-x1",
                 rayClusterStatus={"conditions": ready})  # fmt: skip
    stage.head(Ref("RayCluster", "rl-x1"), owner=job)
    counts = {"active": 0, "failed": 0, "suspended": 0}
    stage.status(gym, restarts=0, replicatedJobsStatus=[
        {"name": "head", "ready": 1, "succeeded": 0, **counts}])  # fmt: skip
    watcher = hands(Members(job, gym, job))
    watcher.until_up(job, gym)
    stage.status(job, jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed",
                 message="exit code 3")  # fmt: skip
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(gym)
    # It lets go of its cluster by itself, and keeps the record.
    assert "exit code 3" in verdict_on(stage, job).reason


def test_a_peer_that_is_applied_a_minute_late_is_waited_for(stage: Stage, hands: Make) -> None:
    stage.raycluster(RL)
    stage.job()
    stage.registry()
    stage.up(RL)
    watcher = hands()
    watcher.until_up(RL)
    watcher.pass_time(60)
    stage.raycluster(GYM)
    stage.up(GYM)
    watcher.until_up(GYM, DRIVER)
    watcher.pass_time(2 * LIMITS.startup_seconds)
    assert watcher.alive
    assert stage.get(GYM)
    assert stage.get(RL)


def test_a_peer_that_never_comes_ends_the_wait(stage: Stage, hands: Make) -> None:
    stage.raycluster(RL)
    stage.job()
    stage.registry()
    stage.up(RL)
    watcher = hands()
    watcher.until_up(RL, DRIVER)
    watcher.pass_time(LIMITS.startup_seconds - 20)
    assert watcher.alive
    watcher.pass_time(40)
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, DRIVER)
    assert "[never-started]" in stage.events()[0]["note"]


def test_a_peer_that_is_suspended_for_an_hour_is_left_alone(stage: Stage, hands: Make) -> None:
    heads = stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.client.merge_patch(RESOURCES["RayCluster"], "gym", {"spec": {"suspend": True}})
    # Pods go at once, conditions follow: in between it looks like a lost head.
    stage.delete_pod(heads[GYM])
    watcher.until(lambda: watcher.phase(GYM) == "suspended", "suspended")
    stage.conditions(GYM, HeadPodReady="False", RayClusterProvisioned="False",
                     RayClusterSuspended="True")  # fmt: skip
    watcher.pass_time(3600)
    assert watcher.alive
    stage.client.merge_patch(RESOURCES["RayCluster"], "gym", {"spec": {"suspend": False}})
    time.sleep(1.1)  # conditions have whole seconds, and the resume is told by its time
    stage.up(GYM)
    watcher.until_up(GYM)
    watcher.pass_time(600)
    assert watcher.alive
    assert stage.get(RL)
    assert stage.get(GYM)


@pytest.mark.parametrize("tolerant", [True, False])
def test_a_head_that_is_evicted_and_replaced(stage: Stage, hands: Make, *, tolerant: bool) -> None:
    heads = stage.run_up(tolerant=tolerant)
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.delete_pod(heads[RL])
    if not tolerant:
        watcher.until(lambda: not watcher.alive, "torn down")
        assert stage.gone(RL, GYM)
        assert "[head-lost]" in stage.events()[0]["note"]
        return
    watcher.until(lambda: watcher.phase(RL) == "replacing", "seen")
    watcher.pass_time(LIMITS.replacement_seconds / 2)
    stage.head(RL)
    watcher.until_up(RL)
    watcher.pass_time(2 * LIMITS.replacement_seconds)
    assert watcher.alive


def test_a_side_that_a_person_deletes_takes_the_other_along(stage: Stage, hands: Make) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.delete(GYM)
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, GYM, DRIVER)


def test_a_namespace_that_goes_is_left_to_itself(
    stage: Stage, hands: Make, proxy: FaultProxy, api_server: ControlPlane, namespace: str
) -> None:
    stage.run_up()
    stage.hold(RL)
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    api_server.api.call("DELETE", f"/api/v1/namespaces/{namespace}")
    watcher.until(lambda: not watcher.alive, "stands down")
    assert watcher.code is ExitCode.OK
    assert proxy.count("delete") == 0
    stage.drop_finalizers(RL)


def test_a_registry_that_a_person_deletes_is_an_alert(
    stage: Stage, hands: Make, proxy: FaultProxy
) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    stage.client.delete(CONFIGMAPS, MEMBERS.registry)
    watcher.until(lambda: "registry-missing" in watcher.alerts(), "alert")
    watcher.pass_time(3600)
    assert watcher.alive
    assert proxy.count("delete") == 0
    assert [event["reason"] for event in stage.events()] == ["PeerWatcherAlert"]
    stage.registry()
    watcher.until(lambda: not watcher.alerts(), "withdrawn")


def test_an_error_of_a_former_run_is_not_ours(stage: Stage, hands: Make) -> None:
    stage.raycluster(Ref("RayCluster", "old"))
    stage.registry(error="the last run failed", run=Ref("RayCluster", "old"))
    for ref in (RL, GYM):
        stage.raycluster(ref)
        stage.up(ref)
    stage.job()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    watcher.pass_time(60)
    assert watcher.alive


def test_without_rights_nothing_is_ever_killed(
    stage: Stage, hands: Make, proxy: FaultProxy, token: Callable[[str], str], namespace: str
) -> None:
    stage.run_up()
    config = proxy.config(namespace, token=token("nobody"))
    with Client(config) as nobody:
        watcher = hands(through=nobody)
        deadline = Deadline(20)
        while proxy.count("watch") + proxy.count("list") < 5:
            assert not deadline.passed
            time.sleep(0.05)
        # Time counts for it from its first look, which waits for every answer.
        told = Deadline(60)
        while watcher.alerts() != {"staleness"}:
            assert not told.passed
            watcher.pass_time(60, 60)
            time.sleep(0.05)
        watcher.pass_time(3600, 60)
        assert watcher.alive
        assert watcher.alerts() == {"staleness"}
        assert proxy.count("delete") == 0


def test_ten_minutes_without_an_api_server(stage: Stage, hands: Make, proxy: FaultProxy) -> None:
    heads = stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    with proxy.outage():
        watcher.until(lambda: watcher.watcher.ready().ok and bool(
            watcher.watcher.state.known_at and watcher.clock() - watcher.watcher.state.known_at > 1
        ), "blind")  # fmt: skip
        watcher.pass_time(600)
        assert watcher.alive
        assert watcher.alerts() == {"staleness"}
    watcher.until(lambda: not watcher.alerts(), "withdrawn")
    watcher.until(lambda: len(stage.events()) == 2, "both told")
    reasons = [event["reason"] for event in stage.events()]
    assert sorted(reasons) == ["PeerWatcherAlert", "PeerWatcherAlertOver"]
    # Afterwards everything is as before.
    stage.pod(heads[RL], ready=True, restarts=1)
    watcher.until(lambda: not watcher.alive, "torn down")
    assert stage.gone(RL, GYM)


def test_nothing_is_concluded_before_everything_was_looked_at(
    stage: Stage, hands: Make, proxy: FaultProxy
) -> None:
    stage.run_up()
    proxy.inject(Hang(), verb="list", resource="pods")
    watcher = hands()
    deadline = Deadline(20)
    while proxy.count("watch", "rayclusters") < 2:
        assert not deadline.passed
        time.sleep(0.05)
    watcher.step()
    assert watcher.watcher.state.members == {}
    proxy.release()
    watcher.until_up(RL, GYM)
    watcher.until(lambda: watcher.watcher.state.members[GYM].head is not None, "head known")


# Those that are asked again take half a minute each: one of them stands for the others.
@pytest.mark.parametrize(
    "status", [401, 403, *(pytest.param(each, marks=pytest.mark.full) for each in (429, 500)), 503]
)
def test_a_death_is_not_acted_on_while_it_cannot_be_confirmed(
    stage: Stage, hands: Make, proxy: FaultProxy, status: int
) -> None:
    heads = stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    # The watches still tell; direct looks are refused.
    proxy.inject(Answer(status), verb=("list", "get"), count=None)
    stage.pod(heads[GYM], phase="Failed")
    deadline = Deadline(3)
    while not deadline.passed:
        watcher.step()
        time.sleep(0.1)
    assert watcher.alive
    assert proxy.count("delete") == 0
    proxy.clear()
    watcher.until(lambda: not watcher.alive, "torn down")


def test_both_watchers_at_once_do_no_harm(stage: Stage, hands: Make) -> None:
    heads = stage.run_up()
    both = [hands(MEMBERS), hands(PEERS_VIEW)]
    for watcher in both:
        watcher.until_up(RL, GYM, DRIVER)
    running = [Running(watcher) for watcher in both]
    stage.pod(heads[GYM], phase="Failed")
    assert [each.join() for each in running] == [ExitCode.OK, ExitCode.OK]
    assert stage.gone(RL, GYM, DRIVER)
    # One Event an object, whoever came first.
    assert len(stage.events()) == 4


def test_a_watcher_that_restarts_amid_a_teardown_finishes_it(stage: Stage, hands: Make) -> None:
    stage.run_up()
    stage.hold(GYM)
    first = hands()
    first.until_up(RL, GYM, DRIVER)
    stage.write_error("out of memory")
    running = Running(first)
    deadline = Deadline(120)
    while not stage.gone(RL, DRIVER):
        assert not deadline.passed
        time.sleep(0.05)
    running.stop()
    assert running.join() is ExitCode.OK
    # Its reason is gone; what it wrote is not. What it may not do is begin anew.
    stage.client.delete(CONFIGMAPS, MEMBERS.registry)
    stage.raycluster(RL)
    fresh = stage.uid(RL)
    second = Running(hands(PEERS_VIEW))
    time.sleep(0.5)
    stage.drop_finalizers(GYM)
    assert second.join() is ExitCode.OK
    assert stage.gone(GYM)
    assert stage.uid(RL) == fresh, "another incarnation was deleted"


def test_a_watcher_remembers_what_it_met(stage: Stage, hands: Make) -> None:
    heads = stage.run_up()
    first = hands()
    first.until_up(RL, GYM, DRIVER)
    first.until(lambda: first.watcher.state.members[GYM].head is not None, "head seen")
    first.step()
    found = stage.get(RL)
    assert found is not None
    record = json.loads(found["metadata"]["annotations"][RECORD_ANNOTATION])
    assert record["RayCluster/gym"]["up"] is True
    first.close()
    # The head is replaced while nobody looks.
    stage.delete_pod(heads[GYM])
    stage.head(GYM)
    second = hands()
    second.until(lambda: not second.alive, "torn down")
    assert stage.gone(RL, GYM)


def test_where_watching_is_denied_it_polls(stage: Stage, hands: Make, proxy: FaultProxy) -> None:
    proxy.inject(Answer(403), verb="watch", count=None)
    heads = stage.run_up()
    watcher = hands(poll_seconds=0.5)
    watcher.until_up(RL, GYM, DRIVER)
    before = proxy.count("list", "pods")
    stage.pod(heads[GYM], phase="Failed")
    watcher.until(lambda: not watcher.alive, "torn down")
    # Seen within two looks, and one more to confirm.
    assert proxy.count("list", "pods") - before <= 4
    assert stage.gone(RL, GYM)


def test_to_observe_only_writes_nothing(stage: Stage, hands: Make, proxy: FaultProxy) -> None:
    heads = stage.run_up()
    watcher = hands(observe_only=True)
    watcher.until_up(RL, GYM, DRIVER)
    stage.pod(heads[GYM], phase="Failed")
    told = watcher.metrics._decisions.labels("teardown", "head-lost")
    watcher.until(lambda: told._value.get() > 0, "decided")
    assert watcher.alive
    assert {seen.verb for seen in proxy.seen} <= {"get", "list", "watch"}
    assert stage.get(RL)
    assert stage.get(GYM)


def test_a_watch_that_is_cut_comes_back_and_is_counted(
    stage: Stage, hands: Make, proxy: FaultProxy
) -> None:
    stage.run_up()
    watcher = hands()
    watcher.until_up(RL, GYM, DRIVER)
    count = watcher.metrics._reconnects.labels("rayclusters")
    assert proxy.cut() >= 5
    watcher.until(lambda: count._value.get() >= 1, "reconnected")
    assert watcher.alive
