"""An HTTP server that answers with what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tandem_trainer.http_api import JsonApi

Answer = tuple[int, bytes]


class QuietServer(ThreadingHTTPServer):
    """Says nothing when a client has given up before the answer: some tests are about that."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class FakeServer:
    """Answers with what a test says and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answer: Callable[[str, str], Answer] = lambda _method, _path: (200, b"{}")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, json.loads(body) if body else None))
                status, content = outer.answer(self.command, self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _handle  # noqa: N815 - the names that http.server calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.api = JsonApi(f"http://127.0.0.1:{self._server.server_port}", timeout=5)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
