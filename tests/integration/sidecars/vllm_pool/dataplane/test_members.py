"""Members come, go and drain while requests are under way; files that change act at once."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import Exchange, Plane, Replica, friendly, read_all, read_until, until
from vllm_pool.dataplane import config, files, stats
from vllm_pool.dataplane.config import Backend
from vllm_pool.dataplane.stats import BackendStats

CHAT = json.dumps({"messages": [{"role": "user", "content": "go on"}]}).encode()
PATH = "/v1/chat/completions"


class Held:
    """A stream that has begun and ends when it is told."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.go = asyncio.Event()

    async def answer(self, _replica: Replica, exchange: Exchange) -> None:
        """Begin, wait, end."""
        await exchange.begin()
        await exchange.chunk(b"data: begun\n\n")
        await self.go.wait()
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.chunk(b"")

    def end(self) -> None:
        """Let it end."""
        self.plane.loop.call_soon_threadsafe(self.go.set)


@behaviour(
    "who drains gets nothing new",
    broken_by=faults.ignores_drains,
)
@behaviour(
    "who is removed gets nothing new",
    broken_by=faults.never_forgets,
    how="removed",
)
@pytest.mark.parametrize("how", ["drained", "removed"])
def test_who_leaves_finishes_what_it_has_and_gets_nothing_new(plane: Plane, how: str) -> None:
    leaving, staying = plane.pool(2)
    held = Held(plane)
    leaving.answer = held.answer
    connection = plane.connect()
    try:
        session = _session_of(plane, leaving, staying)
        connection.sendall(f"GET / HTTP/1.1\r\nhost: a\r\nx-session-id: {session}\r\n\r\n".encode())
        read_until(connection, b"data: begun\n\n")
        left: list[Backend | Replica] = (
            [leaving.backend(draining=True), staying] if how == "drained" else [staying]
        )
        plane.members(left)
        before = len(leaving.asked)
        for number in range(30):
            assert plane.ask("GET", "/", headers={"x-session-id": f"{number}"}).id == staying.id
            assert plane.ask("GET", "/").id == staying.id
        assert len(leaving.asked) == before
        held.end()
        assert b"[DONE]" in read_until(connection, b"0\r\n\r\n")
    finally:
        connection.close()


def _session_of(plane: Plane, wanted: Replica, other: Replica) -> str:
    """Return a session that belongs to a replica whose answers do not end, by exclusion."""
    answer, wanted.answer = wanted.answer, friendly
    try:
        for number in range(100):
            name = f"find-{number}"
            if plane.ask("GET", "/", headers={"x-session-id": name}).id != other.id:
                return name
    finally:
        wanted.answer = answer
    raise AssertionError("no session belongs to it")


@behaviour("nothing fails while members change", broken_by=faults.empties_at_changes)
def test_nothing_fails_while_members_come_and_go(plane: Plane) -> None:
    replicas = plane.pool(3)
    stop = threading.Event()
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=20)
        count = 0
        while not stop.is_set():
            count += 1
            body = json.dumps({"prompt": f"{number} {count % 7}"})
            connection.request("POST", "/v1/completions", body)
            response = connection.getresponse()
            response.read()
            with lock:
                statuses[response.status] += 1
        connection.close()

    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(client, number) for number in range(8)]
        try:
            for number in range(10):
                new = plane.replica(f"n{number}")
                plane.members([*replicas[1:], replicas[0].backend(draining=True), new])
                plane.members([*replicas[1:], new])
                until(lambda: replicas[0].active == 0, "the one that left has finished")  # noqa: B023
                plane.wait(replicas[0].close())
                replicas = [*replicas[1:], new]
        finally:
            stop.set()
        for one in running:
            one.result(30)
    assert set(statuses) == {200}
    assert statuses.total() > 100


@behaviour("a killed replica fails nobody", broken_by=faults.never_asks_another)
def test_a_killed_replica_fails_nobody(plane: Plane) -> None:
    replicas = plane.pool(3)

    def ask(number: int) -> int:
        if number == 100:
            plane.wait(replicas[0].close())
        return plane.ask("POST", "/v1/completions", f'{{"prompt":"{number}"}}'.encode()).status

    with ThreadPoolExecutor(8) as clients:
        assert Counter(clients.map(ask, range(400))) == {200: 400}


@behaviour("a new member acts within half a second", broken_by=faults.tells_late)
def test_a_file_that_changes_acts_within_half_a_second(plane: Plane) -> None:
    old = plane.pool(1)
    new = plane.replica("new")
    took = []
    for _ in range(5):
        for member in (new, old[0]):
            files.write_endpoints(plane.run_dir, [member.backend()])
            began = time.monotonic()
            until(lambda: plane.ask("GET", "/").id == member.id, "it acts")  # noqa: B023
            took.append(time.monotonic() - began)
    print(f"seconds until a change acts: {sorted(round(one, 4) for one in took)}")
    assert sorted(took)[len(took) // 2] < 0.5


@behaviour("weights are shares", broken_by=faults.ignores_weights)
def test_weights_are_shares(plane: Plane) -> None:
    heavy, light = plane.replica("heavy"), plane.replica("light")
    plane.members([heavy, light.backend(weight=10)])
    sessions = ({"x-session-id": f"{number}"} for number in range(300))
    went = Counter(plane.ask("GET", "/", headers=one).id for one in sessions)
    assert 5 <= went["light"] <= 80


@behaviour("members outlive Envoy", broken_by=faults.forgets_at_restarts)
def test_an_envoy_that_is_started_again_has_its_members(plane: Plane) -> None:
    plane.pool(2)
    plane.stop()
    plane.start()
    assert {plane.ask("GET", "/").status for _ in range(10)} == {200}
    assert plane._routes() == "retries-1"


@behaviour(
    "a manager that is away is waited for",
    broken_by=faults.waits_for_no_manager,
)  # fmt: skip
def test_a_manager_that_is_away_for_a_moment_is_waited_for(plane: Plane) -> None:
    with ThreadPoolExecutor(1) as client:
        reply = client.submit(plane.ask, "GET", "/health")
        until(lambda: plane.counter("cluster.manager.upstream_cx_connect_fail") > 0, "it is missed")
        plane.manager()
        assert reply.result(20).id == "manager"


def test_replicas_are_served_without_a_manager(plane: Plane) -> None:
    plane.pool(2)
    assert plane.ask("POST", PATH, CHAT).status == 200


@behaviour("retries are counted", broken_by=faults.counts_no_retries)
def test_what_envoy_counts_is_read_by_replica(plane: Plane) -> None:
    plane.manager()
    replicas = plane.pool(2)
    held = Held(plane)
    sick, well = replicas

    async def failing(_replica: Replica, exchange: Exchange) -> None:
        await exchange.answer(503)

    sick.answer = failing
    for number in range(20):
        plane.ask("GET", "/", headers={"x-session-id": f"{number}"})
        plane.ask("GET", "/")
    well.answer = held.answer

    async def look() -> tuple[dict[str, BackendStats], bool, dict[str, int]]:
        async with stats.Admin(plane.run_dir / config.ADMIN_SOCKET) as admin:
            return (
                dict(await admin.backends()), await admin.ready(), dict(await admin.counters()),
            )  # fmt: skip

    with plane.connect() as connection:
        plane.members([well])
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        read_until(connection, b"data: begun\n\n")
        plane.members([sick, well])
        seen, ready, counters = asyncio.run(look())
        held.end()
        read_until(connection, b"0\r\n\r\n")
    assert ready
    assert set(seen) == {"b0", "b1"}
    assert (seen["b1"].active, seen["b1"].success >= 40) == (1, True)
    assert counters["http.pool.downstream_rq_total"] == 41
    assert sum(
        value for name, value in counters.items() if name.endswith(".upstream_rq_retry")
    ) == len(sick.asked)


def test_a_draining_balancer_lets_its_clients_go(plane: Plane) -> None:
    plane.pool(1)

    async def drain() -> None:
        async with stats.Admin(plane.run_dir / config.ADMIN_SOCKET) as admin:
            await admin.drain()

    assert "connection" not in plane.ask("GET", "/").headers
    with plane.connect() as connection:
        asyncio.run(drain())
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        said = read_all(connection)
    assert b"connection: close" in said
    assert said.endswith(b'{"id": "b0"}')


def test_a_closed_balancer_takes_no_new_connection_and_finishes(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    held = Held(plane)
    replica.answer = held.answer

    async def drain() -> None:
        async with stats.Admin(plane.run_dir / config.ADMIN_SOCKET) as admin:
            await admin.drain()
            connection = await asyncio.to_thread(plane.connect)
            connection.close()
            await admin.close_listener()

    with plane.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        read_until(connection, b"data: begun\n\n")
        asyncio.run(drain())

        def refused() -> bool:
            try:
                plane.connect().close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused, "new connections are refused")
        held.end()
        assert b"[DONE]" in read_until(connection, b"0\r\n\r\n")
