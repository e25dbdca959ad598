"""The command line of the driver, as far as it goes without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_trainer.colocated import main, parser
from tandem_trainer.errors import PreconditionError
from tandem_trainer.worker import ColocatedWorker, WorkerSettings


@pytest.mark.parametrize(
    "words", [[], ["--output", "x", "--steps", "0"], ["--output", "x", "--steps", "1"]]
)
def test_bad_usage_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--steps", "many", "a whole number above 0, such as 24"),
        ("--steps", "-3", "a whole number above 0, such as 24"),
        ("--port", "http", "a whole number above 0, such as 24"),
        ("--seed", "1.5", "a whole number, such as 7"),
        ("--rate", "fast", "a number above 0, such as 0.5"),
        ("--rate", "nan", "a number above 0, such as 0.5"),
        ("--min-gain", "-1", "a number above 0, such as 0.5"),
        ("--vllm-timeout", "0", "a number above 0, such as 0.5"),
    ],
)
def test_a_wrong_number_is_named_with_its_limit_and_an_example(
    option: str, value: str, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--output", "x", f"{option}={value}"])
    assert caught.value.code == 2
    assert f"argument {option}: {value!r} is not {limit}" in capsys.readouterr().err


def test_help_has_examples_and_exit_codes() -> None:
    text = parser().format_help()
    assert "examples:" in text
    assert "exit codes: 0" in text


def test_a_model_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    worker = ColocatedWorker(WorkerSettings(model=tmp_path, seed=0, scratch=tmp_path))
    with pytest.raises(PreconditionError, match="no model in"):
        worker.start()
    worker.stop()
    assert list(tmp_path.iterdir()) == []
