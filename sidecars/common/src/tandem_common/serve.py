"""One small HTTP server for /healthz, /readyz and /metrics.

Threads of the standard library and prometheus_client: no event loop, no framework, some
hundred kilobytes. Checks are callables that are asked at each request.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from tandem_common.errors import ExitCode, Problem, UserError

#: A client that sends nothing must not hold a thread for ever.
_CLIENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """Answer of a check: whether all is well, and every reason why not."""

    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons


Check = Callable[[], Health]


def always_ok() -> Health:
    """Return health without a reason: for programs that live as long as they answer."""
    return Health()


def ask(check: Check) -> Health:
    """Return what a check says; one that raises counts as a reason."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the answer must be "not healthy", not a reset
        return Health((f"the check itself failed: {type(error).__name__}: {error}",))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Probes come in bursts when a node has been busy.
    request_queue_size = 32

    def handle_error(self, *_: Any) -> None:
        """Say nothing: a client that went away is no event."""


class HealthServer:
    """The server; it answers from `start` to `close`.

    Attributes:
        port: The port it listens on (useful when 0 was asked for); 0 until `start`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        live: Check = always_ok,
        ready: Check = always_ok,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Take what to serve.

        Args:
            host: Address to listen on: 127.0.0.1, or 0.0.0.0 for the kubelet's probes.
            port: Port to listen on; 0 for any.
            live: Asked by /healthz; not healthy means: restart me.
            ready: Asked by /readyz; not healthy means: do not count on me yet.
            registry: Metrics that /metrics shows.
        """
        self._address = (host, port)
        self._checks = {"/healthz": live, "/readyz": ready}
        self._registry = registry
        self._server: _Server | None = None
        self.port = 0

    def start(self) -> Self:
        """Listen, and answer in a thread.

        Raises:
            UserError: The address cannot be listened on.
        """
        host, port = self._address
        try:
            self._server = _Server((host, port), self._handler())
        except (OSError, OverflowError) as error:
            raise UserError(
                Problem(
                    f"cannot listen on {host}:{port}: {error}",
                    "choose another port or address; 127.0.0.1 and 0.0.0.0 always exist",
                ),
                ExitCode.PRECONDITION,
            ) from None
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 60},
            name="health-server",
            daemon=True,
        ).start()
        return self

    def close(self) -> None:
        """Stop listening; no effect when it never began."""
        if self._server is None:
            return
        server, self._server = self._server, None
        # serve_forever looks at its stop flag only every poll_interval or after a request:
        # the long interval keeps an idle process asleep, the connection wakes it.
        closer = threading.Thread(target=server.shutdown, daemon=True)
        closer.start()
        try:
            family = server.address_family
            host = "127.0.0.1" if self._address[0] in ("0.0.0.0", "") else self._address[0]  # noqa: S104
            with socket.socket(family) as poke:
                poke.settimeout(1)
                poke.connect((host, self.port))
        except OSError:
            pass  # it does not listen any more
        closer.join(timeout=5)
        server.server_close()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        checks, registry = self._checks, self._registry

        class Handler(BaseHTTPRequestHandler):
            timeout = _CLIENT_SECONDS
            server_version = "tandem"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.split("?", 1)[0]
                if path == "/metrics":
                    self._answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif path in checks:
                    health = ask(checks[path])
                    status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
                    body = {"ok": health.ok, "reasons": health.reasons}
                    self._answer(status, "application/json", json.dumps(body).encode() + b"\n")
                else:
                    known = ", ".join([*checks, "/metrics"])
                    body_text = f"no such path; there are {known}\n".encode()
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", body_text)

            do_HEAD = do_GET  # noqa: N815 - named by the base class

            def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing: probes come every few seconds."""

        return Handler
