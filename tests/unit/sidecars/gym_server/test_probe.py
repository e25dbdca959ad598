from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gym_server import probe
from gym_server.probe import Probe, Probed, Verdict
from gym_server.urls import parse
from support.fake_vllm import DONE, MODELS, Answers, FakeVllm

SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    made = FakeVllm()
    yield made
    made.close()


def look(server: FakeVllm, answers: Answers, model: str = "policy", key: str = "") -> Verdict:
    server.answers = answers
    return probe.vllm(model, key)(f"{server.url}/v1")


def test_a_completion_of_the_model_means_ready(server: FakeVllm) -> None:
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


def test_without_a_name_the_first_model_is_asked(server: FakeVllm) -> None:
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
    server: FakeVllm, answers: Answers, reason: str, *, final: bool
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
    server: FakeVllm, answer: tuple[int, Any]
) -> None:
    # NeMo RL's own: a completion with other sampling values than the training's is a 500.
    assert look(server, {("POST", "/tokenize"): answer}).ready


def test_nobody_there_is_not_ready() -> None:
    server = FakeVllm()
    server.close()
    verdict = look(server, {})
    assert not verdict.ready
    assert "ConnectError" in verdict.reason


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_the_gym_head_is_ready_when_it_says_so(
    server: FakeVllm, status: int, *, ready: bool
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
