"""Clients that send almost HTTP: nothing gets to a replica but what was legally asked."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import pool_faults as faults
from support.http_noise import stream
from support.http_reading import Request, flaws_of, requests_in
from support.pool_behaviours import behaviour
from support.pool_plane import Plane, Replica, read_until, until

MIB = 1024 * 1024
#: After so long a silence of the pool's, nothing more is expected from it.
QUIET = 0.05


def sent(plane: Plane, data: bytes) -> bool:
    """Send bytes and wait until the pool has closed; return False when it has to be given up."""
    with plane.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        connection.settimeout(QUIET)
        with contextlib.suppress(TimeoutError):
            while connection.recv(65536):
                pass
            return True
        # It waits for more. What is under way is given up now: that is no loss to this test.
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(20)
        while connection.recv(65536):
            pass
    return False


def asked_of(replica: Replica) -> list[Request]:
    """Return what a replica has been asked."""
    return [
        Request(each.method.encode(), each.target.encode("latin-1"), each.body)
        for each in replica.asked
    ]


def is_part_of(found: list[Request], legal: list[Request]) -> bool:
    """Whether all were legal, in this order; the pool may have refused some by itself."""
    rest = iter(legal)
    return all(each in rest for each in found)


SOME, MANY = range(2), pytest.param(range(2, 60), id="many", marks=pytest.mark.full)


@behaviour(
    "nothing is asked but what a client has legally sent",
    broken_by=faults.takes_length_and_chunks, seeds=SOME,
)  # fmt: skip
@pytest.mark.parametrize("seeds", [pytest.param(SOME, id="some"), MANY])
def test_nothing_is_asked_but_what_was_legally_sent(plane: Plane, seeds: range) -> None:
    replicas = plane.pool(1)
    plane.chat([])
    before = plane.rss()
    process = plane.process
    assert process is not None
    legal_ones = passed = 0
    # A replica may hear of a request when its client has given it up: these may come later.
    late: list[Request] = []
    for seed in seeds:
        noise = random.Random(seed)  # noqa: S311 - to be the same in every run
        for number in range(100):
            replicas[0].asked.clear()
            data = stream(noise, 100 * seed + number)
            whole = sent(plane, data)
            legal = requests_in(data)
            found = [each for each in asked_of(replicas[0]) if each in legal or each not in late]
            late += [] if whole else legal
            flaws = [flaw for each in replicas[0].asked for flaw in flaws_of(each.head)]
            said = f"seed {seed}, stream {number}: {data[:4000]!r}"
            assert process.poll() is None, said
            assert flaws + replicas[0].puzzled == [], said
            assert is_part_of(found, legal), f"{found} of {legal}: {said}"
            legal_ones += len(legal)
            passed += len(found)
    # Else there was nothing to see.
    assert passed > legal_ones // 3 > 20
    until(lambda: plane.counter("http.pool.downstream_rq_active") == 0, "nothing is under way")
    assert plane.ask("GET", "/v1/models").status == 200
    assert plane.rss() - before < 24 * MIB


@behaviour("slow clients hold nobody up and are let go", broken_by=faults.waits_for_headers)
def test_clients_that_never_finish_cost_little_and_are_let_go(
    make_plane: Callable[..., Plane],
) -> None:
    plane = make_plane(headers_seconds=2)
    (replica,) = plane.pool(1)
    plane.chat([])
    before = plane.rss()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(plane.connect()) for _ in range(200)]
        for connection in slow:
            connection.sendall(b"GET /v1/slow HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 30_000)
        client = http.client.HTTPConnection("127.0.0.1", plane.port, timeout=20)
        stack.callback(client.close)
        client.request("GET", "/v1/models")
        assert client.getresponse().read() == b'{"id": "b0"}'
        assert plane.rss() - before < 200 * 200_000
        for connection in slow:
            read_until(connection, b"HTTP/1.1 408 ")
    assert [asked.target for asked in replica.asked][1:] == ["/v1/models"]


@behaviour("giant headers are not collected", broken_by=faults.takes_giant_headers)
def test_giant_headers_are_refused_before_they_are_there(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    plane.chat([])
    before = plane.rss()

    def client(_number: int) -> None:
        with plane.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")
            for _ in range(100):
                connection.sendall(b"y" * 65536)
            read_until(connection, b"HTTP/1.1 431 ")

    with ThreadPoolExecutor(20) as clients:
        list(clients.map(client, range(20)))
    assert plane.rss() - before < 20 * MIB
    assert len(replica.asked) == 1
