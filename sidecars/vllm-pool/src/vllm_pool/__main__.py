"""The command `vllm-pool`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final, cast

from tandem_common.errors import ExitCode, Problem, UserError, run_main

#: Where each command is: a command loads only what it needs, so that a person's are quick.
_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("vllm_pool.serve.program", "serve"),
    "replica": ("vllm_pool.replica.program", "main"),
    "status": ("vllm_pool.client.commands", "status"),
    "drain": ("vllm_pool.client.commands", "drain"),
    "undrain": ("vllm_pool.client.commands", "undrain"),
    "add": ("vllm_pool.client.commands", "add"),
    "remove": ("vllm_pool.client.commands", "remove"),
    "canary": ("vllm_pool.client.commands", "canary"),
    "manager": ("vllm_pool.serve.program", "manager"),
}
_USAGE: Final = """\
usage: vllm-pool COMMAND …
Judge models behind one address.

commands:
  serve     serve a pool: the balancer
  replica   keep one vLLM server known to the balancers of a pool
  status    show a pool and its replicas
  drain     give a replica, or with --all the balancer, nothing new
  undrain   take a drain back
  add       register a replica that has no agent
  remove    take a replica out
  canary    ask replicas for one token now
  manager   the control of a balancer alone; `serve` starts it

example:
  vllm-pool serve --listen-port 8000 &
  vllm-pool replica --id judge-0 --manager http://127.0.0.1:8000 -- vllm serve m --port 8100

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
    module, name = command
    run = cast("Callable[[Sequence[str]], int]", getattr(import_module(module), name))
    return run(argv[1:])


def entry() -> None:
    """Run as the program that the package installs."""
    run_main(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    entry()
