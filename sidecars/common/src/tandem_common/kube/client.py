"""The calls: get, list, create, delete, patches, watch; thread-safe, retried, with deadlines.

Every call ends by its deadline. Faults that say nothing about the object (429, 5xx, the
network) are tried again until then, with full jitter and never before the server's
Retry-After; anything else is raised at once, as a type. A request that was answered by a
fault may have been carried out all the same, so a caller of `create` and `delete` is ready
for `AlreadyExists` and `NotFound` of its own first attempt.

What is not done: proxies and ~/.netrc from the environment are ignored, and a server that
sends its answer byte by byte can outlast a deadline by `read_seconds` a byte.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import stamina

from tandem_common.clock import Clock, Deadline
from tandem_common.kube.config import ClusterConfig, TokenSource
from tandem_common.kube.errors import (
    Call,
    Conflict,
    DeadlineExceeded,
    KubeError,
    NetworkError,
    Transient,
    from_answer,
)
from tandem_common.kube.resources import Resource
from tandem_common.kube.watch import Watch

Object = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]
#: Told of every answer: verb, HTTP status (0 for none), seconds.
Observer = Callable[[str, int, float], None]

_UNAUTHORIZED = 401
_MIN_TIMEOUT = 0.05
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 3.0
#: Waits after a write that others were in the way of: the more there are, the further apart
#: they have to come back, since each one that the server works on slows the rest down.
_FIRST_SPREAD, _LONGEST_SPREAD = 1.0, 12.0
_TIMEOUT_STATUS = 504


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A list and the point in time that it shows."""

    items: tuple[Object, ...]
    resource_version: str
    #: The server's clock when it answered, in seconds since 1970; None when it did not say.
    server_time: float | None = None


def wait_seconds(attempt: int, error: Exception | None = None, *, crowded: bool = False) -> float:
    """Return how long to wait after a failed attempt (the first is 1): full jitter.

    Many clients that failed together must not come back together, also when all of them
    were told the same Retry-After. Those that were in each other's way (a conflict, a server
    that did not get through within its time, or any fault where it is `crowded`) spread
    further.
    """
    first, most = _FIRST_WAIT, _LONGEST_WAIT
    if crowded or isinstance(error, Conflict) or getattr(error, "status", 0) == _TIMEOUT_STATUS:
        first, most = _FIRST_SPREAD, _LONGEST_SPREAD
    longest = min(most, first * 2 ** min(attempt - 1, 10))
    retry_after = getattr(error, "retry_after", None)
    spread = random.uniform(0, longest)  # noqa: S311 - spreads load, guards nothing
    return spread if retry_after is None else retry_after + spread / 2


class Client:
    """A connection to one API server.

    Attributes:
        config: Where and as whom.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "tandem",
        connect_seconds: float = 5.0,
        read_seconds: float = 15.0,
        default_seconds: float = 30.0,
        attempts: int = 100,
        clock: Clock = time.monotonic,
        observe: Observer | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            config: Where and as whom.
            user_agent: How audit logs name us.
            connect_seconds: Longest time for a connection.
            read_seconds: Longest silence of an answer.
            default_seconds: Deadline of calls that bring none.
            attempts: Most attempts of one call, whatever its deadline; at least 1.
            clock: Seconds that only grow.
            observe: Told of every answer; for metrics.
        """
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: at least 1")
        self.config = config
        self._token = TokenSource(config)
        self._connect, self._read = connect_seconds, read_seconds
        self._default = default_seconds
        self._attempts = attempts
        self._clock = clock
        self._observe = observe or (lambda _verb, _status, _seconds: None)
        self._http = httpx.Client(
            base_url=config.server,
            verify=config.ssl_context() if config.server.startswith("https") else False,
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            # Each watch holds a connection, so their number must not be limited here.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            trust_env=False,
        )
        self._watches: set[Watch] = set()
        self._lock = threading.Lock()
        self._closed = False
        #: Requests whose answers are not read to their end.
        self._under_way = 0
        #: The server's clock and ours when it last answered.
        self._server_clock: tuple[float, float] | None = None

    def server_time(self) -> float | None:
        """Return the API server's clock now, in seconds since 1970, without asking it.

        It is what its last answer said (whole seconds), plus what has passed since on a
        clock that does not jump. None before the first answer. Our own wall clock, which may
        be wrong, has no part in it.
        """
        known = self._server_clock
        return None if known is None else known[0] + (self._clock() - known[1])

    def close(self) -> None:
        """End all watches and close all connections.

        A request that another thread has under way gets its answer, or its timeout; its
        connection is closed after it. No other request is sent.
        """
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, set()
            idle = not self._under_way
        for watch in watches:
            watch.close()
        if idle:
            self._http.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # --- reading -----------------------------------------------------------------------

    def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        deadline: Deadline | None = None,
    ) -> Object:
        """Return one object."""
        call = self._call("get", resource, namespace, name)
        return self._send(call, "GET", resource.path(call.namespace, name), deadline=deadline)

    def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        field_selector: str = "",
        deadline: Deadline | None = None,
    ) -> ObjectList:
        """Return the objects of a namespace, or the one of that name, and their point in time."""
        call = self._call("list", resource, namespace, name)
        params = selectors(name, label_selector, field_selector)
        path = resource.path(call.namespace)
        answer, server_time = self._answer(call, "GET", path, params=params, deadline=deadline)
        # Items of a list lack what the list says for all of them.
        common = {"apiVersion": resource.api_version, "kind": resource.kind}
        items = tuple({**common, **item} for item in answer.get("items") or [])
        version = str((answer.get("metadata") or {}).get("resourceVersion", ""))
        return ObjectList(items, version, server_time)

    def watch(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        field_selector: str = "",
        deadline: Deadline | None = None,
        window_seconds: float = 60.0,
    ) -> Watch:
        """Return a watch: an iterator over what there is and every change; see `Watch`."""
        call = self._call("watch", resource, namespace, name)
        watch = Watch(
            self, resource, call,
            params=selectors(name, label_selector, field_selector),
            deadline=deadline or Deadline(None, self._clock), window_seconds=window_seconds,
        )  # fmt: skip
        with self._lock:
            self._watches.add(watch)
        return watch

    # --- writing -----------------------------------------------------------------------

    def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        field_manager: str = "",
        deadline: Deadline | None = None,
    ) -> Object:
        """Create an object and return it."""
        call = self._call("create", resource, namespace)
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return self._send(
            call, "POST", resource.path(call.namespace), body=full,
            params=_manager(field_manager), deadline=deadline,
        )  # fmt: skip

    def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = "Background",
        deadline: Deadline | None = None,
    ) -> Object:
        """Delete an object; with `uid` only the very one, else `Conflict` is raised.

        Returns:
            The object as it is being deleted, or the API's word that it is gone.
        """
        call = self._call("delete", resource, namespace, name)
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: Object = {"propagationPolicy": propagation}
        preconditions = {key: value for key, value in conditions.items() if value}
        if preconditions:
            options["preconditions"] = preconditions
        path = resource.path(call.namespace, name)
        return self._send(call, "DELETE", path, body=options, deadline=deadline)

    def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
        deadline: Deadline | None = None,
    ) -> Object:
        """Server-side apply: own exactly these fields, create the object if need be.

        With `metadata.uid` in the body only that very object is changed and none is made.

        Raises:
            OwnedByAnother: Another manager owns one of them, and `force` is not set.
            Conflict: There is no such object, or the UID is another one; or so many wrote at
                the same time that the server gave up, which without a UID is tried again here.
        """
        name = str(body["metadata"]["name"])
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        params = {**_manager(field_manager), "force": "true" if force else "false"}
        return self._patch(
            resource, name, full, "application/apply-patch+yaml",
            namespace=namespace, subresource=subresource, params=params, deadline=deadline,
            again="uid" not in body["metadata"],
        )  # fmt: skip

    def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        *,
        field_manager: str = "",
        namespace: str = "",
        subresource: str = "",
        server_seconds: int = 0,
        deadline: Deadline | None = None,
    ) -> Object:
        """Set the fields that the patch names (null removes one), and no other.

        A 409 without `metadata.resourceVersion` in the patch only means that others wrote at
        the same time: it is tried again like a fault. With `server_seconds` the server gives
        an attempt up after that time (the second after twice of it, and so on): it repeats a
        write that others overtake by itself, for half a minute, and with very many writers
        that is work for nothing; apart from each other they are through sooner.

        Raises:
            OtherObject: `metadata.uid` is in the patch, and the object has another one.
        """
        metadata = patch.get("metadata") or {}
        return self._patch(
            resource, name, patch, "application/merge-patch+json",
            namespace=namespace, subresource=subresource, params=_manager(field_manager),
            deadline=deadline, again="resourceVersion" not in metadata,
            server_seconds=server_seconds,
        )  # fmt: skip

    def json_patch(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        field_manager: str = "",
        namespace: str = "",
        subresource: str = "",
        deadline: Deadline | None = None,
    ) -> Object:
        """Carry out the operations all or none; a failed `test` raises `Invalid` (422)."""
        return self._patch(
            resource, name, operations, "application/json-patch+json",
            namespace=namespace, subresource=subresource, params=_manager(field_manager),
            deadline=deadline,
        )  # fmt: skip

    # --- inside ------------------------------------------------------------------------

    def forget(self, watch: Watch) -> None:
        """Take note that a watch has ended."""
        with self._lock:
            self._watches.discard(watch)

    def open_stream(
        self, call: Call, path: str, params: Mapping[str, str], *, read_seconds: float
    ) -> httpx.Response:
        """Send the request of a watch once and return the open answer, for `close_stream`."""
        request = self._http.build_request(
            "GET", path, params=dict(params), timeout=self._timeout(None, read_seconds)
        )
        self._enter(call)
        try:
            return self._once(call, request, stream=True)
        except BaseException:
            self._leave()
            raise

    def close_stream(self, response: httpx.Response) -> None:
        """Take an answer of `open_stream` back, once."""
        response.close()
        self._leave()

    def send_once(
        self, call: Call, path: str, params: Mapping[str, str], deadline: Deadline
    ) -> tuple[Object, float | None]:
        """GET once and return the answer and the server's clock; the caller has a loop."""
        request = self._http.build_request(
            "GET", path, params=dict(params), timeout=self._timeout(deadline, self._read)
        )
        response = self._ask(call, request)
        return _object(call, response), _date(response.headers.get("Date"))

    def _call(
        self, verb: str, resource: Resource, namespace: str, name: str = "", subresource: str = ""
    ) -> Call:
        where = namespace or self.config.namespace
        if not where:
            raise ValueError("no namespace: name one in the call or in the configuration")
        return Call(verb, resource.plural, resource.group, where, name, subresource)

    def _patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        content_type: str,
        *,
        namespace: str,
        subresource: str,
        params: Mapping[str, str],
        deadline: Deadline | None,
        again: bool = False,
        server_seconds: int = 0,
    ) -> Object:
        call = self._call("patch", resource, namespace, name, subresource)
        return self._send(
            call, "PATCH", resource.path(call.namespace, name, subresource), params=params,
            body=patch, content_type=content_type, deadline=deadline, conflict_again=again,
            server_seconds=server_seconds,
        )  # fmt: skip

    def _send(self, call: Call, method: str, path: str, **how: Any) -> Object:
        """Return the object of `_answer`."""
        return self._answer(call, method, path, **how)[0]

    def _answer(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        deadline: Deadline | None = None,
        conflict_again: bool = False,
        server_seconds: int = 0,
    ) -> tuple[Object, float | None]:
        """Send a request until it is answered, within the deadline.

        Returns:
            The object, and the server's clock.
        """
        until = deadline or Deadline(self._default, self._clock)
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        attempt = 0

        def again(error: Exception) -> bool | float:
            """Say whether, and after how many seconds, there is another attempt."""
            if not isinstance(error, Transient) and not (
                conflict_again and type(error) is Conflict
            ):
                return False
            # A server whose limit has passed may hang up without a word.
            wait = wait_seconds(attempt, error, crowded=bool(server_seconds))
            more = attempt < self._attempts and not self._closed
            return wait if more and wait < until.remaining else False

        try:
            for trial in stamina.retry_context(on=again, attempts=None, timeout=None):
                with trial:
                    attempt += 1
                    query = dict(params or {})
                    if server_seconds:
                        query["timeout"] = f"{server_seconds * attempt}s"
                    request = self._http.build_request(
                        method, path, params=query, content=content,
                        headers=headers, timeout=self._timeout(until, self._read),
                    )  # fmt: skip
                    response = self._ask(call, request)
                    return _object(call, response), _date(response.headers.get("Date"))
        except (Transient, Conflict) as error:
            if isinstance(error, Transient) or (conflict_again and type(error) is Conflict):
                raise DeadlineExceeded(call, error, attempt, until.elapsed) from error
            raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _enter(self, call: Call) -> None:
        """Begin a request.

        The pool is closed when none is under way: it forgets a connection that another thread
        is still opening, and nobody would close that one.
        """
        with self._lock:
            if self._closed:
                raise NetworkError(call, "the client has been closed")
            self._under_way += 1

    def _leave(self) -> None:
        """End a request; the last one closes the pool of a closed client."""
        with self._lock:
            self._under_way -= 1
            last = self._closed and not self._under_way
        if last:
            self._http.close()

    def _ask(self, call: Call, request: httpx.Request) -> httpx.Response:
        """Send a request and return its whole answer."""
        self._enter(call)
        try:
            return self._once(call, request, stream=False)
        finally:
            self._leave()

    def _once(self, call: Call, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """Send a request once, or twice when the token has been renewed meanwhile."""
        response = self._transmit(call, request, stream=stream, force=False)
        if response.status_code == _UNAUTHORIZED:
            response.close()
            response = self._transmit(call, request, stream=stream, force=True)
        if response.is_success:
            return response
        with suppress(httpx.HTTPError):
            response.read()
        body: Any = {}
        with suppress(ValueError, httpx.StreamError):
            body = response.json()
        response.close()
        raise from_answer(
            call, response.status_code, body if isinstance(body, Mapping) else {},
            retry_after=_seconds(response.headers.get("Retry-After")),
        )  # fmt: skip

    def _transmit(
        self, call: Call, request: httpx.Request, *, stream: bool, force: bool
    ) -> httpx.Response:
        token = self._token.get(force=force)
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        started = self._clock()
        try:
            response = self._http.send(request, stream=stream)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            self._observe(call.verb, 0, self._clock() - started)
            raise NetworkError(call, f"{type(error).__name__}: {error}") from error
        self._observe(call.verb, response.status_code, self._clock() - started)
        said = _date(response.headers.get("Date"))
        if said is not None:
            self._server_clock = (said, self._clock())
        return response

    def _timeout(self, deadline: Deadline | None, read_seconds: float) -> httpx.Timeout:
        left = float("inf") if deadline is None else max(deadline.remaining, _MIN_TIMEOUT)
        read, connect = min(read_seconds, left), min(self._connect, left)
        return httpx.Timeout(read, connect=connect, write=read, pool=connect)


def selectors(name: str, labels: str, fields: str) -> dict[str, str]:
    """Return the query of a list or watch.

    A name becomes a field selector: that is what RBAC's resourceNames look at for lists.
    """
    parts = [f"metadata.name={name}" if name else "", fields]
    chosen = {"labelSelector": labels, "fieldSelector": ",".join(part for part in parts if part)}
    return {key: value for key, value in chosen.items() if value}


def _manager(name: str) -> dict[str, str]:
    return {"fieldManager": name} if name else {}


def _seconds(header: str | None) -> float | None:
    """Return the seconds of Retry-After; the API server never sends a date."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def _date(header: str | None) -> float | None:
    try:
        return parsedate_to_datetime(header).timestamp() if header else None
    except ValueError:
        return None


def _object(call: Call, response: httpx.Response) -> Object:
    try:
        loaded = response.json()
    except ValueError as error:
        raise NetworkError(call, f"the answer is no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise NetworkError(call, "the answer is no JSON object")
    return loaded


__all__ = ["Client", "KubeError", "ObjectList", "Observer", "selectors", "wait_seconds"]
