"""A wrong word on a command line: the value, the limit and the fix, and code 2."""

from __future__ import annotations

import pytest

from tandem.cli import Parser, whole_number


@pytest.fixture
def parser() -> Parser:
    made = Parser("tandem.thing", "Does a thing.", "examples:\n  tandem.thing up --gpus 4")
    up = made.add_subparsers(dest="command", required=True).add_parser("up", help="goes up")
    up.add_argument("--gpus", type=whole_number(0, 1024, example=8))
    up.add_argument("--output", choices=("text", "json"))
    return made


@pytest.mark.parametrize("value", ["many", "-1", "1025", "2.5", "", "8x"])
def test_a_number_that_is_none_or_out_of_limits(
    parser: Parser, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["up", f"--gpus={value}"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: argument --gpus: {value!r} is not a whole number between 0 and 1024",
        "  fix: write one of them, such as 8",
    ]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["up", "--output", "xml"], "invalid choice: 'xml' (choose from 'text', 'json')"),
        (["sideways"], "invalid choice: 'sideways' (choose from 'up')"),
        (["up", "--gpu-count", "3"], "unrecognized arguments: --gpu-count 3"),
        ([], "the following arguments are required: command"),
    ],
)
def test_every_other_wrong_word_has_a_fix_too(
    parser: Parser, capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert what in said
    assert "fix: tandem.thing" in said
    assert "--help shows what is allowed" in said


@pytest.mark.parametrize("value", [0, 8, 1024])
def test_numbers_within_the_limits(parser: Parser, value: int) -> None:
    assert parser.parse_args(["up", "--gpus", str(value)]).gpus == value


def test_examples_keep_their_lines(parser: Parser) -> None:
    assert "examples:\n  tandem.thing up --gpus 4" in parser.format_help()
