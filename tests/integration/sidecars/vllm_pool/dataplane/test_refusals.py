"""Requests that are not what they should be: refused, bounded, and never passed on."""

# ruff: noqa: E501 - tables of requests, one a line

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import Plane, read_all, until

MIB = 1024 * 1024
HOST = b"host: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"

MALFORMED = {
    "length and chunks": POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": POST + b"content-length: 4\r\ncontent-length: 40\r\n\r\nabcd" + SMUGGLED,
    "a list of lengths": POST + b"content-length: 4, 40\r\n\r\nabcd" + SMUGGLED,
    "a negative length": POST + b"content-length: -4\r\n\r\n" + SMUGGLED,
    "a signed length": POST + b"content-length: +4\r\n\r\nabcd" + SMUGGLED,
    "a hexadecimal length": POST + b"content-length: 0x4\r\n\r\nabcd" + SMUGGLED,
    "a length beyond 64 bits": POST + b"content-length: 99999999999999999999999\r\n\r\n",
    "chunked twice": POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "an unknown coding": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "identity after chunked": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk's size is no number": POST + b"transfer-encoding: chunked\r\n\r\nzz\r\nabcd\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk's size is negative": POST + b"transfer-encoding: chunked\r\n\r\n-1\r\nabcd\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk's size overflows": POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nabcd\r\n0\r\n\r\n",
    "a chunk without its end": POST + b"transfer-encoding: chunked\r\n\r\n4\r\nabcdXX0\r\n\r\n" + SMUGGLED,
    "more than a chunk's size": POST + b"transfer-encoding: chunked\r\n\r\n4\r\nabcdX\r\n0\r\n\r\n" + SMUGGLED,
    "a first header that goes on": b"GET / HTTP/1.1\r\n x: a\r\n" + HOST + b"\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\n" + HOST + b"x: a\0b\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\n" + HOST + b"x\0: ab\r\n\r\n",
    "a blank before the colon": b"GET / HTTP/1.1\r\n" + HOST + b"content-length : 4\r\n\r\nabcd",
    "a line without a colon": b"GET / HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\n" + HOST + b": x\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "blank in the path": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /\r\n\r\n",
    "a version of its own": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 60,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}  # fmt: skip


@behaviour("a length beside chunks is refused", broken_by=faults.takes_length_and_chunks)
@behaviour(
    "two lengths are refused",
    broken_by=faults.takes_two_lengths, data=MALFORMED["two lengths"],
)  # fmt: skip
@behaviour(
    "a list of lengths is refused",
    broken_by=faults.takes_two_lengths, data=MALFORMED["a list of lengths"],
)  # fmt: skip
@behaviour(
    "a chunk without a size is refused",
    broken_by=faults.reads_chunks_loosely, data=MALFORMED["a chunk's size is no number"],
)  # fmt: skip
@behaviour(
    "a chunk with more than its size is refused",
    broken_by=faults.passes_over_bytes, data=MALFORMED["more than a chunk's size"],
)  # fmt: skip
@behaviour("NUL is refused", broken_by=faults.drops_nul, data=MALFORMED["NUL in a value"])
@behaviour(
    "a blank before the colon is refused",
    broken_by=faults.takes_blanks, data=MALFORMED["a blank before the colon"],
)  # fmt: skip
@behaviour("no host is refused", broken_by=faults.makes_up_a_host, data=MALFORMED["no host"])
@behaviour("two hosts are refused", broken_by=faults.takes_two_hosts, data=MALFORMED["two hosts"])
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_are_refused(plane: Plane, data: bytes) -> None:
    (replica,) = plane.pool(1)
    # The connection stays open: one that is closed takes what is under way along, and nothing
    # would be passed on either way. It is for the pool to close it.
    try:
        said = plane.raw(data)
    except ConnectionResetError:
        said = b""
    assert b" 200 " not in said.split(b"\r\n")[0]
    # A request whose body breaks later may have been begun; what follows it must not be.
    assert [asked.target for asked in replica.asked] == []
    assert plane.ask("GET", "/v1/models").status == 200


@behaviour("a fold is one header", broken_by=faults.unfolds)
@pytest.mark.parametrize(
    ("header", "passed"),
    [(b"x: a\r\n b: c\r\n", "a b: c"), (b"x: a\r\n\tb: c\r\n", "a\tb: c"), (b"x: a\rb: c\r\n", "ab: c")],
    ids=["a fold", "a fold with a tab", "a lone CR"],
)  # fmt: skip
def test_what_looks_like_two_headers_is_passed_as_one(
    plane: Plane, header: bytes, passed: str
) -> None:
    (replica,) = plane.pool(1)
    plane.raw(b"GET / HTTP/1.1\r\n" + HOST + header + b"connection: close\r\n\r\n")
    (asked,) = replica.asked
    assert asked.header("x") == passed
    assert asked.header("b") is None
    assert asked.head.count(b"\r") == asked.head.count(b"\r\n")


@behaviour("giant headers are refused", broken_by=faults.takes_giant_headers)
@behaviour("too many headers are refused", broken_by=faults.takes_many_headers)
def test_headers_above_the_limit_are_refused(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    assert plane.ask("GET", "/v1/models", headers={"x": "l" * 12_000}).status == 200
    reply = plane.raw(b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"l" * 70_000 + b"\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"x%d: y\r\n" % number for number in range(300))
    assert plane.raw(b"GET / HTTP/1.1\r\n" + HOST + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert len(replica.asked) == 1


@behaviour(
    "a body above the limit is refused unread",
    broken_by=faults.takes_long_bodies,
)  # fmt: skip
@pytest.mark.parametrize("session", [{}, {"x-session-id": "s"}], ids=["by body", "by session"])
def test_a_body_above_the_limit_is_refused_unread(
    make_plane: Callable[..., Plane], session: dict[str, str]
) -> None:
    plane = make_plane(max_body_bytes=MIB)
    (replica,) = plane.pool(1)
    assert plane.ask("POST", "/v1/completions", b"x" * MIB, session).status == 200
    head = POST + b"".join(f"{k}: {v}\r\n".encode() for k, v in session.items())
    said = plane.raw(head + f"content-length: {MIB + 1}\r\nconnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 413 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == 413
    assert len(replica.asked) == 1


@behaviour(
    "a body that grows above the limit is refused",
    broken_by=faults.takes_endless_bodies,
)  # fmt: skip
def test_a_body_that_grows_above_the_limit_is_refused(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(max_body_bytes=MIB)
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        connection.sendall(POST + b"transfer-encoding: chunked\r\n\r\n")
        try:
            for _ in range(64):
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            said = read_all(connection)
        except (BrokenPipeError, ConnectionResetError):
            said = b""
    assert said == b"" or said.startswith(b"HTTP/1.1 413 ")
    assert replica.asked == []


@behaviour("headers that never end are given up", broken_by=faults.waits_for_headers)
def test_headers_that_never_end_are_given_up(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(headers_seconds=0.5)
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.1)

        def given_up() -> bool:
            try:
                connection.sendall(b"x: y\r\n")
                connection.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                pass
            return True

        until(given_up, "it is given up")
    assert replica.asked == []


@behaviour(
    "a body that never ends is given up",
    broken_by=faults.waits_for_bodies,
)  # fmt: skip
def test_a_body_that_never_ends_is_given_up(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(request_seconds=0.5)
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        connection.sendall(POST + b"content-length: 100\r\n\r\nabc")
        said = read_all(connection)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert replica.asked == []


@behaviour(
    "a client that says nothing is let go",
    broken_by=faults.keeps_idle_clients,
)  # fmt: skip
def test_a_client_that_says_nothing_is_let_go(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(client_idle_seconds=0.5)
    with plane.connect() as connection:
        assert read_all(connection) == b""


def test_noise_does_not_bring_it_down(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    noise = random.Random(7)  # noqa: S311 - to be the same in every run
    good = POST + b'content-length: 14\r\n\r\n{"prompt":"x"}'
    before = plane.rss()
    for _ in range(400):
        data = bytearray(good)
        for _ in range(noise.randint(1, 8)):
            data[noise.randrange(len(data))] = noise.randrange(256)
        with plane.connect() as connection:
            connection.settimeout(5)
            connection.sendall(bytes(data[: noise.randint(1, len(data))]))
            connection.shutdown(socket.SHUT_WR)
            try:
                read_all(connection)
            except ConnectionResetError:
                continue
    until(lambda: plane.counter("http.pool.downstream_rq_active") == 0, "nothing is left under way")
    assert plane.ask("GET", "/v1/models").status == 200
    assert plane.rss() - before < 20 * MIB
    assert all(b"\0" not in asked.head for asked in replica.asked)
