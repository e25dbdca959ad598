"""Watches and informers against a real API server, with faults between the two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from support.fault_proxy import Answer, FaultProxy, Hang, Reset, WatchError, WatchSilence
from tandem_common.clock import Deadline
from tandem_common.kube import (
    CONFIGMAPS,
    Changed,
    Client,
    Contact,
    Forbidden,
    Informer,
    Lost,
    NotFound,
    Resource,
    Synced,
    WatchEvent,
)

SERVED_BY_NOBODY = Resource("nobody.test", "v1", "things", "Thing")


def make(client: Client, name: str, **data: str) -> None:
    client.create(CONFIGMAPS, {"metadata": {"name": name}, "data": data})


def news(events: Iterator[WatchEvent]) -> WatchEvent:
    """The next event that tells something; not what a controller puts into each namespace."""
    return next(
        event
        for event in events
        if not isinstance(event, Contact)
        and not (isinstance(event, Changed) and named(event)[1] == "kube-root-ca.crt")
    )


def named(event: WatchEvent) -> tuple[str, str]:
    assert isinstance(event, Changed), event
    return event.kind, event.object["metadata"]["name"]


def connected(events: Iterator[WatchEvent]) -> None:
    """Go on until the watch itself is open."""
    next(event for event in events if isinstance(event, Contact))


def test_what_is_there_comes_first_then_every_change(
    proxy: FaultProxy, client: Client, soon: Deadline
) -> None:
    make(client, "a")
    events = iter(client.watch(CONFIGMAPS, deadline=soon))
    first = next(events)
    assert isinstance(first, Synced)
    assert "a" in {item["metadata"]["name"] for item in first.items}
    assert first.server_time is not None
    make(client, "b")
    assert named(news(events)) == ("ADDED", "b")
    client.merge_patch(CONFIGMAPS, "b", {"data": {"k": "v"}})
    assert named(news(events)) == ("MODIFIED", "b")
    client.delete(CONFIGMAPS, "b")
    assert named(news(events)) == ("DELETED", "b")
    assert (proxy.count("list"), proxy.count("watch")) == (1, 1)


def test_a_watch_of_one_name_tells_of_no_other(client: Client, soon: Deadline) -> None:
    events = iter(client.watch(CONFIGMAPS, name="mine", deadline=soon))
    connected(events)
    make(client, "other")
    make(client, "mine")
    assert named(news(events)) == ("ADDED", "mine")


def test_a_cut_watch_goes_on_where_it_was_without_a_list(
    proxy: FaultProxy, client: Client, soon: Deadline
) -> None:
    events = iter(client.watch(CONFIGMAPS, name="a", deadline=soon))
    connected(events)
    proxy.inject(Reset(), verb="watch", count=2)
    assert proxy.cut() == 1
    assert isinstance(next(events), Lost)
    make(client, "a")
    seen = [news(events)]
    while isinstance(seen[-1], Lost):
        seen.append(news(events))
    assert named(seen[-1]) == ("ADDED", "a")
    assert len(seen) == 3, "two resets, then the change that happened meanwhile"
    assert proxy.count("list") == 1


def test_a_cut_watch_tells_nothing_twice(proxy: FaultProxy, client: Client, soon: Deadline) -> None:
    events = iter(client.watch(CONFIGMAPS, name="a", deadline=soon))
    connected(events)
    make(client, "a")
    assert named(news(events)) == ("ADDED", "a")
    proxy.cut()
    client.merge_patch(CONFIGMAPS, "a", {"data": {"k": "v"}})
    after = [event for event in (news(events), news(events)) if not isinstance(event, Lost)]
    assert [named(event) for event in after] == [("MODIFIED", "a")]


@pytest.mark.parametrize(
    "fault", [Answer(410, reason="Expired"), WatchError(410)], ids=["http", "event"]
)
def test_a_place_that_is_too_old_leads_to_a_new_list(
    proxy: FaultProxy, client: Client, soon: Deadline, fault: Answer | WatchError
) -> None:
    proxy.inject(fault, verb="watch", count=2)
    events = iter(client.watch(CONFIGMAPS, name="a", deadline=soon))
    assert isinstance(next(events), Synced)
    make(client, "a")
    for expected in (1, 1):
        synced = news(events)
        assert isinstance(synced, Synced)
        assert len(synced.items) == expected
    assert proxy.count("list") == 3


def test_a_watch_that_falls_silent_is_noticed(proxy: FaultProxy, namespace: str) -> None:
    silent = proxy.inject(WatchSilence(), verb="watch")
    with Client(proxy.config(namespace)) as client:
        events = iter(client.watch(CONFIGMAPS, deadline=Deadline(60), window_seconds=1))
        while not isinstance(event := next(events), Lost):
            pass
        assert silent.hits == 1
        assert "Timeout" in str(event.error)
        connected(events)


def test_a_server_that_ends_a_watch_in_time_is_no_fault(
    proxy: FaultProxy, client: Client, soon: Deadline
) -> None:
    events = iter(client.watch(CONFIGMAPS, deadline=soon, window_seconds=1))
    assert isinstance(next(events), Synced)
    while proxy.count("watch") < 3:
        assert isinstance(next(events), Contact)
    assert proxy.count("list") == 1


def test_lists_that_fail_or_hang_are_tried_again(
    proxy: FaultProxy, namespace: str, soon: Deadline
) -> None:
    proxy.inject(Answer(503), verb="list")
    proxy.inject(Hang(), verb="list")
    with Client(proxy.config(namespace), read_seconds=0.5) as client:
        events = iter(client.watch(CONFIGMAPS, deadline=soon))
        kinds = [type(next(events)) for _ in range(3)]
    assert kinds == [Lost, Lost, Synced]


def test_what_another_attempt_does_not_mend_is_raised(
    proxy: FaultProxy, client: Client, namespace: str, token: Callable[[str], str], soon: Deadline
) -> None:
    with pytest.raises(NotFound):
        list(client.watch(SERVED_BY_NOBODY, deadline=soon))
    with (
        Client(proxy.config(namespace, token=token("nobody"))) as nobody,
        pytest.raises(Forbidden, match=r'verbs: \["list"\]'),
    ):
        list(nobody.watch(CONFIGMAPS, deadline=soon))


def test_a_watch_ends_at_its_deadline(client: Client) -> None:
    deadline = Deadline(1)
    kinds = {type(event) for event in client.watch(CONFIGMAPS, deadline=deadline)}
    assert deadline.passed
    assert Lost not in kinds


@pytest.mark.parametrize("state", ["open", "silent", "waiting"])
def test_close_ends_a_watch_from_another_thread(
    proxy: FaultProxy, client: Client, state: str
) -> None:
    if state == "silent":
        proxy.inject(WatchSilence(), verb="watch")
    if state == "waiting":
        proxy.inject(Answer(503, retry_after=300), verb="list", count=None)
    watch = client.watch(CONFIGMAPS)
    begun, ended = threading.Event(), threading.Event()

    def follow() -> None:
        for event in watch:
            if isinstance(event, Contact | Lost):
                begun.set()
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    assert begun.wait(30)
    watch.close()
    assert ended.wait(5)


# --- informer ----------------------------------------------------------------------------


def until(informer: Informer, happened: Callable[[], bool]) -> None:
    """Wait until it happened."""
    deadline = Deadline(60)
    while True:
        version = informer.version
        if happened():
            return
        assert not deadline.passed, informer.error
        informer.wait(version, deadline.remaining)


def test_an_informer_knows_what_there_is(client: Client) -> None:
    make(client, "a", k="1")
    with Informer(client, CONFIGMAPS) as informer:
        until(informer, lambda: informer.get("a") is not None)
        client.merge_patch(CONFIGMAPS, "a", {"data": {"k": "2"}})
        until(informer, lambda: (informer.get("a") or {"data": {}})["data"].get("k") == "2")
        client.delete(CONFIGMAPS, "a")
        until(informer, lambda: "a" not in informer.objects())
        assert informer.synced
        assert informer.error is None


def test_many_readers_cost_one_watch(proxy: FaultProxy, client: Client) -> None:
    with Informer(client, CONFIGMAPS, name="a") as informer:
        until(informer, lambda: informer.synced)
        threads = [
            threading.Thread(target=until, args=(informer, lambda: informer.get("a") is not None))
            for _ in range(50)
        ]
        for thread in threads:
            thread.start()
        make(client, "a")
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert (proxy.count("list"), proxy.count("watch")) == (1, 1)


def test_an_informer_tells_when_it_cannot_see_and_when_it_can_again(
    proxy: FaultProxy, client: Client
) -> None:
    with Informer(client, CONFIGMAPS, name="a") as informer:
        until(informer, lambda: informer.synced)
        with proxy.outage():
            until(informer, lambda: informer.error is not None)
            assert informer.alive
        make(client, "a")
        until(informer, lambda: informer.get("a") is not None)
        assert informer.error is None


def test_an_informer_outlives_what_a_watch_does_not(proxy: FaultProxy, client: Client) -> None:
    proxy.inject(Answer(403, message="not yet"), verb="list")
    with Informer(client, CONFIGMAPS, name="a") as informer:
        until(informer, lambda: isinstance(informer.error, Forbidden))
        until(informer, lambda: informer.synced)
        assert informer.error is None


def test_close_wakes_readers(client: Client) -> None:
    informer = Informer(client, CONFIGMAPS).start()
    until(informer, lambda: informer.synced)
    woken = threading.Event()

    def read() -> None:
        until(informer, lambda: informer.closed)
        woken.set()

    threading.Thread(target=read, daemon=True).start()
    informer.close()
    assert woken.wait(5)
    assert not informer.alive
