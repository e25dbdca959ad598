"""A reverse proxy in front of a real API server that shows the faults which that one won't.

It speaks plain HTTP on loopback to the client and TLS to the server, passes everything on
(watches as a stream), counts what it saw, and breaks what a test told it to break:

    with FaultProxy(api_server.kubeconfig) as proxy:
        client = Client(proxy.config(namespace))
        proxy.inject(Answer(429, retry_after=1), verb="patch", count=3)
        ...
        assert proxy.count(verb="list") == 1

A client that sends a bearer token is judged by it; one that sends none is the kubeconfig's
administrator. Rules are asked in the order of their making; the first that matches and is
not used up breaks the request, and a request is broken at most once.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tandem_common.kube.config import ClusterConfig, from_kubeconfig

_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server"}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came in."""

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    path: str
    content_type: str
    #: Monotonic seconds.
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with a status; `after` lets the server do the work first and drops its answer."""

    status: int
    retry_after: float | None = None
    reason: str = ""
    message: str = "injected"
    after: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection; `after` lets the server do the work first."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing until `FaultProxy.release` or the proxy's end, then reset."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Pass it on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WatchError:
    """Open the watch, then send an ERROR event, as the server does when it forgot the past."""

    code: int = 410
    reason: str = "Expired"


@dataclass(frozen=True, slots=True)
class WatchSilence:
    """Open the watch, then pass nothing on any more until `release`."""


Fault = Answer | Reset | Hang | Slow | WatchError | WatchSilence


@dataclass(slots=True)
class Rule:
    """What to break, and how often; `hits` counts."""

    fault: Fault
    matches: Callable[[Seen], bool]
    left: int | None
    hits: int = 0


@dataclass(slots=True)
class _State:
    """What handler threads share."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rules: list[Rule] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    streams: set[socket.socket] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    date_shift: float = 0.0
    #: How often all watches were cut.
    cuts: int = 0


class FaultProxy:
    """The proxy; it serves from `__enter__` to `__exit__`.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, kubeconfig: Path, *, seed: int = 0) -> None:
        """Take the administrator's kubeconfig of the server behind."""
        self._state = _State()
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._upstream = from_kubeconfig(kubeconfig)
        self._server = _Server(self._upstream, self._state)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        self.release()
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    def config(
        self, namespace: str, *, token: str = "", token_file: Path | None = None
    ) -> ClusterConfig:
        """Return how a client of ours reaches the server through the proxy."""
        return ClusterConfig(self.url, namespace, token=token, token_file=token_file)

    def direct(self, namespace: str) -> ClusterConfig:
        """Return the administrator's way past the proxy."""
        return replace(self._upstream, namespace=namespace)

    def kubeconfig(self, folder: Path, namespace: str, *, token: str = "") -> Path:
        """Write a kubeconfig that leads through the proxy."""
        path = folder / "fault-proxy.kubeconfig"
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "proxy", "context": {
                "cluster": "proxy", "user": "proxy", "namespace": namespace}}],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(content))
        return path

    def inject(
        self,
        fault: Fault,
        *,
        verb: str | tuple[str, ...] = (),
        resource: str = "",
        name: str = "",
        count: int | None = 1,
        chance: float = 1.0,
        where: Callable[[Seen], bool] = lambda _seen: True,
    ) -> Rule:
        """Break the requests that match; all of `verb`, `resource`, `name` and `where` must.

        Args:
            fault: How.
            verb: get, list, watch, create, update, patch, delete; several as a tuple.
            resource: Plural, such as configmaps.
            name: The object's name (for lists and watches, of the field selector).
            count: How many; None for all.
            chance: Of those that match, the share that is broken; the seed decides which.
            where: Any further condition.
        """
        verbs = (verb,) if isinstance(verb, str) else verb

        def matches(seen: Seen) -> bool:
            return (
                (not verbs or seen.verb in verbs)
                and resource in ("", seen.resource)
                and name in ("", seen.name)
                and where(seen)
                and (chance >= 1 or self._random.random() < chance)
            )

        rule = Rule(fault, matches, count)
        with self._state.lock:
            self._state.rules.append(rule)
        return rule

    def set_clock(self, seconds: float) -> None:
        """Let the server's clock, as its answers tell it, be wrong by so many seconds."""
        self._state.date_shift = seconds

    def clear(self) -> None:
        """Break nothing any more; what hangs keeps hanging until `release`."""
        with self._state.lock:
            self._state.rules.clear()

    def release(self) -> None:
        """End what hangs."""
        self._state.released.set()
        self._state.released = threading.Event()

    def cut(self) -> int:
        """Reset every open watch; return how many there were."""
        with self._state.lock:
            streams, self._state.streams = self._state.streams, set()
            self._state.cuts += 1
        for stream in streams:
            with suppress(OSError):
                # The plain one, also under TLS: an orderly end would need the reader's lock.
                socket.socket.shutdown(stream, socket.SHUT_RDWR)
        return len(streams) // 2

    @contextmanager
    def outage(self, fault: Fault | None = None) -> Iterator[None]:
        """Break everything, watches that are open included, for the time of the block."""
        rule = self.inject(fault or Reset(), count=None)
        self.cut()
        try:
            yield
        finally:
            with self._state.lock:
                self._state.rules.remove(rule)
            self.release()

    @property
    def seen(self) -> list[Seen]:
        """Every request so far."""
        with self._state.lock:
            return list(self._state.seen)

    def count(self, verb: str = "", resource: str = "") -> int:
        """Count the requests so far."""
        return sum(
            verb in ("", each.verb) and resource in ("", each.resource) for each in self.seen
        )

    def forget(self) -> None:
        """Count from 0 again."""
        with self._state.lock:
            self._state.seen.clear()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, upstream: ClusterConfig, state: _State) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        nobody = ClusterConfig(upstream.server, ca_data=upstream.ca_data, ca_file=upstream.ca_file)
        #: TLS with the administrator's certificate (True) and without one.
        self.contexts = {True: upstream.ssl_context(), False: nobody.ssl_context()}
        self.upstream = urlsplit(upstream.server)
        self.state = state

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients that went away are what the tests are about."""


def parse(method: str, target: str, content_type: str = "") -> Seen:
    """Return a request in the words of RBAC."""
    url = urlsplit(target)
    query = parse_qs(url.query)
    words = [word for word in url.path.split("/") if word]
    rest = words[2:] if words[:1] == ["api"] else words[3:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    verb = _VERBS.get(method, "get")
    if verb == "get" and query.get("watch", [""])[0] in ("true", "1"):
        verb = "watch"
    elif verb == "get" and not name:
        verb = "list"
    if not name:
        for part in query.get("fieldSelector", [""])[0].split(","):
            key, _, value = part.partition("=")
            name = value if key == "metadata.name" else name
    return Seen(
        verb, resource, namespace, name, subresource, target, content_type, time.monotonic()
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Small answers must not wait for the acknowledgement of the ones before.
    disable_nagle_algorithm = True
    _cuts = 0

    @property
    def proxy(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        seen = parse(self.command, self.path, self.headers.get("Content-Type", ""))
        fault = self._fault(seen)
        if isinstance(fault, (Answer, Reset, Hang)) and not fault.after:
            self._break(fault)
            return
        if isinstance(fault, Slow):
            time.sleep(fault.seconds)
        server = self._connect()
        try:
            keep = {
                key: value
                for key, value in self.headers.items()
                if key.lower() not in {*_HOP, "host", "accept-encoding"}
            }
            server.request(self.command, self.path, body=body, headers=keep)
            answer = server.getresponse()
            if seen.verb == "watch" and answer.status == http.HTTPStatus.OK:
                self._stream(server, answer, fault)
                return
            content = answer.read()
        except OSError:
            self._break(Reset())
            return
        finally:
            server.close()
        if isinstance(fault, (Answer, Reset, Hang)):
            self._break(fault)
        else:
            headers = [
                (key, self._date(value) if key.lower() == "date" else value)
                for key, value in answer.getheaders()
                if key.lower() not in _HOP
            ]
            self._say(answer.status, headers, content)

    # The names are the base class's.
    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

    def _fault(self, seen: Seen) -> Fault | None:
        """Take note of a request and return what is to be done to it."""
        state = self.proxy.state
        with state.lock:
            self._cuts = state.cuts
            state.seen.append(seen)
            for rule in state.rules:
                if rule.left != 0 and rule.matches(seen):
                    rule.hits += 1
                    rule.left = None if rule.left is None else rule.left - 1
                    return rule.fault
        return None

    def _connect(self) -> http.client.HTTPSConnection:
        context = self.proxy.contexts["Authorization" not in self.headers]
        host, port = self.proxy.upstream.hostname, self.proxy.upstream.port
        return http.client.HTTPSConnection(str(host), port, context=context, timeout=90)

    def _stream(
        self,
        server: http.client.HTTPSConnection,
        answer: http.client.HTTPResponse,
        fault: Fault | None,
    ) -> None:
        """Pass a watch on, chunk by chunk."""
        self.close_connection = True
        ends = [end for end in (self.connection, server.sock) if end is not None]
        with self.proxy.state.lock:
            self.proxy.state.streams.update(ends)
            late = self._cuts != self.proxy.state.cuts
        if late:
            # All watches were cut while this one was on its way.
            self._break(Reset())
            return
        try:
            self.send_response_only(answer.status)
            self.send_header("Date", self._date(answer.headers["Date"]))
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            if isinstance(fault, WatchError):
                status = _status(fault.code, fault.reason, "injected")
                self._chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            elif isinstance(fault, WatchSilence):
                self._break(Hang())
                return
            else:
                while data := answer.read1(65536):
                    self._chunk(data)
            self._chunk(b"")
        except OSError:
            pass  # one of the two sides is gone
        finally:
            with self.proxy.state.lock:
                self.proxy.state.streams.difference_update(ends)

    def _date(self, said: str) -> str:
        at = parsedate_to_datetime(said).timestamp() + self.proxy.state.date_shift
        return formatdate(at, usegmt=True)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _say(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        # Without a Date of our own: the clock that counts is the server's.
        self.send_response_only(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _break(self, fault: Answer | Reset | Hang) -> None:
        if isinstance(fault, Answer):
            body = json.dumps(_status(fault.status, fault.reason, fault.message)).encode()
            headers = [("Content-Type", "application/json")]
            if fault.retry_after is not None:
                headers.append(("Retry-After", f"{fault.retry_after:g}"))
            self._say(fault.status, headers, body)
            return
        if isinstance(fault, Hang):
            self.proxy.state.released.wait()
        self.close_connection = True
        with suppress(OSError):
            # Closing without lingering is what sends a reset.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    }  # fmt: skip
