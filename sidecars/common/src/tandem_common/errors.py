"""Errors that a user can mend, and the exit codes of every sidecar.

A program refuses early and whole: it collects every problem that it can see, raises them
together, and nothing has been started or written by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn


class ExitCode(IntEnum):
    """Exit codes, the same in every sidecar; documented in each `--help`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PRECONDITION = 3
    TIMEOUT = 4


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with the value seen and what to do about it."""

    what: str
    fix: str

    def __str__(self) -> str:
        """Return the problem and its fix as two lines."""
        return f"{self.what}\n  fix: {self.fix}"


class UserError(Exception):
    """One or more problems that the user can mend; carries the exit code to end with."""

    def __init__(
        self, problems: Problem | Sequence[Problem], code: ExitCode = ExitCode.PRECONDITION
    ) -> None:
        """Take the problems, all that are known, in the order to show them."""
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        self.code = code
        super().__init__("\n".join(str(problem) for problem in self.problems))


def run_main(main: Callable[[], int]) -> NoReturn:
    """Run a program's main function and exit with its code.

    A `UserError` becomes one `error:` paragraph a problem on stderr and its own exit code.
    Ctrl-C becomes 130, and a reader that closed our stdout is no failure. Anything else is a
    defect of ours and keeps its trace.
    """
    try:
        code = main()
        sys.stdout.flush()
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # `… | head` has read enough; the interpreter must not try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    raise SystemExit(int(code))
