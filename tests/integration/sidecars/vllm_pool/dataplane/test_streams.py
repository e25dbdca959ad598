"""Answers while they come: in order, unbuffered, never cut short in silence, never hoarded."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import threading
from collections.abc import Callable

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import Exchange, Plane, Replica, friendly, read_until, until

MIB = 1024 * 1024
CHAT = json.dumps({"stream": True, "messages": [{"role": "user", "content": "tell"}]}).encode()


def post(body: bytes = CHAT, path: str = "/v1/chat/completions") -> bytes:
    """Return a request as bytes."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: pool\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def hanging(_replica: Replica, exchange: Exchange) -> None:
    """Say nothing until the other side goes."""
    await exchange.gone()


@behaviour("events come as they are sent", broken_by=faults.collects_answers)
def test_events_come_as_they_are_sent(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    go = asyncio.Event()

    async def events(_replica: Replica, exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.chunk(b"data: one\n\n")
        await go.wait()
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.chunk(b"")

    replica.answer = events
    with plane.connect() as connection:
        connection.sendall(post())
        assert b"[DONE]" not in read_until(connection, b"data: one\n\n")
        plane.loop.call_soon_threadsafe(go.set)
        assert b"data: [DONE]" in read_until(connection, b"\r\n0\r\n\r\n")


@behaviour("a cut stream is an error", broken_by=faults.ends_cut_streams)
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_a_cut_stream_is_an_error_and_asked_once(plane: Plane, *, reset: bool) -> None:
    replicas = plane.pool(3)

    async def cut(_replica: Replica, exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.chunk(b"data: one\n\n")
        if reset:
            exchange.reset()
        else:
            exchange.writer.close()

    for replica in replicas:
        replica.answer = cut
    connection = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=20)
    connection.request("POST", "/v1/chat/completions", CHAT)
    response = connection.getresponse()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()
    assert sum(len(replica.asked) for replica in replicas) == 1


@behaviour("a cut answer is an error", broken_by=faults.ends_by_closing)
def test_a_plain_answer_that_is_cut_is_an_error(plane: Plane) -> None:
    (replica,) = plane.pool(1)

    async def cut(_replica: Replica, exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"x" * 500)
        exchange.reset()

    replica.answer = cut
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        plane.ask("POST", "/v1/chat/completions", CHAT)


@behaviour("a client that waits and goes is cancelled", broken_by=faults.works_for_nobody)
@behaviour(
    "a client that reads and goes is cancelled", broken_by=faults.works_for_nobody, begun=True
)
@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "streaming"])
def test_a_client_that_goes_takes_its_request_along(plane: Plane, *, begun: bool) -> None:
    (replica,) = plane.pool(1)

    async def quiet(replica: Replica, exchange: Exchange) -> None:
        if begun:
            await exchange.begin()
            await exchange.chunk(b"data: one\n\n")
        await hanging(replica, exchange)

    replica.answer = quiet
    with plane.connect() as connection:
        connection.sendall(post())
        until(lambda: replica.active == 1, "the replica is asked")
        if begun:
            read_until(connection, b"data: one\n\n")
    until(lambda: replica.active == 0, "the replica knows that the client is gone", 2)


@behaviour("what nobody reads is not collected", broken_by=faults.hoards)
def test_what_nobody_reads_is_not_collected(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    sent = 0

    async def flood(_replica: Replica, exchange: Exchange) -> None:
        nonlocal sent
        await exchange.begin()
        for _ in range(200):
            await exchange.chunk(b"x" * MIB)
            sent += 1
        await exchange.chunk(b"")

    plane.chat([])
    replica.answer = flood
    before = plane.rss()
    with plane.connect() as connection:
        connection.sendall(post())
        read_until(connection, b"\r\n\r\n")
        last = -1
        stop = threading.Event()
        # It stands still when two looks in a row, half a second apart, see the same.
        while last != sent or sent == 0:
            last = sent
            stop.wait(0.5)
        assert sent < 100
        assert plane.rss() - before <= 10 * MIB


@behaviour(
    "a long answer comes whole",
    broken_by=faults.cuts_long_answers, raises=(http.client.IncompleteRead,),
)  # fmt: skip
def test_a_long_answer_comes_whole(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    body = bytes(range(256)) * (10 * 4096)

    async def long(_replica: Replica, exchange: Exchange) -> None:
        await exchange.answer(200, body, {"content-type": "application/octet-stream"})

    replica.answer = long
    assert hashlib.sha256(plane.ask("GET", "/v1/x").body).digest() == hashlib.sha256(body).digest()


@behaviour("silence has a limit", broken_by=faults.waits_in_silence)
def test_silence_ends_a_request_only_when_it_is_configured(
    make_plane: Callable[..., Plane],
) -> None:
    plane = make_plane(idle_seconds=0.5)
    (replica,) = plane.pool(1)
    replica.answer = hanging
    reply = plane.ask("POST", "/v1/chat/completions", CHAT)
    assert reply.status == 504
    assert json.loads(reply.body)["error"]["code"] == 504
    until(lambda: replica.active == 0, "the replica is freed")


@behaviour(
    "the whole has no limit",
    broken_by=faults.limits_the_whole, raises=(http.client.IncompleteRead,),
)  # fmt: skip
def test_the_limit_is_on_silence_and_not_on_the_whole(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(idle_seconds=1)
    (replica,) = plane.pool(1)

    async def slow(_replica: Replica, exchange: Exchange) -> None:
        await exchange.begin()
        for _ in range(12):
            await asyncio.sleep(0.2)
            await exchange.chunk(b"data: x\n\n")
        await exchange.chunk(b"")

    replica.answer = slow
    assert plane.ask("POST", "/v1/chat/completions", CHAT).body == b"data: x\n\n" * 12


@behaviour("600 are in flight", broken_by=faults.has_few_in_flight)
def test_600_are_really_in_flight(plane: Plane) -> None:
    replicas = plane.pool(2)
    go = asyncio.Event()

    async def held(replica: Replica, exchange: Exchange) -> None:
        await go.wait()
        await friendly(replica, exchange)

    for replica in replicas:
        replica.answer = held
    connections = [plane.connect() for _ in range(600)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(post(json.dumps({"prompt": f"{number}"}).encode()))
        until(lambda: sum(replica.active for replica in replicas) == 600, "600 at the replicas")
        plane.loop.call_soon_threadsafe(go.set)
        for connection in connections:
            assert b"200 OK" in read_until(connection, b"}")
    finally:
        for connection in connections:
            connection.close()


@behaviour("connections to replicas are kept", broken_by=faults.connects_for_each)
@behaviour(
    "connections of clients are kept",
    broken_by=faults.closes_after_one, raises=(ConnectionError,),
)  # fmt: skip
def test_connections_are_kept_on_both_sides(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        for _ in range(20):
            connection.sendall(post())
            read_until(connection, b"}")
    assert plane.counter("http.pool.downstream_cx_total") == 1
    assert (len(replica.asked), replica.connections) == (20, 1)
