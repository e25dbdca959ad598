"""Rollouts through Gym, against a server that misbehaves as a real Gym cannot be made to.

The real Gym is driven by the run of the images (tests/e2e).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.http_server import Answer, FakeServer
from tandem_trainer import gym_source
from tandem_trainer.errors import TrainerError
from tandem_trainer.gym_source import GymSource, environment_url, parse_answer, read_config


def _config(**settings: Any) -> dict[str, Any]:
    return {
        "policy_base_url": ["http://10.0.0.1:8000/v1"],
        "thing": {"resources_servers": {"thing": {"entrypoint": "app.py"}}},
        "thing_agent": {"responses_api_agents": {"simple_agent": {"host": "h", "port": 1}}},
        "thing_environment": {
            "environment_servers": {
                "legacy_agent": {"agent_server": {"name": "thing_agent"}, **settings}
            }
        },
    }


def _item(**changes: Any) -> dict[str, Any]:
    return {
        "type": "message", "prompt_token_ids": [1, 2], "generation_token_ids": [7, 8],
        "generation_log_probs": [-1.0, -2.0], **changes,
    }  # fmt: skip


def _run(*items: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"reward": 0.5, "response": {"output": list(items or (_item(),))}, **changes}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def _serve(server: FakeServer, run: Answer | None = None) -> None:
    host, _, port = server.api.base_url.removeprefix("http://").partition(":")
    # As Gym's head sends it: YAML in a JSON string.
    config = json.dumps(json.dumps(_config(host=host, port=int(port)))).encode()
    answer = run or (200, json.dumps(_run()).encode())
    server.answer = lambda _m, path: (200, config) if "global" in path else answer


def _source(server: FakeServer, check: Any = lambda: None, **changes: Any) -> GymSource:
    values: dict[str, Any] = {
        "agent": "thing_agent", "prompts": ["one", "two"], "samples": 2, "tokens": 4, "seed": 3,
        "seconds": 5.0, "check": check,
    }  # fmt: skip
    return GymSource(server.api, **(values | changes))


def test_the_environment_server_is_the_one_in_front_of_the_agent() -> None:
    assert environment_url(_config(host="10.0.0.2", port=15007), "thing_agent") == (
        "http://10.0.0.2:15007"
    )
    assert environment_url(_config(host="fd00::2", port=1), "thing_agent") == "http://[fd00::2]:1"


def test_an_agent_that_gym_does_not_serve_is_named_with_those_it_does() -> None:
    with pytest.raises(TrainerError, match="no agent 'other'; it serves: thing_agent"):
        environment_url(_config(host="h", port=1), "other")
    with pytest.raises(TrainerError, match="it serves: none"):
        environment_url({"policy": "x"}, "other")


@pytest.mark.parametrize("body", [b'"a: ["', b'"text"', b"{}", b"null"])
def test_a_head_that_sends_no_configuration_is_named(server: FakeServer, body: bytes) -> None:
    server.answer = lambda _m, _p: (200, body)
    with pytest.raises(TrainerError, match=r"Gym's head http://127\.0\.0\.1:\d+ sent no"):
        read_config(server.api)


def test_each_call_to_the_model_is_a_rollout_with_the_reward_of_the_whole() -> None:
    tool = {"type": "function_call_output", "output": "x"}
    first, second = parse_answer(_run(_item(), tool, _item(prompt_token_ids=[1, 2, 7])), 4)
    assert (first.group, first.prompt, first.tokens) == (4, (1, 2), (7, 8))
    assert second.prompt == (1, 2, 7)
    assert first.logprobs == (-1.0, -2.0)
    assert (first.reward, second.reward) == (0.5, 0.5)


def test_a_sample_that_was_not_measured_validly_teaches_nothing() -> None:
    assert parse_answer(_run(mask_sample=True, reward=0.0), 0) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_run(reward=None), "reward None"),
        (_run(reward=float("nan")), "reward nan"),
        (_run(reward=True), "reward True"),
        (_run(_item(generation_log_probs=[-1.0])), "2 of its answer and 1 log-prob"),
        (_run(_item(prompt_token_ids=None)), "0 token ids of a prompt"),
        (_run(_item(generation_token_ids=[])), "0 of its answer"),
        (_run({"type": "message"}, failure_reason="the judge slept"), "the judge slept"),
        (_run(response=None), "no token ids"),
        ([], "list, not an object"),
    ],
)
def test_an_answer_with_less_than_training_needs_is_an_error(answer: Any, message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        parse_answer(answer, 0)


def test_a_batch_is_grouped_by_prompt_and_asks_for_the_policys_own_distribution(
    server: FakeServer,
) -> None:
    _serve(server)
    rollouts = _source(server).collect(1)
    assert [r.group for r in rollouts] == [0, 0, 1, 1]
    bodies = sorted(
        (body for _, path, body in server.asked if path == "/run"), key=lambda b: b["_rowidx"]
    )
    assert [b["responses_create_params"]["input"][0]["content"] for b in bodies] == [
        "one", "one", "two", "two",
    ]  # fmt: skip
    assert {b["agent_ref"]["name"] for b in bodies} == {"thing_agent"}
    for body in bodies:
        params = body["responses_create_params"]
        assert (params["temperature"], params["top_p"]) == (1.0, 1.0)
        assert params["max_output_tokens"] == 4
        extra = json.loads(params["metadata"]["extra_body"])
        assert (extra["ignore_eos"], extra["top_k"]) == (True, -1)


def test_no_two_rollouts_of_a_run_share_a_seed_and_a_rerun_has_the_same(
    server: FakeServer,
) -> None:
    _serve(server)

    def seeds(source: GymSource) -> list[int]:
        return [
            json.loads(
                source.request(step, index)["responses_create_params"]["metadata"]["extra_body"]
            )["seed"]
            for step in (1, 2)
            for index in range(4)
        ]

    first = seeds(_source(server))
    assert len(set(first)) == 8
    assert seeds(_source(server)) == first
    assert not set(first) & set(seeds(_source(server, seed=4)))


def test_a_rollout_that_gym_fails_ends_the_batch_and_names_gym(server: FakeServer) -> None:
    _serve(server, (500, b"the model is away"))
    with pytest.raises(TrainerError, match=r"rollouts through Gym: .*HTTP 500: the model is away"):
        _source(server).collect(1)


def test_a_batch_of_which_nothing_was_measured_is_an_error(server: FakeServer) -> None:
    _serve(server, (200, json.dumps(_run(mask_sample=True)).encode()))
    with pytest.raises(TrainerError, match="all 4 rollouts of step 2 as not measured"):
        _source(server).collect(2)


def test_a_model_that_died_ends_the_wait_at_once(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gym asks a vLLM that is gone again and again, without an end.
    monkeypatch.setattr(gym_source, "CHECK_SECONDS", 0.05)
    _serve(server)
    configured, answered = server.answer, threading.Event()

    def hanging(method: str, path: str) -> Answer:
        if path == "/run":
            answered.wait(30)
        return configured(method, path)

    server.answer = hanging

    def dead() -> None:
        raise TrainerError("vLLM was ended by signal 9 (Killed)")

    source = _source(server, check=dead, seconds=60.0)
    try:
        with pytest.raises(TrainerError, match="vLLM was ended by signal 9"):
            source.collect(1)
    finally:
        answered.set()
