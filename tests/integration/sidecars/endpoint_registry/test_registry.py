"""The endpoint registry against a real API server, with faults between the two."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from endpoint_registry import (
    EndpointRegistry,
    Owner,
    PeerError,
    RegistryError,
    RegistryTimeout,
    State,
    Superseded,
)
from endpoint_registry.records import RECORD, RUN_LABEL, object_name
from support.fault_proxy import Answer, FaultProxy, Reset
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, UserError
from tandem_common.kube import (
    CONFIGMAPS,
    Client,
    DeadlineExceeded,
    Forbidden,
    NamespaceTerminating,
    NotFound,
    OwnedByAnother,
)
from tandem_host.control_plane import ControlPlane

JOB = "job"
NAME = object_name(JOB)
GYM = "http://gym:9090"
STARTED = {"run-1": "2026-01-01T00:00:00Z", "run-2": "2026-01-02T00:00:00Z"}
Make = Callable[..., EndpointRegistry]


@pytest.fixture
def registry(client: Client) -> Iterator[Make]:
    """Return a function that makes registries of run `run-1`, all on one connection.

    Run `run-2` began later than `run-1`.
    """
    made: list[EndpointRegistry] = []

    def make(writer: str = "gym", run: str = "run-1", **more: object) -> EndpointRegistry:
        how = {
            "job_id": JOB, "run_uid": run, "writer": writer, "client": client,
            "run_started": STARTED.get(run, ""), **more,
        }  # fmt: skip
        made.append(EndpointRegistry(**how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def owner(client: Client, name: str = "top") -> Owner:
    """An object that can own others; any kind will do for the garbage collector."""
    made = client.create(CONFIGMAPS, {"metadata": {"name": name}})
    return Owner("v1", "ConfigMap", name, made["metadata"]["uid"])


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start work in a thread; return a function that waits for its result or error."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=60)


def waits(proxy: FaultProxy, watches: int = 1) -> None:
    """Return when so many watches have reached the server."""
    deadline = Deadline(60)
    tick = threading.Event()
    while proxy.count("watch") < watches:
        assert not deadline.passed
        tick.wait(0.01)


# --- one writer, one reader --------------------------------------------------------------


def test_what_is_published_is_what_is_read(registry: Make, client: Client) -> None:
    registry("gym").publish("gym_head_server", GYM)
    registry("rl").publish("vllm_base_urls", json.dumps(["http://a:1/v1", "http://b:1/v1"]))
    reader = registry("reader")
    assert reader.get("gym_head_server") == GYM
    assert reader.get("nothing") is None
    # Data is flat and nothing else is in it: that is what NeMo RL's client reads.
    found = client.get(CONFIGMAPS, NAME)
    assert found["data"] == {
        "gym_head_server": GYM,
        "vllm_base_urls": '["http://a:1/v1", "http://b:1/v1"]',
    }


def test_a_waiter_gets_what_is_published_later(registry: Make, proxy: FaultProxy) -> None:
    reader = registry("reader")
    result = in_thread(lambda: reader.wait("gym_head_server", timeout=60))
    waits(proxy)
    registry("gym").publish("gym_head_server", GYM)
    assert result() == GYM


def test_reading_writes_nothing(registry: Make, proxy: FaultProxy) -> None:
    reader = registry("reader")
    reader.get("gym_head_server")
    with pytest.raises(RegistryTimeout):
        reader.wait("gym_head_server", timeout=0.2)
    assert {seen.verb for seen in proxy.seen} <= {"list", "watch"}


def test_a_withdrawn_value_is_gone(registry: Make) -> None:
    gym = registry("gym")
    gym.publish("gym_head_server", GYM)
    assert gym.withdraw("gym_head_server", "the pod ends")
    snapshot = registry("reader").read()
    assert snapshot.value("gym_head_server") is None
    assert "the pod ends" in snapshot.entries["gym_head_server"].sign_of_life()


def test_watch_shows_each_change_and_the_end_of_a_lease(registry: Make) -> None:
    seen = registry("reader").watch(timeout=60)
    assert not next(seen).exists
    gym = registry("gym")
    gym.publish("gym_head_server", GYM, lease_seconds=1)
    while (now := next(seen)).value("gym_head_server") is None:
        pass
    expired = next(seen)
    assert expired.value("gym_head_server") is None
    assert expired.entries["gym_head_server"].expired
    assert now.value("gym_head_server") == GYM


# --- the end of a wait -------------------------------------------------------------------


def test_a_timeout_names_key_object_time_writer_and_that_there_was_no_sign(
    registry: Make, namespace: str
) -> None:
    with pytest.raises(RegistryTimeout) as caught:
        registry("reader").wait("gym_head_server", timeout=0.3)
    text = str(caught.value)
    for part in (
        "gym_head_server", f"{namespace}/{NAME}", "0.3 s", "the Gym side (role gym)",
        "Last sign of life: none", "run-1", "there is no such ConfigMap",
    ):  # fmt: skip
        assert part in text
    assert isinstance(caught.value, TimeoutError)


def test_a_timeout_repeats_what_the_writer_said_last(registry: Make) -> None:
    registry("gym-0", pod_uid="pod-7").announce("gym_head_server", "http://x: refused")
    with pytest.raises(RegistryTimeout, match=r"gym-0 \(pod pod-7\) said pending.*refused"):
        registry("reader").wait("gym_head_server", timeout=0.3)


def test_a_timeout_in_an_outage_says_that_nothing_could_be_seen(
    registry: Make, proxy: FaultProxy
) -> None:
    proxy.inject(Answer(503, message="etcd is away"), count=None)
    with pytest.raises(RegistryTimeout, match=r"cannot be seen now.*etcd is away"):
        registry("reader").wait("gym_head_server", timeout=1)


def test_an_error_wakes_every_waiter_with_the_peers_message(
    registry: Make, proxy: FaultProxy
) -> None:
    readers = [registry(f"reader-{number}") for number in range(4)]
    results = [
        in_thread(lambda reader=reader, key=key: reader.wait(key, timeout=600))  # type: ignore[misc]
        for reader in readers
        for key in ("gym_head_server", "vllm_base_urls", "other")
    ]
    waits(proxy, len(readers))
    registry("rl").error("CUDA out of memory on rl-worker-3")
    for result in results:
        with pytest.raises(PeerError, match="CUDA out of memory on rl-worker-3") as caught:
            result()
        assert "rl said" in str(caught.value)


def test_the_first_error_is_kept(registry: Make) -> None:
    rl = registry("rl")
    assert rl.error("the cause")
    assert not registry("gym").error("a consequence")
    assert rl.error("a second thought"), "the one that counts is this writer's"
    with pytest.raises(PeerError, match="the cause"):
        registry("reader").get("gym_head_server")


def test_an_error_ends_get_and_wait_also_when_the_value_is_there(registry: Make) -> None:
    registry("gym").publish("gym_head_server", GYM)
    registry("rl").error("no GPU")
    with pytest.raises(PeerError):
        registry("reader").get("gym_head_server")
    with pytest.raises(PeerError):
        registry("reader").wait("gym_head_server", timeout=5)


def test_close_wakes_waiters(registry: Make, proxy: FaultProxy) -> None:
    reader = registry("reader")
    result = in_thread(lambda: reader.wait("gym_head_server", timeout=600))
    waits(proxy)
    reader.close()
    with pytest.raises(RegistryError, match="closed"):
        result()


def test_a_waiter_that_may_not_read_is_told_the_rule_at_once(
    proxy: FaultProxy, namespace: str, token: Callable[[str], str]
) -> None:
    config = proxy.config(namespace, token=token("nobody"))
    with (
        Client(config) as nobody,
        EndpointRegistry(JOB, run_uid="run-1", client=nobody) as reader,
        pytest.raises(Forbidden, match=r'configmaps.*verbs: \["list"\]'),
    ):
        reader.wait("gym_head_server", timeout=600)


def test_a_waiter_survives_faults_cuts_and_a_forgotten_past(
    registry: Make, proxy: FaultProxy
) -> None:
    proxy.inject(Answer(503), verb="list", count=2)
    proxy.inject(Answer(410, reason="Expired"), verb="watch", count=2)
    proxy.inject(Reset(), verb="watch", count=2)
    reader = registry("reader")
    result = in_thread(lambda: reader.wait("gym_head_server", timeout=60))
    waits(proxy, 5)
    proxy.cut()
    registry("gym").publish("gym_head_server", GYM)
    assert result() == GYM


# --- many writers ------------------------------------------------------------------------


def test_many_writers_under_faults_lose_no_key_and_end(
    proxy: FaultProxy, namespace: str, client: Client
) -> None:
    """64 writers on keys of their own and 16 on one key, one request in four broken."""
    faults = [
        proxy.inject(Answer(409, reason="Conflict"), verb="patch", chance=0.1, count=None),
        proxy.inject(Answer(429, retry_after=0.2), chance=0.1, count=None),
        proxy.inject(Answer(503), chance=0.1, count=None),
        proxy.inject(Reset(after=True), verb="patch", chance=0.05, count=None),
    ]
    configs = [(f"own-{number}", f"key-{number}") for number in range(64)]
    configs += [(f"shared-{number}", "shared") for number in range(16)]
    begin = threading.Barrier(len(configs))

    def write(who: str, key: str) -> None:
        with (
            Client(proxy.config(namespace)) as mine,
            EndpointRegistry(JOB, run_uid="run-1", writer=who, client=mine) as registry,
        ):
            begin.wait(60)
            registry.publish(key, f"value of {who}", timeout=400)

    with ThreadPoolExecutor(len(configs)) as pool:
        for result in [pool.submit(write, *config) for config in configs]:
            result.result(timeout=420)
    assert all(fault.hits for fault in faults), "each fault was met"
    proxy.clear()
    data = client.get(CONFIGMAPS, NAME)["data"]
    for number in range(64):
        assert data[f"key-{number}"] == f"value of own-{number}"
    assert data["shared"] in {f"value of shared-{number}" for number in range(16)}
    with EndpointRegistry(JOB, run_uid="run-1", client=client) as reader:
        assert set(reader.read().entries) == set(data), "each value has a record, and it fits"
        assert all(entry.record for entry in reader.read().entries.values())
    # Attempts are bounded by the waits between them: far from the hundred that one may make.
    assert proxy.count() < 80 * 30


def test_the_last_to_publish_a_key_has_it(registry: Make) -> None:
    first, second = registry("first"), registry("second")
    first.publish("gym_head_server", "http://first:1", lease_seconds=60)
    second.publish("gym_head_server", "http://second:1", lease_seconds=60)
    reader = registry("reader")
    assert reader.get("gym_head_server") == "http://second:1"
    with pytest.raises(OwnedByAnother):
        first.renew("gym_head_server", "http://first:1", lease_seconds=60)
    assert not first.withdraw("gym_head_server")
    assert reader.get("gym_head_server") == "http://second:1"
    first.publish("gym_head_server", "http://first:1")
    assert reader.get("gym_head_server") == "http://first:1"


def test_a_process_that_goes_leaves_the_value_of_the_one_that_came_after_it(
    registry: Make,
) -> None:
    """A container that was started again bears the same name."""
    former, again = registry("gym"), registry("gym")
    former.publish("gym_head_server", "http://former:1", lease_seconds=60)
    assert again.announce("gym_head_server", "starting")
    assert registry("reader").get("gym_head_server") is None, "nobody answers there any more"
    again.publish("gym_head_server", GYM, lease_seconds=60)
    with pytest.raises(OwnedByAnother):
        former.renew("gym_head_server", "http://former:1", lease_seconds=60)
    assert not former.withdraw("gym_head_server")
    assert registry("reader").get("gym_head_server") == GYM


def test_a_renewal_whose_answer_was_lost_is_renewed_again(
    registry: Make, proxy: FaultProxy
) -> None:
    gym = registry("gym")
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    proxy.inject(Reset(after=True), verb="patch")
    gym.renew("gym_head_server", GYM, lease_seconds=60)
    proxy.forget()
    gym.renew("gym_head_server", GYM, lease_seconds=60)
    assert [seen.verb for seen in proxy.seen] == ["patch"], "a renewal is one request"


def test_two_hundred_waiters_cost_watches_and_no_polls(
    proxy: FaultProxy, namespace: str, registry: Make
) -> None:
    clients = [Client(proxy.config(namespace)) for _ in range(200)]
    readers = [EndpointRegistry(JOB, run_uid="run-1", client=each) for each in clients]
    try:
        with ThreadPoolExecutor(len(readers)) as pool:
            results = [
                pool.submit(reader.wait, "gym_head_server", timeout=120) for reader in readers
            ]
            waits(proxy, len(readers))
            idle = threading.Event()
            idle.wait(3)  # time in which a poll would show; its length proves nothing else
            counted = (proxy.count("list"), proxy.count("watch"), proxy.count("get"))
            registry("gym").publish("gym_head_server", GYM)
            assert {result.result(timeout=60) for result in results} == {GYM}
        assert counted == (len(readers), len(readers), 0)
    finally:
        for reader in readers:
            reader.close()
        for each in clients:
            each.close()


# --- runs --------------------------------------------------------------------------------


def test_a_rerun_never_sees_the_former_runs_values(registry: Make) -> None:
    registry("gym", "run-1").publish("gym_head_server", "http://former:1")
    registry("rl", "run-1").error("the former run failed")
    reader = registry("reader", "run-2")
    assert reader.get("gym_head_server") is None
    with pytest.raises(RegistryTimeout, match="belongs to another run"):
        reader.wait("gym_head_server", timeout=0.3)
    registry("gym", "run-2").create()
    assert reader.get("gym_head_server") is None
    registry("gym", "run-2").publish("gym_head_server", "http://mine:1")
    assert reader.get("gym_head_server") == "http://mine:1"


def test_reruns_that_race_with_stragglers_see_only_their_own(
    proxy: FaultProxy, namespace: str, client: Client
) -> None:
    """Writers of the former run go on renewing while all of the next run start at once."""
    writes = ("create", "patch", "delete")
    proxy.inject(Answer(409, reason="Conflict"), verb=writes, chance=0.1, count=None)
    proxy.inject(Answer(503), chance=0.1, count=None)
    stop = threading.Event()
    superseded: list[Superseded] = []

    def straggle(number: int) -> None:
        with (
            Client(proxy.config(namespace)) as mine,
            EndpointRegistry(
                JOB, run_uid="run-1", writer=f"old-{number}", client=mine,
                run_started="2026-01-01T00:00:00Z",
            ) as registry,
        ):  # fmt: skip
            registry.publish("gym_head_server", "http://former:1", lease_seconds=60)
            started.release()
            while not stop.is_set():
                try:
                    registry.publish("gym_head_server", "http://former:1", lease_seconds=60)
                except Superseded as error:
                    superseded.append(error)
                    return

    def rerun(number: int) -> set[str | None]:
        seen: set[str | None] = set()
        with (
            Client(proxy.config(namespace)) as mine,
            EndpointRegistry(
                JOB, run_uid="run-2", writer=f"new-{number}", client=mine,
                run_started="2026-01-02T00:00:00Z",
            ) as registry,
        ):  # fmt: skip
            seen.add(registry.get("gym_head_server"))
            registry.create()
            seen.add(registry.get("gym_head_server"))
            if number == 0:
                registry.publish("gym_head_server", "http://mine:1")
            seen.add(registry.wait("gym_head_server", timeout=60))
        return seen

    started = threading.Semaphore(0)
    with ThreadPoolExecutor(16) as pool:
        old = [pool.submit(straggle, number) for number in range(4)]
        for _ in old:
            assert started.acquire(timeout=60)
        new = [pool.submit(rerun, number) for number in range(8)]
        try:
            for result in new:
                assert result.result(timeout=90) <= {None, "http://mine:1"}
        finally:
            stop.set()
        for straggler in old:
            straggler.result(timeout=60)
    assert len(superseded) == 4, "each writer of the former run was told that it is over"
    proxy.clear()
    assert client.get(CONFIGMAPS, NAME)["metadata"]["labels"][RUN_LABEL] == "run-2"


def test_a_straggler_never_replaces_a_run_that_began_later(registry: Make) -> None:
    late = registry("gym", "run-2")
    late.publish("gym_head_server", GYM)
    early = registry("gym", "run-1")
    with pytest.raises(Superseded, match="run-2"):
        early.create()
    with pytest.raises(Superseded):
        early.publish("gym_head_server", "http://former:1")
    assert late.get("gym_head_server") == GYM


@pytest.mark.parametrize("late_started", [STARTED["run-2"], ""], ids=["known", "unknown"])
def test_a_straggler_that_was_started_again_and_knows_no_time_replaces_nothing(
    registry: Make, client: Client, late_started: str
) -> None:
    """A sidecar of a former run with RUN_UID alone, in a container that was started again."""
    late = registry("gym", "run-2", run_started=late_started)
    late.publish("gym_head_server", GYM)
    before = client.get(CONFIGMAPS, NAME)
    straggler = registry("gym", "run-1", run_started="")
    for deed in (
        lambda: straggler.announce("gym_head_server", "starting"),
        lambda: straggler.publish("gym_head_server", "http://former:1"),
        straggler.create,
    ):
        with pytest.raises(Superseded, match="surely began before"):
            deed()
    assert client.get(CONFIGMAPS, NAME) == before


def test_an_object_that_was_there_before_our_run_began_is_a_former_runs(registry: Make) -> None:
    """Its run left no time; the API server's word for the object is enough."""
    registry("gym", "run-0").publish("gym_head_server", "http://former:1")
    with pytest.raises(Superseded):
        registry("gym", "run-2").create()
    late = registry("gym", "run-3", run_started="9999-01-01T00:00:00Z")
    late.create()
    assert late.get("gym_head_server") is None
    assert late.read().of_our_run


def test_a_run_takes_its_place_back_from_a_straggler(registry: Make, client: Client) -> None:
    """After a person's deletion the former run's writer may be the first to come."""
    early, late = registry("gym", "run-1"), registry("gym", "run-2")
    early.publish("gym_head_server", "http://former:1")
    late.publish("gym_head_server", GYM)
    client.delete(CONFIGMAPS, NAME)
    early.renew("gym_head_server", "http://former:1")
    late.renew("gym_head_server", GYM)
    assert late.get("gym_head_server") == GYM
    with pytest.raises(Superseded):
        early.renew("gym_head_server", "http://former:1")


def test_a_run_that_had_the_object_never_takes_it_back(registry: Make) -> None:
    early = registry("gym", "run-1")
    early.publish("gym_head_server", "http://former:1")
    registry("gym", "run-2").publish("gym_head_server", GYM)
    with pytest.raises(Superseded):
        early.renew("gym_head_server", "http://former:1")
    assert registry("reader", "run-2").get("gym_head_server") == GYM


def test_the_next_attempt_of_one_top_object_is_another_run(registry: Make) -> None:
    registry("gym", "top").publish("gym_head_server", "http://former:1")
    again = registry("gym", "top", run_attempt=1)
    assert again.get("gym_head_server") is None
    again.create()
    assert again.get("gym_head_server") is None


def test_a_deletion_between_look_and_replacement_hits_no_new_object(
    registry: Make, proxy: FaultProxy, client: Client
) -> None:
    registry("gym", "run-1").publish("gym_head_server", "http://former:1")
    other = registry("rl", "run-2")
    # The other role of the new run is quicker by one step: just before our deletion.
    proxy.inject(
        Reset(), verb="delete",
        where=lambda _seen: quick(),
    )  # fmt: skip
    done = threading.Event()

    def quick() -> bool:
        if not done.is_set():
            done.set()
            thread = threading.Thread(target=publish)
            thread.start()
            thread.join(30)
        return False

    def publish() -> None:
        # Past the proxy's rule, which holds its lock: straight to the server.
        with Client(direct) as mine:
            old = mine.get(CONFIGMAPS, NAME)["metadata"]["uid"]
            mine.delete(CONFIGMAPS, NAME, uid=old)
            with EndpointRegistry(JOB, run_uid="run-2", writer="quick", client=mine) as them:
                them.publish("quick", "was here first")

    direct = proxy.direct(client.config.namespace)
    other.create()
    assert done.is_set()
    assert other.get("quick") == "was here first"


def test_a_value_published_between_look_and_word_is_not_overwritten(
    registry: Make, proxy: FaultProxy, client: Client
) -> None:
    starting = registry("late")
    starting.create()
    direct = proxy.direct(client.config.namespace)
    done = threading.Event()

    def quick(_seen: object) -> bool:
        if not done.is_set():
            done.set()
            thread = threading.Thread(target=publish)
            thread.start()
            thread.join(30)
        return False

    def publish() -> None:
        with Client(direct) as mine, EndpointRegistry(
            JOB, run_uid="run-1", writer="quick", client=mine
        ) as them:  # fmt: skip
            them.publish("gym_head_server", GYM)

    proxy.inject(Reset(), verb="patch", where=quick)
    assert not starting.announce("gym_head_server", "starting")
    assert done.is_set()
    assert registry("reader").get("gym_head_server") == GYM


# --- leases ------------------------------------------------------------------------------


def test_an_expired_lease_is_never_returned_also_to_who_comes_later(registry: Make) -> None:
    """The age is the API server's word, so one who comes fresh knows it too."""
    registry("gym").publish("gym_head_server", GYM, lease_seconds=1)
    deadline = Deadline(120)
    tick = threading.Event()
    while registry("reader").get("gym_head_server") is not None:
        assert not deadline.passed
        tick.wait(0.1)
    with pytest.raises(RegistryTimeout, match=r"its lease is over.*gym said published"):
        registry("another").wait("gym_head_server", timeout=0.3)


def test_a_renewed_lease_is_believed_again(registry: Make, proxy: FaultProxy) -> None:
    gym = registry("gym")
    gym.publish("gym_head_server", GYM, lease_seconds=0.5)
    reader = registry("reader")
    tick = threading.Event()
    deadline = Deadline(120)
    while reader.get("gym_head_server") is not None:
        assert not deadline.passed
        tick.wait(0.1)
    result = in_thread(lambda: reader.wait("gym_head_server", timeout=60))
    waits(proxy)
    gym.renew("gym_head_server", GYM, lease_seconds=30)
    assert result() == GYM


def test_a_watch_that_goes_on_after_an_outage_does_not_make_a_dead_lease_young(
    registry: Make, proxy: FaultProxy, namespace: str
) -> None:
    """The writer renewed once while the reader could not see it, and died."""
    with (
        Client(proxy.direct(namespace)) as direct,
        EndpointRegistry(JOB, run_uid="run-1", writer="gym", client=direct) as gym,
    ):
        gym.publish("gym_head_server", GYM, lease_seconds=2)
        reader = registry("reader")
        assert reader.wait("gym_head_server", timeout=60) == GYM
        waits(proxy)
        with proxy.outage(Answer(503)):
            gym.renew("gym_head_server", GYM, lease_seconds=2)
            threading.Event().wait(6)  # the lease, the resolution of the server's time, more
        deadline, tick = Deadline(60), threading.Event()
        while (entry := reader.snapshot().entries["gym_head_server"]).record.beat < 2:  # type: ignore[union-attr]
            assert not deadline.passed
            tick.wait(0.01)
        assert (entry.value, entry.expired) == (None, True)


@pytest.mark.parametrize("wrong", [0.0, 4e9], ids=["1970", "2096"])
def test_a_wrong_clock_neither_kills_a_live_lease_nor_keeps_a_dead_one(
    registry: Make, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Of the writer or the reader: neither ever looks at it."""
    monkeypatch.setattr("time.time", lambda: wrong)
    registry("gym").publish("gym_head_server", GYM, lease_seconds=8)
    reader = registry("reader")
    assert reader.get("gym_head_server") == GYM
    gone(reader)


def gone(reader: EndpointRegistry) -> None:
    """Return when the reader does not believe the value any more."""
    tick, deadline = threading.Event(), Deadline(120)
    while reader.get("gym_head_server") is not None:
        assert not deadline.passed
        tick.wait(0.1)


def test_a_server_whose_clock_jumps_back_keeps_a_dead_lease_for_one_lease_only(
    registry: Make, proxy: FaultProxy
) -> None:
    proxy.set_clock(3600)
    registry("gym").publish("gym_head_server", GYM, lease_seconds=2)
    proxy.set_clock(0)
    reader = registry("reader")
    # A fresh reader cannot know; who follows counts by itself.
    follower = registry("follower")
    assert follower.wait("gym_head_server", timeout=30) == GYM
    tick, deadline = threading.Event(), Deadline(120)
    while follower.snapshot().value("gym_head_server") is not None:
        assert not deadline.passed
        tick.wait(0.1)
    assert reader.get("gym_head_server") == GYM, "the stated limit: one request, no memory"


def test_a_server_whose_clock_jumps_ahead_hides_a_live_lease_until_it_is_renewed(
    registry: Make, proxy: FaultProxy
) -> None:
    gym = registry("gym")
    gym.publish("gym_head_server", GYM, lease_seconds=30)
    proxy.set_clock(3600)
    reader = registry("reader")
    assert reader.get("gym_head_server") is None
    gym.renew("gym_head_server", GYM, lease_seconds=30)
    gym.renew("gym_head_server", GYM, lease_seconds=30)
    assert reader.get("gym_head_server") == GYM


# --- the object --------------------------------------------------------------------------


def test_a_configmap_deleted_by_a_person_is_made_again_by_who_renews(
    registry: Make, client: Client
) -> None:
    top = owner(client)
    gym = registry("gym", owners=[top])
    gym.publish("gym_head_server", GYM, lease_seconds=60)
    registry("once").publish("written_once", "gone with it")
    client.delete(CONFIGMAPS, NAME)
    reader = registry("reader")
    assert reader.get("gym_head_server") is None
    gym.renew("gym_head_server", GYM, lease_seconds=60)
    assert reader.get("gym_head_server") == GYM
    # What nobody renews is lost, and a waiter for it says so in the end.
    with pytest.raises(RegistryTimeout, match="written_once did not appear"):
        reader.wait("written_once", timeout=0.3)
    assert [o["uid"] for o in client.get(CONFIGMAPS, NAME)["metadata"]["ownerReferences"]] == [
        top.uid
    ]


@pytest.mark.parametrize("run", ["run-1", "run-0"], ids=["ours", "a former run's"])
def test_an_object_that_a_finalizer_holds_costs_few_requests_and_is_named(
    registry: Make, client: Client, proxy: FaultProxy, run: str
) -> None:
    left = registry("gym", run, run_started="2025-12-31T00:00:00Z")
    left.publish("gym_head_server", GYM)
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    client.merge_patch(CONFIGMAPS, NAME, hold)
    if run == "run-1":
        client.delete(CONFIGMAPS, NAME)
    ours = registry("rl", "run-1")
    proxy.forget()
    with pytest.raises(DeadlineExceeded, match=r"being deleted.*example\.com/hold"):
        ours.create(timeout=2)
    assert proxy.count("get") < 60, "the pauses grow"
    assert proxy.count("delete") == (0 if run == "run-1" else 1)
    spent = Deadline(None)
    with pytest.raises(DeadlineExceeded, match="6 attempts"):
        registry("rl", "run-1", attempts=6).create(timeout=60)
    # At random from 0 to 3.1 s in all: less than this once in a hundred thousand times.
    assert spent.elapsed > 0.1
    result = in_thread(lambda: ours.create(timeout=60))
    client.merge_patch(CONFIGMAPS, NAME, {"metadata": {"finalizers": None}})
    result()
    assert ours.get("gym_head_server") is None


@pytest.mark.parametrize("verb", ["publish", "announce"])
def test_conflicts_without_end_are_met_with_bounded_attempts(
    registry: Make, proxy: FaultProxy, verb: str
) -> None:
    gym = registry("gym", attempts=4)
    gym.create()
    proxy.inject(
        Answer(404, reason="NotFound"), verb="patch", count=None,
        where=lambda seen: "merge-patch" in seen.content_type,
    )  # fmt: skip
    with pytest.raises(DeadlineExceeded, match="4 attempts"):
        getattr(gym, verb)("gym_head_server", GYM, timeout=600)
    assert proxy.count("patch") == 4


def test_a_waiter_outlives_a_deletion_of_the_configmap(
    registry: Make, proxy: FaultProxy, client: Client
) -> None:
    registry("rl").publish("other", "value")
    reader = registry("reader")
    result = in_thread(lambda: reader.wait("gym_head_server", timeout=60))
    waits(proxy)
    client.delete(CONFIGMAPS, NAME)
    registry("gym").publish("gym_head_server", GYM)
    assert result() == GYM


def test_every_role_adds_its_owner_and_none_is_a_controller(registry: Make, client: Client) -> None:
    tops = [owner(client, f"top-{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda top: registry("x", owners=[top]).create(), tops))
    references = client.get(CONFIGMAPS, NAME)["metadata"]["ownerReferences"]
    assert {each["uid"] for each in references} == {top.uid for top in tops}
    assert not any(each["controller"] for each in references)


def test_the_configmap_goes_with_its_last_owner(registry: Make, client: Client) -> None:
    tops = [owner(client, name) for name in ("top-a", "top-b")]
    registry("gym", owners=tops).publish("gym_head_server", GYM)
    client.delete(CONFIGMAPS, "top-a")
    tick, deadline = threading.Event(), Deadline(60)
    while len(client.get(CONFIGMAPS, NAME)["metadata"]["ownerReferences"]) > 1:
        assert not deadline.passed
        tick.wait(0.1)
    client.delete(CONFIGMAPS, "top-b")
    while client.list(CONFIGMAPS, name=NAME).items:
        assert not deadline.passed
        tick.wait(0.1)


def test_a_write_whose_answer_is_lost_counts_once(registry: Make, proxy: FaultProxy) -> None:
    proxy.inject(Reset(after=True), verb="create")
    proxy.inject(Reset(after=True), verb="patch")
    registry("gym").publish("gym_head_server", GYM)
    assert registry("reader").get("gym_head_server") == GYM


def test_a_namespace_that_is_not_there_ends_a_write_at_once(
    proxy: FaultProxy,
) -> None:
    with (
        Client(proxy.config("no-such-namespace")) as mine,
        EndpointRegistry(JOB, run_uid="run-1", writer="gym", client=mine) as gym,
        pytest.raises(NotFound, match="no-such-namespace"),
    ):
        gym.publish("gym_head_server", GYM, timeout=600)


@pytest.fixture
def terminating(api_server: ControlPlane, client: Client, namespace: str) -> str:
    """The test's namespace, in deletion; it stays as long as a finalizer of the test does."""
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    client.create(CONFIGMAPS, held)
    api_server.api.call("DELETE", f"/api/v1/namespaces/{namespace}")
    return namespace


@pytest.fixture
def release(client: Client) -> Iterator[None]:
    """Let the namespace go at the end."""
    yield
    client.merge_patch(CONFIGMAPS, "held", {"metadata": {"finalizers": None}})


@pytest.mark.usefixtures("release", "terminating")
@pytest.mark.parametrize("verb", ["create", "publish", "announce", "error"])
def test_in_a_namespace_that_is_being_deleted_a_write_ends_at_once_and_says_so(
    registry: Make, proxy: FaultProxy, verb: str
) -> None:
    gym = registry("gym")
    words = {"create": (), "error": ("no GPU",)}.get(verb, ("gym_head_server", GYM))
    with pytest.raises(NamespaceTerminating, match="being terminated") as caught:
        getattr(gym, verb)(*words, timeout=600)
    assert "Role" not in str(caught.value)
    assert proxy.count("create") == 2  # one of them is the fixture's


def test_an_outage_ends_a_write_with_its_deadline(registry: Make, proxy: FaultProxy) -> None:
    proxy.inject(Answer(503), count=None)
    with pytest.raises(DeadlineExceeded):
        registry("gym").publish("gym_head_server", GYM, timeout=1.5)


@pytest.mark.parametrize(
    ("key", "value", "lease"),
    [
        ("no/key", "value", None),
        ("gym_head_server", "gym:9090", None),
        ("vllm_base_urls", "http://a:1", None),
        ("vllm_base_urls", "[]", None),
        ("key", "", None),
        ("key", "x" * 100_000, None),
        ("key", "value", 0.0),
        ("key", "value", -1.0),
        ("key", "value", float("inf")),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_sent(
    registry: Make, proxy: FaultProxy, key: str, value: str, lease: float | None
) -> None:
    with pytest.raises(UserError) as caught:
        registry("gym").publish(key, value, lease_seconds=lease)
    assert caught.value.code == ExitCode.USAGE
    assert proxy.count() == 0


def test_wrong_names_are_told_all_at_once(client: Client) -> None:
    with pytest.raises(UserError) as caught:
        EndpointRegistry("Not_A_Label", namespace="a.b", run_uid="", client=client)
    assert len(caught.value.problems) == 3


def test_pending_is_no_value(registry: Make) -> None:
    gym = registry("gym")
    gym.announce("gym_head_server", "not yet", lease_seconds=30)
    entry = registry("reader").read().entries["gym_head_server"]
    assert entry.value is None
    assert entry.record is not None
    assert entry.record.state is State.PENDING


def test_a_record_that_a_person_broke_makes_its_value_bare_and_nothing_worse(
    registry: Make, client: Client
) -> None:
    registry("gym").publish("gym_head_server", GYM, lease_seconds=60)
    client.merge_patch(
        CONFIGMAPS, NAME, {"metadata": {"annotations": {RECORD + "gym_head_server": "{"}}}
    )
    assert registry("reader").get("gym_head_server") == GYM
