import pytest

from tandem_trainer.errors import TrainerError
from tandem_trainer.job import say_error


def test_the_cause_is_the_last_line_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(TrainerError("vLLM ended: its engine is dead\nline of a log\n…"))
    assert capsys.readouterr().err.splitlines() == [
        "line of a log",
        "…",
        "error: vLLM ended: its engine is dead",
    ]


def test_an_error_of_one_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(TrainerError("no node offered a GPU"))
    assert capsys.readouterr().err == "error: no node offered a GPU\n"
