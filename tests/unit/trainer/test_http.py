"""Sampling and refit against a server that misbehaves in ways a real vLLM cannot be made to.

The server here is a stand-in for those faults only; the real vLLM is driven by the run of the
image (tests/e2e).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.http_server import Answer, FakeServer
from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.refit import RefitClient
from tandem_trainer.rewards import TokenClassReward
from tandem_trainer.vllm_source import VllmSource, parse_completions

REWARD = TokenClassReward(frozenset({7}))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def _choice(index: int, **changes: object) -> dict[str, Any]:
    return {
        "index": index, "token_ids": [7, 8], "logprobs": {"token_logprobs": [-1.0, -2.0]}, **changes
    }  # fmt: skip


def test_choices_are_grouped_by_prompt_whatever_their_order() -> None:
    answer = {"choices": [_choice(i) for i in (3, 0, 2, 1)]}
    rollouts = parse_completions(answer, [[1], [2, 3]], 2, REWARD)
    assert [(r.group, r.prompt) for r in rollouts] == [
        (1, (2, 3)), (0, (1,)), (1, (2, 3)), (0, (1,)),
    ]  # fmt: skip
    assert {r.reward for r in rollouts} == {0.5}
    assert rollouts[0].logprobs == (-1.0, -2.0)


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [_choice(0)],
        [_choice(0), _choice(1, token_ids=None)],
        [_choice(0), _choice(1, logprobs=None)],
        [_choice(0), _choice(1, token_ids=[7])],
    ],
)
def test_an_answer_with_less_than_was_asked_for_is_an_error(choices: list[Any]) -> None:
    with pytest.raises(TrainerError, match="vLLM gave"):
        parse_completions({"choices": choices}, [[1]], 2, REWARD)


def test_sampling_asks_for_the_policys_own_distribution_and_another_seed_each_step(
    server: FakeServer,
) -> None:
    server.answer = lambda _m, _p: (200, json.dumps({"choices": [_choice(0)]}).encode())
    source = VllmSource(
        server.api, model="m", prompts=[[1]], reward=REWARD, samples=1, tokens=2, seed=5
    )
    source.collect(1)
    source.collect(2)
    first, second = (body for _, _, body in server.asked)
    assert (first["temperature"], first["top_p"], first["top_k"]) == (1.0, 1.0, -1)
    assert first["return_token_ids"] is True
    assert first["seed"] != second["seed"]


def test_refit_pauses_loads_forgets_cached_prefixes_names_the_version_and_resumes(
    server: FakeServer,
) -> None:
    server.answer = lambda _m, path: (
        200, b'{"weight_version": "step-3"}' if path == "/weight_info" else b"",
    )  # fmt: skip
    assert RefitClient(server.api).apply(Path("/w/step-3"), "step-3") == "step-3"
    assert [path for _, path, _ in server.asked] == [
        "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume",
        "/weight_info",
    ]  # fmt: skip
    assert server.asked[1][2] == {
        "method": "reload_weights", "kwargs": {"weights_path": "/w/step-3"},
    }  # fmt: skip


def test_weights_that_did_not_load_are_never_resumed(server: FakeServer) -> None:
    server.answer = lambda _m, path: (500 if path == "/collective_rpc" else 200, b"{}")
    with pytest.raises(TrainerError, match="/collective_rpc: HTTP 500"):
        RefitClient(server.api).apply(Path("/w"), "step-1")
    assert "/resume" not in [path for _, path, _ in server.asked]


def test_a_server_that_reports_another_version_is_an_error(server: FakeServer) -> None:
    server.answer = lambda _m, _p: (200, b'{"weight_version": "step-1"}')
    with pytest.raises(TrainerError, match="serves weights 'step-1' after a refit to 'step-2'"):
        RefitClient(server.api).apply(Path("/w"), "step-2")


def test_an_error_names_url_status_and_what_the_server_said(server: FakeServer) -> None:
    server.answer = lambda _m, _p: (404, b"no such route")
    with pytest.raises(TrainerError, match=r"GET http://127\.0\.0\.1:\d+/x: HTTP 404: no such"):
        server.api.get("/x")
    server.answer = lambda _m, _p: (200, b"<html>")
    with pytest.raises(TrainerError, match="not JSON: <html>"):
        server.api.get("/x")


def test_a_server_that_does_not_answer_is_given_up_after_the_deadline(server: FakeServer) -> None:
    waiting = threading.Event()

    def late(_method: str, _path: str) -> Answer:
        waiting.wait(5)
        return 200, b"{}"

    server.answer = late
    api = JsonApi(server.api.base_url, timeout=0.2)
    try:
        with pytest.raises(TrainerError, match="timed out"):
            api.get("/slow")
    finally:
        waiting.set()


def test_nobody_listening_is_an_error_and_no_trace() -> None:
    with pytest.raises(TrainerError, match="refused"):
        JsonApi("http://127.0.0.1:9", timeout=1).get("/health")
