"""An HTTP server that answers as vLLM, or as vLLM never should."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a server answers, by method and path: a status and a body.
Answers = dict[tuple[str, str], tuple[int, Any]]

MODELS = {"object": "list", "data": [{"id": "policy"}, {"id": "other"}]}
DONE = {"choices": [{"text": "x"}]}
NO_ROUTE = {"detail": "Not Found"}
WELL: Answers = {
    ("GET", "/v1/models"): (200, MODELS),
    ("POST", "/v1/completions"): (200, DONE),
}


class FakeVllm:
    """Answers as it is told: no engine can be made to fail in every way at will."""

    def __init__(self) -> None:
        self.answers: Answers = dict(WELL)
        self.seen: list[tuple[str, str, Any, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                key = self.headers.get("Authorization", "")
                outer.seen.append((self.command, self.path, json.loads(raw) if raw else None, key))
                status, body = outer.answers.get((self.command, self.path), (404, NO_ROUTE))
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
