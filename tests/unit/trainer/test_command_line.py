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
