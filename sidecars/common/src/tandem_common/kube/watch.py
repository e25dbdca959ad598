"""Watches: what there is, then every change, for as long as one likes.

List, then watch from there; bookmarks keep the place while nothing happens, so that a watch
that ends goes on where it was. A place that is too old (410) leads to a new list. A server
that hangs is noticed: it has to end each watch by itself within `window_seconds`, and TCP
keep-alive finds a network that is gone.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import httpx

from tandem_common.clock import Deadline
from tandem_common.kube.errors import Call, Expired, KubeError, NetworkError, Transient, from_answer
from tandem_common.kube.resources import Resource

if TYPE_CHECKING:
    from tandem_common.kube.client import Client

#: A server may be this late in ending a watch before it counts as hanging.
_GRACE_SECONDS = 10.0
_LIST_SECONDS = 15.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
#: Silent connections are probed after 15 s, and dead after three unanswered probes.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True, slots=True)
class Synced:
    """A new list: it replaces everything that was known."""

    items: tuple[dict[str, Any], ...]
    resource_version: str
    #: The server's clock when it answered, in seconds since 1970; None when it did not say.
    server_time: float | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """One object changed."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contact:
    """The server is there, and nothing changed: a watch was opened, or a bookmark came."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Contact is lost; what was known may be old. It is tried again after `wait_seconds`."""

    error: Transient
    failures: int
    wait_seconds: float


WatchEvent = Synced | Changed | Contact | Lost


class Watch:
    """Iterator over events. One thread iterates; any thread may `close` it, at any time.

    It ends at the deadline and by `close`. It raises what another attempt does not mend:
    `Unauthorized`, `Forbidden`, `NotFound` (no such kind), `Invalid`.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        call: Call,
        *,
        params: Mapping[str, str],
        deadline: Deadline,
        window_seconds: float,
    ) -> None:
        """Prepare it; `Client.watch` is the way to get one."""
        self._client = client
        self._path = resource.path(call.namespace)
        self._common = {"apiVersion": resource.api_version, "kind": resource.kind}
        self._call = call
        self._params = dict(params)
        self._deadline = deadline
        self._window = window_seconds
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._response: httpx.Response | None = None
        #: Whether the iterating thread is in a read that only `_wake` ends.
        self._reading = False
        self._place = ""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._stop.is_set()

    def close(self) -> None:
        """End the iteration, also while it waits for the server."""
        self._stop.set()
        with self._lock:
            if self._response is not None and self._reading:
                _wake(self._response)
            else:
                # Nobody may ever take the next event, and so nobody else would close it.
                self._give_back()
        self._client.forget(self)

    def _give_back(self) -> None:
        """Close the answer that is open, if one is; with the lock held."""
        response, self._response = self._response, None
        if response is not None:
            self._client.close_stream(response)

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield events until the deadline or `close`."""
        failures = 0
        while not self._over():
            try:
                if not self._place:
                    yield self._list()
                    failures = 0
                for event in self._stream():
                    failures = 0
                    yield event
            except Expired:
                # The next turn lists; at most one list a failure wait, should that be gone too.
                self._place = ""
                failures += 1
                if failures > 1:
                    self._stop.wait(self._wait(failures, None))
            except Transient as error:
                if self._over():
                    break
                failures += 1
                wait = self._wait(failures, error.retry_after)
                yield Lost(error, failures, wait)
                self._stop.wait(wait)
        self._client.forget(self)

    def _over(self) -> bool:
        return self._stop.is_set() or self._deadline.passed

    def _wait(self, failures: int, retry_after: float | None) -> float:
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - 1, 10))
        spread = random.uniform(longest / 4, longest)  # noqa: S311 - spreads load
        return self._deadline.within(spread if retry_after is None else retry_after + spread)

    def _list(self) -> Synced:
        within = Deadline(self._deadline.within(_LIST_SECONDS))
        call = replace(self._call, verb="list")
        answer, server_time = self._client.send_once(call, self._path, self._params, within)
        self._place = str((answer.get("metadata") or {}).get("resourceVersion", ""))
        items = tuple({**self._common, **item} for item in answer.get("items") or [])
        return Synced(items, self._place, server_time)

    def _stream(self) -> Iterator[WatchEvent]:
        """Watch once from where we are; a regular end returns, anything else raises."""
        # Jitter, so that watches that began together do not come back together.
        window = self._window * random.uniform(0.75, 1.25)  # noqa: S311
        window = max(1.0, self._deadline.within(window))
        params = {
            **self._params, "watch": "true", "allowWatchBookmarks": "true",
            "resourceVersion": self._place, "timeoutSeconds": str(int(window)),
        }  # fmt: skip
        read = min(window + _GRACE_SECONDS, max(self._deadline.remaining, 0.05))
        response = self._client.open_stream(self._call, self._path, params, read_seconds=read)
        with self._lock:
            self._response = response
        try:
            _keep_alive(response)
            yield Contact()
            lines = response.iter_lines()
            while (line := self._next(lines)) is not None:
                event = self._event(line)
                if event is not None:
                    yield event
        except httpx.HTTPError as error:
            if self._over():
                return
            raise NetworkError(self._call, f"{type(error).__name__}: {error}") from error
        finally:
            with self._lock:
                self._reading = False
                self._give_back()

    def _next(self, lines: Iterator[str]) -> str | None:
        """Return the next line, None when there is none or it is over."""
        with self._lock:
            if self._over():
                return None
            self._reading = True
        line = next(lines, None)
        with self._lock:
            self._reading = False
        return line

    def _event(self, line: str) -> WatchEvent | None:
        if not line.strip():
            return None
        try:
            loaded = json.loads(line)
            kind, found = loaded["type"], loaded["object"]
        except (ValueError, KeyError, TypeError) as odd:
            raise NetworkError(self._call, f"a watch sent no event: {odd}") from odd
        if kind == "ERROR":
            status = int(found.get("code") or 500)
            error = from_answer(self._call, status, found)
            # Whatever it is, the place is not to be trusted any more.
            self._place = ""
            raise error
        version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        self._place = version or self._place
        if kind == "BOOKMARK":
            return Contact()
        return Changed(kind, {**self._common, **found})


def _socket(response: httpx.Response) -> socket.socket | None:
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    return found if isinstance(found, socket.socket) else None


def _keep_alive(response: httpx.Response) -> None:
    plain = _socket(response)
    if plain is None:
        return
    with suppress(OSError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _wake(response: httpx.Response) -> None:
    """End a read that another thread is waiting in: closing alone would not wake it."""
    plain = _socket(response)
    if plain is not None:
        with suppress(OSError):
            # The plain shutdown, also under TLS: an orderly end would need the reader's lock.
            socket.socket.shutdown(plain, socket.SHUT_RDWR)


__all__ = ["Changed", "Contact", "KubeError", "Lost", "Synced", "Watch", "WatchEvent"]
