from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandem_common.errors import ExitCode, UserError
from vllm_pool.core.evidence import OUT, tokens
from vllm_pool.replica.decide import Answer, Reply
from vllm_pool.replica.link import addresses, own_address, read_answer, read_state
from vllm_pool.replica.program import main
from vllm_pool.replica.settings import ReplicaSettings

MINIMAL = {"id": "judge-0", "manager": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("status", "body", "reply"),
    [
        (200, {"id": "a", "state": "ready"}, Reply.DONE),
        (204, None, Reply.DONE),
        (404, {}, Reply.UNKNOWN),
        (409, {"epoch": 7}, Reply.CONFLICT),
        (401, None, Reply.REFUSED),
        (422, None, Reply.REFUSED),
        (429, None, Reply.FAILING),
        (503, "upstream", Reply.FAILING),
    ],
)
def test_what_a_status_means(status: int, body: object, reply: Reply) -> None:
    assert read_answer(status, body, "a").reply is reply


def test_the_epoch_of_a_conflict_is_read() -> None:
    assert read_answer(409, {"epoch": 7}, "a").epoch == 7
    assert read_answer(409, {"epoch": "7"}, "a").epoch == 0
    assert read_answer(409, None, "a").epoch == 0


def test_the_state_is_read_from_the_health_of_a_pool_also_when_nobody_is_in_rotation() -> None:
    body = {"backends": [{"id": "b", "state": "ready"}, {"id": "a", "state": "drained"}]}
    assert read_state(503, body, "a") == Answer(Reply.DONE, state="drained")
    assert read_state(200, body, "c").reply is Reply.UNKNOWN
    assert read_state(503, "no healthy upstream", "a").reply is Reply.FAILING


def test_tokens_are_summed_over_the_engines() -> None:
    text = (
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 12.0\n'
        'vllm:generation_tokens_total{engine="1",model_name="m"} 1e+02\n'
        'vllm:prompt_tokens_total{engine="0"} 5.0\n'
    )
    assert tokens(text, OUT) == 112
    assert tokens("vllm:prompt_tokens_total 5.0\n", OUT) is None


def test_an_address_stands_for_itself_and_a_name_for_every_address_of_it() -> None:
    assert asyncio.run(addresses("http://localhost:8000")) == ["http://localhost:8000"]
    assert "http://127.0.0.1:8000" in asyncio.run(addresses("dns+http://localhost:8000"))
    assert asyncio.run(addresses("dns+http://127.0.0.1:8000")) == ["http://127.0.0.1:8000"]


def test_the_own_address_is_the_one_on_the_way_to_the_manager() -> None:
    assert own_address("http://127.0.0.1:8000") == "127.0.0.1"


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        ReplicaSettings.load(
            {
                "id": "a b", "manager": "10.0.0.5:8000", "target": "127.0.0.1", "fail_after": "0",
                "request_seconds": "9", "lease_seconds": "3",
            }
        )  # fmt: skip
    text = str(caught.value)
    assert caught.value.code is ExitCode.USAGE
    for each in ("--id", "--manager", "--target", "--fail-after", "REQUEST_SECONDS=9"):
        assert each in text


@pytest.mark.parametrize("manager", ["", "http://a:1,http://a:1", "http://a:1 ftp://b:2"])
def test_managers_are_addresses_each_given_once(manager: str) -> None:
    with pytest.raises(UserError, match="--manager"):
        ReplicaSettings.load({**MINIMAL, "manager": manager})


def test_several_managers_are_taken() -> None:
    settings = ReplicaSettings.load({**MINIMAL, "manager": "http://a:1/, dns+http://b:2"})
    assert settings.manager == ("http://a:1", "dns+http://b:2")
    assert settings.token_file is None


@pytest.mark.parametrize("rest", [[], ["--"]])
def test_without_a_command_and_an_address_there_is_nothing_to_do(rest: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        main(["--id", "a", "--manager", "http://a:1", *rest])
    assert caught.value.code is ExitCode.USAGE


def test_the_token_file_is_a_path() -> None:
    settings = ReplicaSettings.load({**MINIMAL, "token_file": "/run/token"})
    assert settings.token_file == Path("/run/token")
