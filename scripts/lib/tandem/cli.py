"""Command lines: what every program of ours shows, and how it refuses a wrong word."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from tandem.console import console
from tandem.errors import ExitCode


class Parser(argparse.ArgumentParser):
    """A parser whose errors have a fix, like every other error here, and end with code 2.

    The parsers of its sub-commands are of this class too.
    """

    def __init__(self, prog: str, description: str | None = None, epilog: str | None = None,
                 **settings: object) -> None:  # fmt: skip
        """Take the program's name, one sentence, and examples with the exit codes."""
        super().__init__(
            prog, description=description, epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what would be right, and end with code 2."""
        what, _, fix = message.partition("\n")
        console.error(what, fix or f"{self.prog} --help shows what is allowed, with examples")
        raise SystemExit(int(ExitCode.USAGE))


def whole_number(low: int, high: int, example: int) -> Callable[[str], int]:
    """Return an argument type: a whole number within limits, all of which its error names."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number between {low} and {high}\n"
                f"write one of them, such as {example}"
            )
        return number

    return parse
