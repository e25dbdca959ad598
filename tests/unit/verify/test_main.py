"""All that has drifted is said at once, and what cannot be checked hides none of it."""

from __future__ import annotations

import sys

import pytest

from tandem.errors import ExitCode, Problem, UserError
from tandem.verify import __main__ as program


def drifted() -> list[Problem]:
    return [Problem("a pin differs", "change it")]


def hindered() -> list[Problem]:
    raise UserError(Problem("helmfile is missing", "make tools"))


def clean() -> list[Problem]:
    return []


@pytest.mark.parametrize(
    ("checks", "words", "code", "said"),
    [
        ({"a": hindered, "b": drifted}, [], ExitCode.FAILURE, {"a pin differs", "is missing"}),
        ({"a": hindered, "b": clean}, [], ExitCode.PRECONDITION, {"helmfile is missing"}),
        ({"a": hindered, "b": drifted}, ["b"], ExitCode.FAILURE, {"a pin differs"}),
    ],
)
def test_every_check_is_heard(
    checks: object, words: list[str], code: ExitCode, said: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(program, "CHECKS", checks)
    monkeypatch.setattr(sys, "argv", ["verify", *words])
    with pytest.raises(UserError) as caught:
        program.main()
    assert caught.value.code == code
    assert len(caught.value.problems) == len(said)
    for each in said:
        assert each in str(caught.value)


def test_nothing_drifted_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "CHECKS", {"a": clean})
    monkeypatch.setattr(sys, "argv", ["verify"])
    assert program.main() == ExitCode.OK


def test_an_unknown_check_is_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["verify", "goldens", "pins"])
    with pytest.raises(SystemExit) as caught:
        program.main()
    assert caught.value.code == ExitCode.USAGE
