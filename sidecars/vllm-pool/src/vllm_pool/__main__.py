"""The command `vllm-pool`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tandem_common.errors import ExitCode, Problem, UserError, run_main
from vllm_pool.replica import program as replica

_COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {"replica": replica.main}
_USAGE: Final = """\
usage: vllm-pool COMMAND …
Judge models behind one address.

commands:
  replica   keep one vLLM server known to the balancers of a pool

example:
  vllm-pool replica --help

exit codes: those of the command; 2 usage
"""


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code.

    Raises:
        UserError: There is no such command.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return ExitCode.OK
    command = _COMMANDS.get(argv[0]) if argv else None
    if command is None:
        what = f"there is no command {argv[0]!r}" if argv else "no command was given"
        raise UserError(Problem(what, f"one of: {', '.join(_COMMANDS)}"), ExitCode.USAGE)
    return command(argv[1:])


def entry() -> None:
    """Run as the program that the package installs."""
    run_main(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    entry()
