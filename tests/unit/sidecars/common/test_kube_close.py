"""Closing a client while its requests are under way: nothing is left open, nothing is sent."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tandem_common.clock import Deadline
from tandem_common.kube import CONFIGMAPS, Client, ClusterConfig, KubeError

ANSWER = b'{"metadata": {"name": "it"}}'


@pytest.fixture
def crowded() -> Iterator[socket.socket]:
    """A server that takes no more connections until it accepts those that wait."""
    with ExitStack() as stack:
        server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        stack.enter_context(closing(socket.create_connection(server.getsockname())))
        server.settimeout(20)
        yield server


def a_client(server: socket.socket) -> Client:
    host, port = server.getsockname()
    return Client(ClusterConfig(server=f"http://{host}:{port}", namespace="there"))


def answer(connection: socket.socket, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)


def begin(client: Client, outcome: list[object]) -> threading.Thread:
    def ask() -> None:
        try:
            outcome.append(client.get(CONFIGMAPS, "it", deadline=Deadline(20)))
        except KubeError as error:
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def wait_for_connecting(port: int) -> None:
    """Block until this machine is opening a connection to the port (state SYN_SENT)."""
    deadline = Deadline(10)
    while not deadline.passed:
        table = Path("/proc/net/tcp").read_text(encoding="ascii")
        rows = [line.split() for line in table.splitlines()[1:]]
        if any(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows):
            return
    raise AssertionError("nobody connects")


def test_a_connection_that_is_being_opened_is_closed_after_its_answer(
    crowded: socket.socket,
) -> None:
    client, outcome = a_client(crowded), list[object]()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        asking = begin(client, outcome)
        wait_for_connecting(crowded.getsockname()[1])
        client.close()
        crowded.accept()[0].close()
        connection, _ = crowded.accept()
        with closing(connection):
            assert connection.recv(65536).startswith(b"GET ")
            answer(connection, ANSWER)
            asking.join(timeout=20)
            assert not asking.is_alive()
            connection.settimeout(20)
            assert connection.recv(1) == b""
        gc.collect()
    assert outcome == [{"metadata": {"name": "it"}}]
    assert [str(each.message) for each in warned if "unclosed" in str(each.message)] == []


def test_after_close_nothing_is_sent_and_nobody_waits_for_the_deadline(
    crowded: socket.socket,
) -> None:
    client = a_client(crowded)
    client.close()
    with pytest.raises(KubeError, match="closed"):
        client.get(CONFIGMAPS, "it", deadline=Deadline(3600))


def test_a_watch_that_nobody_reads_on_is_closed_with_its_client() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(20)
        client, events = a_client(server), list[object]()

        def watch() -> Iterator[object]:
            yield from client.watch(CONFIGMAPS, deadline=Deadline(20))

        iterator = watch()
        reader = threading.Thread(target=lambda: events.extend([next(iterator), next(iterator)]))
        reader.start()
        connection, _ = server.accept()
        with closing(connection):
            connection.settimeout(20)
            assert b"watch" not in connection.recv(65536)
            answer(connection, b'{"metadata": {"resourceVersion": "7"}, "items": []}')
            assert b"watch=true" in connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            reader.join(timeout=20)
            assert not reader.is_alive()
            client.close()
            assert connection.recv(1) == b""
    assert [type(event).__name__ for event in events] == ["Synced", "Contact"]
