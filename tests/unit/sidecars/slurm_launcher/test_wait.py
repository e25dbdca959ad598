"""The gate of a training that starts while its pools load."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from slurm_launcher import wait
from tandem_common.errors import ExitCode, UserError


class FakeBalancer:
    """Is ready after so many questions."""

    def __init__(self) -> None:
        self.after = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ready = outer.after <= 0
                outer.after -= 1
                body = json.dumps({"ready": ready, "reasons": ["0 in rotation, 1 needed"]}).encode()
                self.send_response(200 if ready else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()


@pytest.fixture
def balancer() -> Iterator[FakeBalancer]:
    made = FakeBalancer()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def test_it_returns_when_all_are_ready(balancer: FakeBalancer) -> None:
    balancer.after = 2
    wait.wait({wait.POOLS: json.dumps({"A": balancer.url})}, 30)
    assert balancer.after < 0


def test_who_is_not_ready_in_time_is_named_with_the_reason(balancer: FakeBalancer) -> None:
    balancer.after = 10_000
    told = {"A": balancer.url, "B": "http://127.0.0.1:1"}
    with pytest.raises(UserError) as error:
        wait.wait({wait.POOLS: json.dumps(told)}, 0.6)
    assert error.value.code == ExitCode.TIMEOUT
    assert "0 in rotation, 1 needed" in str(error.value)
    assert "pool B" in str(error.value)


@pytest.mark.parametrize("environment", [{}, {"TANDEM_POOLS": "x"}, {"TANDEM_POOLS": "[]"}])
def test_outside_of_a_training_it_says_so(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match="does not tell the pools"):
        wait.wait(environment, 1)
