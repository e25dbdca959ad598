"""The driver of a disaggregated run, as far as it goes without Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http_server import FakeServer
from tandem_trainer import disaggregated
from tandem_trainer.disaggregated import (
    main,
    parse_overrides,
    parser,
    publish,
    wait_for_gym,
)
from tandem_trainer.errors import TrainerError
from tandem_trainer.vllm_server import command
from tandem_trainer.worker import GymWorker, WorkerSettings

JOB = "+env.disagg_job_id=run-1"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("http://10.0.0.7:9090", "http://10.0.0.7:9090"),
        ("https://gym.example/team/a/", "https://gym.example/team/a"),
        ("http://[fd00::7]:9090", "http://[fd00::7]:9090"),
        ('"http://[fd00::7]:9090"', "http://[fd00::7]:9090"),
        ("'http://gym'", "http://gym"),
    ],
)
@pytest.mark.parametrize("plus", ["+", "++", ""])
def test_any_form_of_the_url_is_taken(value: str, url: str, plus: str) -> None:
    overrides = parse_overrides([f"{plus}env.remote_gym_url={value}", JOB])
    assert (overrides.gym_url, overrides.job_id) == (url, "run-1")


@pytest.mark.parametrize(
    "value", ["10.0.0.7:9090", "ftp://gym", "http://", "http://gym:port", "http://gym?x=1", "gym"]
)
def test_a_url_that_cannot_work_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        parse_overrides([f"+env.remote_gym_url={value}", JOB])


def test_every_fault_of_the_overrides_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="no override") as caught:
        parse_overrides(["word", "+policy.rate=1", "+env.remote_gym_url=gym"])
    text = str(caught.value)
    assert "'policy.rate' is not known" in text
    assert "+env.disagg_job_id= is missing" in text
    assert "'gym' is no URL" in text


@pytest.mark.parametrize(
    "words",
    [
        ["--output", "x"],
        ["--output", "x", JOB, "+env.remote_gym_url=gym"],
        ["--output", "x", JOB, "+env.remote_gym_url=http://gym", "--steps", "1"],
    ],
)
def test_bad_usage_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help_has_examples_overrides_and_exit_codes() -> None:
    text = parser().format_help()
    assert "examples:" in text
    assert "+env.remote_gym_url=URL" in text
    assert "exit codes: 0" in text


def test_urls_appear_whole_and_replace_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "urls.json"
    file.write_text("old")
    publish(["http://10.0.0.1:8000"], file)
    assert json.loads(file.read_text()) == ["http://10.0.0.1:8000"]
    assert [path.name for path in tmp_path.iterdir()] == ["urls.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"no-folder/urls\.json \(TANDEM_VLLM_URLS_FILE\)"):
        publish([], tmp_path / "no-folder" / "urls.json")


def test_gym_is_waited_for_while_it_starts(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disaggregated, "POLL_SECONDS", 0.01)
    states = iter([503, 404, 200])
    checks: list[int] = []
    server.answer = lambda _m, _p: (next(states), b"{}")
    wait_for_gym(server.api.base_url, 30.0, lambda: checks.append(1))
    assert [path for _, path, _ in server.asked] == ["/readyz"] * 3
    assert len(checks) == 2


@pytest.mark.parametrize(("status", "shown"), [(503, "HTTP 503"), (None, "no answer")])
def test_a_gym_that_is_not_ready_in_time_is_named(
    server: FakeServer, status: int | None, shown: str
) -> None:
    url = server.api.base_url
    if status is None:
        url = "http://127.0.0.1:9"
    server.answer = lambda _m, _p: (status or 200, b"{}")
    with pytest.raises(TrainerError, match=rf"the Gym side was not ready within 0 s: .*{shown}"):
        wait_for_gym(url, 0.0, lambda: None)


def test_the_wait_for_gym_ends_with_our_own_vllm(server: FakeServer) -> None:
    server.answer = lambda _m, _p: (503, b"{}")

    def dead() -> None:
        raise TrainerError("vLLM was ended by signal 9")

    with pytest.raises(TrainerError, match="signal 9"):
        wait_for_gym(server.api.base_url, 30.0, dead)


def test_a_vllm_that_others_reach_has_the_gate_and_a_name_that_gym_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    worker = GymWorker(
        WorkerSettings(
            model=tmp_path, seed=0, served_name="policy", public=True, scratch=tmp_path, port=8123
        )
    )
    try:
        assert worker._server.settings.name == "policy"
        assert worker._server.settings.host == "0.0.0.0"  # noqa: S104
        # Through another address than loopback the gate would refuse our own refits.
        assert worker._server.url == "http://127.0.0.1:8123"
        assert worker.command()[-2:] == ["--middleware", "tandem_trainer.gate.PublicRoutes"]
    finally:
        worker.stop()


def test_a_vllm_for_its_own_pod_listens_on_loopback(tmp_path: Path) -> None:
    worker = GymWorker(WorkerSettings(model=tmp_path, seed=0, scratch=tmp_path))
    try:
        assert worker._server.settings.host == "127.0.0.1"
        assert worker.command() == command(worker._server.settings)
    finally:
        worker.stop()


def test_no_step_before_gym_is_connected(tmp_path: Path) -> None:
    worker = GymWorker(WorkerSettings(model=tmp_path, seed=0, scratch=tmp_path))
    try:
        with pytest.raises(TrainerError, match="was not started"):
            worker.step(1)
    finally:
        worker.stop()
