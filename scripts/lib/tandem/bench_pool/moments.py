"""Moments of a pool's life, for `make bench-pool`: how soon, and how much memory.

The replicas are the fake ones that can be told to hang, to flood and to say what they have seen.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tandem.bench_pool.subjects import Subject, program, started, wait
from tandem.figures import Figure

_CANCELLATIONS = 20
_STREAM_MIB = 200
_MIB = 2**20
_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Fakes:
    """Fake replicas that can be told how to behave."""

    control: int
    ports: list[int]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the control port.

        Raises:
            RuntimeError: It refuses.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"fake-vllm answers {path} with {answer.status}: {said!r}")
        return json.loads(said)

    def behave(self, **how: Any) -> None:
        """Tell all of them how to behave."""
        for number in range(len(self.ports)):
            self.ask("POST", f"/r{number}/behave", how)

    def requests(self, name: str) -> int:
        """Return the sum of one number over all of them."""
        return sum(int(self._seen(number)[name]) for number in range(len(self.ports)))

    def cancelled(self) -> list[float]:
        """Return when each cancellation was seen, in seconds of the epoch."""
        return sorted(at for n in range(len(self.ports)) for at in self._seen(n)["cancelled"])

    def _seen(self, number: int) -> Any:
        return self.ask("GET", f"/r{number}/seen")["requests"]


@contextmanager
def fakes(count: int) -> Iterator[Fakes]:
    """Yield so many; they end with the block."""
    words = [program("fake-vllm"), "--ports", ",".join(["0"] * count)]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as (_, line):
        said = json.loads(line())
        yield Fakes(said["control"], [said["replicas"][f"r{n}"] for n in range(count)])


def _request(port: int, body: object, *, receive: int | None = None) -> socket.socket:
    """Send a request and return its connection; `receive` bounds what the kernel holds, bytes."""
    connection = socket.socket()
    if receive is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    text = json.dumps(body).encode()
    connection.sendall(
        f"POST {_PATH} HTTP/1.1\r\nhost: pool\r\ncontent-length: {len(text)}\r\n\r\n".encode()
        + text
    )
    return connection


def cancellations(subject: Subject, replicas: Fakes) -> list[Figure]:
    """Measure from a client's leaving to the replica's knowing of it."""
    replicas.behave(hang=True)
    seconds = []
    for number in range(_CANCELLATIONS):
        with _request(subject.port, {"messages": [{"role": "user", "content": f"{number}"}]}):
            wait(lambda: replicas.requests("chats") > 0, "the replica is asked")
            wait(lambda: _waits(replicas), "it waits")
            left = time.time()
        wait(lambda: len(replicas.cancelled()) > 0, "it knows that the client has gone")
        seconds.append(replicas.cancelled()[0] - left)
        for one in range(len(replicas.ports)):
            replicas.ask("POST", f"/r{one}/forget")
    replicas.behave()
    return [
        Figure(f"{subject.name}: upstream cancelled after the client left, p50",
               statistics.median(seconds) * 1000, 100, "ms"),
        Figure(f"{subject.name}: the longest of {_CANCELLATIONS}", max(seconds) * 1000, 100, "ms"),
    ]  # fmt: skip


def _waits(replicas: Fakes) -> bool:
    # A canary that hangs is cancelled by who asked for it, and is no client of ours.
    return replicas.requests("chats") == 1


def unread(subject: Subject, replicas: Fakes) -> list[Figure]:
    """Measure what a stream that nobody reads costs in memory."""
    replicas.behave(stream_bytes=_STREAM_MIB * _MIB)
    before = subject.carrier_rss()
    body = {"stream": True, "messages": [{"role": "user", "content": "flood"}]}
    with _request(subject.port, body, receive=4096):
        _until_still(lambda: replicas.requests("sent_bytes"))
        grown = subject.carrier_rss() - before
    replicas.behave()
    name = f"{subject.name}: growth by an unread stream of {_STREAM_MIB} MB"
    return [Figure(name, max(0.0, grown), 10, "MiB")]


def _until_still(value: Callable[[], int]) -> None:
    last = -1

    def still() -> bool:
        nonlocal last
        before, last = last, value()
        time.sleep(0.5)
        return 0 < last == before

    wait(still, "the stream stands still")


def joining(subject: Subject, replicas: Fakes) -> list[Figure]:
    """Measure from a replica's registration, once it is ready, to its first request."""
    port = replicas.ask("POST", "/new", {"id": "late"})["port"]
    body = json.dumps({"url": f"http://127.0.0.1:{port}", "epoch": 1, "lease_seconds": 60})
    connection = http.client.HTTPConnection("127.0.0.1", subject.port, timeout=30)
    begun = time.monotonic()
    connection.request("PUT", "/pool/replicas/late", body)
    connection.getresponse().read()
    number = 0

    def asked() -> bool:
        nonlocal number
        number += 1
        chat = json.dumps({"messages": [{"role": "user", "content": f"{number}"}]})
        connection.request("POST", _PATH, chat)
        answer = connection.getresponse()
        answer.read()
        return answer.getheader("x-fake-replica") == "late"

    wait(asked, "the new replica is asked", pause=0)
    took = time.monotonic() - begun
    connection.close()
    return [Figure(f"{subject.name}: registration to first request", took, 0.5)]
