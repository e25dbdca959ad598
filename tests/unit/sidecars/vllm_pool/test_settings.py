"""The settings of a balancer: all that is wrong at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_common.errors import ExitCode, UserError
from vllm_pool.settings import ClientSettings, PoolSettings


def test_all_that_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LISTEN_HOST": "judge", "LISTEN_PORT": "0", "MIN_READY": "-1", "RUN_DIR": "/" + "x" * 100,
        "CANARY_SECONDS": "nan", "NAMESPACE": "ns", "MAX_BODY_MIB": "9999", "MIN_REDY": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"VLLM_POOL_{name}", value)
    with pytest.raises(UserError) as told:
        PoolSettings.load({})
    assert told.value.code == ExitCode.USAGE
    text = str(told.value)
    for part in (
        "VLLM_POOL_LISTEN_HOST='judge'", "VLLM_POOL_LISTEN_PORT='0'", "VLLM_POOL_MIN_READY='-1'",
        "VLLM_POOL_RUN_DIR", "VLLM_POOL_CANARY_SECONDS='nan'", "without VLLM_POOL_SLICES",
        "VLLM_POOL_MAX_BODY_MIB='9999'", "did you mean VLLM_POOL_MIN_READY",
    ):  # fmt: skip
        assert part in text


def test_the_variables_of_an_agent_beside_it_are_none_of_its_business(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_POOL_REPLICA_ID", "judge-0")
    PoolSettings.load({})
    ClientSettings.load({})


def test_a_persons_command_in_the_balancers_container_sees_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_POOL_LISTEN_PORT", "8000")
    assert ClientSettings.load({}).url == "http://127.0.0.1:8000"


def test_one_port_for_two_things_is_refused() -> None:
    with pytest.raises(UserError, match="the port of the pool itself"):
        PoolSettings.load({"listen_port": "9", "metrics_port": "9"})


@pytest.mark.parametrize("text", ["", "two words", "ümlaut", "a\nb"])
def test_a_token_is_one_word(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(UserError, match="it holds no token") as told:
        PoolSettings.load({"token_file": str(path)}).plane()
    assert text == "" or text not in str(told.value)


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such"):
        PoolSettings.load({"token_file": str(tmp_path / "no-such")}).plane()


def test_the_token_is_read_without_the_lines_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("word\n")
    assert PoolSettings.load({"token_file": str(path)}).plane().token == "word"  # noqa: S105
