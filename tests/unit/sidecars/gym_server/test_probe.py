from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gym_server import probe
from gym_server.probe import Probe, Probed, Verdict
from gym_server.urls import parse

SECONDS = 20.0
#: What a server answers, by method and path: a status and a body.
Answers = dict[tuple[str, str], tuple[int, Any]]

MODELS = {"object": "list", "data": [{"id": "policy"}, {"id": "other"}]}
DONE = {"choices": [{"text": "x"}]}
NO_ROUTE = {"detail": "Not Found"}


class FakeServer:
    """Answers as it is told: no engine can be made to fail in all of these ways."""

    def __init__(self) -> None:
        self.answers: Answers = {}
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

            do_GET = _answer  # noqa: N815
            do_POST = _answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def look(server: FakeServer, answers: Answers, model: str = "policy", key: str = "") -> Verdict:
    server.answers = answers
    return probe.vllm(model, key)(f"{server.url}/v1")


def test_a_completion_of_the_model_means_ready(server: FakeServer) -> None:
    verdict = look(
        server, {("GET", "/v1/models"): (200, MODELS), ("POST", "/v1/completions"): (200, DONE)},
        key="secret",
    )  # fmt: skip
    assert verdict.ready
    method, path, body, key = server.seen[-1]
    assert (method, path) == ("POST", "/v1/completions")
    assert body["model"] == "policy"
    assert body["max_tokens"] == 1
    assert key == "Bearer secret"


def test_without_a_name_the_first_model_is_asked(server: FakeServer) -> None:
    answers: Answers = {
        ("GET", "/v1/models"): (200, MODELS), ("POST", "/v1/completions"): (200, DONE)
    }  # fmt: skip
    assert look(server, answers, model="").ready
    assert server.seen[-1][2]["model"] == "policy"


@pytest.mark.parametrize(
    ("answers", "reason", "final"),
    [
        # What /health says is not asked: it is 200 in all of these.
        ({("GET", "/v1/models"): (200, MODELS)}, "/completions: HTTP 404", False),
        (
            {("GET", "/v1/models"): (200, MODELS), ("POST", "/v1/completions"): (500, "dead")},
            "/completions: HTTP 500: dead",
            False,
        ),
        (
            {
                ("GET", "/v1/models"): (200, MODELS),
                ("POST", "/v1/completions"): (200, {"choices": []}),
            },
            "/completions: HTTP 200",
            False,
        ),
        ({("GET", "/v1/models"): (503, "starting")}, "/models: HTTP 503: starting", False),
        ({("GET", "/v1/models"): (200, "<html>")}, "/models: HTTP 200: <html>", False),
        ({("GET", "/v1/models"): (200, {"data": []})}, "/models: HTTP 200", False),
        ({("GET", "/v1/models"): (401, "who?")}, "it asks for a key", True),
        (
            {("GET", "/v1/models"): (200, {"data": [{"id": "a"}, {"id": "b"}]})},
            "it serves a, b, not 'policy'",
            True,
        ),
        # Something listens there that knows neither path.
        ({}, "neither /models nor /tokenize: HTTP 404", False),
        ({("POST", "/tokenize"): (500, "dead")}, "neither /models nor /tokenize", False),
    ],
)
def test_everything_else_is_not_ready_and_says_why(
    server: FakeServer, answers: Answers, reason: str, *, final: bool
) -> None:
    verdict = look(server, answers)
    assert not verdict.ready
    assert reason in verdict.reason
    assert verdict.final == final


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"tokens": [1]}),
        (400, {"error": {"message": "no"}}),
        (404, {"error": {"message": "The model `policy` does not exist."}}),
    ],
)
def test_a_server_without_models_is_asked_for_tokens(
    server: FakeServer, answer: tuple[int, Any]
) -> None:
    # NeMo RL's own: a completion with other sampling values than the training's is a 500.
    assert look(server, {("POST", "/tokenize"): answer}).ready


def test_nobody_there_is_not_ready() -> None:
    server = FakeServer()
    server.close()
    verdict = look(server, {})
    assert not verdict.ready
    assert "ConnectError" in verdict.reason


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_the_gym_head_is_ready_when_it_says_so(
    server: FakeServer, status: int, *, ready: bool
) -> None:
    server.answers = {("GET", "/gym/readyz"): (status, {"status": "x"})}
    assert probe.gym_head()(f"{server.url}/gym/").ready == ready


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1/v1"),
        ("http://a:1/v1", "http://a:1/v1"),
        ("http://a:1/policy/v1/", "http://a:1/policy/v1"),
    ],
)
def test_an_address_without_a_path_means_the_openai_routes(url: str, base: str) -> None:
    assert probe.base(parse(url)) == base


def rounds(answers: Mapping[str, list[Verdict]]) -> Callable[[str], Verdict]:
    left = {url: list(verdicts) for url, verdicts in answers.items()}
    return lambda url: left[url].pop(0)


READY, NOT_YET = Verdict(ready=True), Verdict(reason="starting")


def test_every_server_must_answer_and_none_is_asked_again() -> None:
    told: queue.Queue[Probed] = queue.Queue()
    look_at = rounds({"a": [READY], "b": [NOT_YET, NOT_YET, READY]})
    asking = Probe(["a", "b"], look_at, told.put, period=0.001).start()
    assert told.get(timeout=SECONDS) == Probed(("a", "b"))
    assert asking.last == "b: starting"


def test_a_final_no_ends_it() -> None:
    told: queue.Queue[Probed] = queue.Queue()
    no = Verdict(reason="it serves x, not y", final=True)
    Probe(["a", "b"], rounds({"a": [READY], "b": [no]}), told.put).start()
    assert told.get(timeout=SECONDS) == Probed(("a", "b"), "b: it serves x, not y")


def test_a_stopped_probe_tells_nothing() -> None:
    told: list[Probed] = []
    stopped, go = threading.Event(), threading.Event()

    def look_at(_url: str) -> Verdict:
        go.wait(SECONDS)
        stopped.set()
        return READY

    asking = Probe(["a"], look_at, told.append).start()
    asking.stop()
    go.set()
    assert stopped.wait(SECONDS)
    for thread in threading.enumerate():
        if thread.name == "probe":
            thread.join(SECONDS)
    assert told == []
