"""Ask components whether they work, and the API server whatever else is to be known.

Plain `http.client`: the Kubernetes client library takes longer to import than a whole
`cluster-status` may last.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tandem_host.components import HttpProbe, Probe
from tandem_host.layout import Layout
from tandem_host.settings import Settings

_OK = 200
_NOT_FOUND = 404
_FIRST_ERROR = 400


class ApiError(Exception):
    """The API server refused a request; carries the status code."""

    def __init__(self, status: int, message: str) -> None:
        """Take the HTTP status and the server's words."""
        self.status = status
        super().__init__(f"{status}: {message}")


def healthy(probe: Probe, layout: Layout, *, timeout: float = 1.0) -> bool:
    """Return whether a component answers its probe within the timeout."""
    if not isinstance(probe, HttpProbe):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            try:
                client.connect(str(probe.path))
            except OSError:
                return False
            return True
    parts = urlsplit(probe.url)
    try:
        with _connection(probe, layout, timeout) as connection:
            connection.request("GET", parts.path)
            return connection.getresponse().status == _OK
    except (OSError, http.client.HTTPException):
        return False


class Api:
    """The API server as `admin`; every call opens a connection of its own."""

    def __init__(self, settings: Settings, *, timeout: float = 5.0) -> None:
        """Talk to the API server of a cluster with a deadline for each call."""
        self._probe = HttpProbe(settings.api_url, Layout(settings.state).cert("ca"), "admin")
        self._layout = Layout(settings.state)
        self._timeout = timeout

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        """Send one request and return the parsed answer.

        Raises:
            ApiError: The server refused.
            OSError: It could not be reached.
        """
        with _connection(self._probe, self._layout, self._timeout) as connection:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": content_type, "Accept": accept}
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        if response.status >= _FIRST_ERROR:
            raise ApiError(response.status, text[:500])
        return json.loads(text) if text.startswith(("{", "[")) else text

    def get(self, path: str) -> Any:
        """Return an object, or None when there is none."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def merge(self, path: str, body: Any) -> Any:
        """Change some fields of an object (JSON merge patch)."""
        return self.call("PATCH", path, body, content_type="application/merge-patch+json")

    def apply(self, path: str, body: Any) -> Any:
        """Create or change an object by server-side apply; ours wins over other managers."""
        return self.call(
            "PATCH",
            f"{path}?fieldManager=tandem-host&force=true",
            body,
            content_type="application/apply-patch+yaml",
        )

    def watch(self, path: str, seconds: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it."""
        with _connection(self._probe, self._layout, seconds + self._timeout) as connection:
            connection.request("GET", f"{path}&watch=1&timeoutSeconds={seconds}")
            response = connection.getresponse()
            if response.status >= _FIRST_ERROR:
                raise ApiError(response.status, response.read().decode()[:500])
            for line in response:
                yield json.loads(line)


@contextmanager
def _connection(
    probe: HttpProbe, layout: Layout, timeout: float
) -> Iterator[http.client.HTTPConnection]:
    parts = urlsplit(probe.url)
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if probe.authority is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    else:
        context = _context(layout, probe.authority, probe.client, _stamp(layout, probe))
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        yield connection
    finally:
        connection.close()


def _stamp(layout: Layout, probe: HttpProbe) -> int:
    """Return a number that changes when the certificates do: a cached context is stale then."""
    path = layout.cert(probe.client) if probe.client else probe.authority
    return path.stat().st_mtime_ns if path and path.exists() else 0


@lru_cache(maxsize=8)
def _context(layout: Layout, authority: Path, client: str | None, _stamp: int) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    if client:
        context.load_cert_chain(layout.cert(client), layout.key(client))
    return context
