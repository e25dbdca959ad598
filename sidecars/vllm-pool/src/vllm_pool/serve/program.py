"""The commands `vllm-pool serve` and, for the supervisor, `vllm-pool manager`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from tandem_common import logs
from tandem_common.errors import ExitCode, Problem, UserError
from vllm_pool.dataplane import files, process
from vllm_pool.manager import memory
from vllm_pool.serve.supervisor import Supervisor
from vllm_pool.settings import PoolSettings

_DESCRIPTION: Final = """\
Serve a pool of vLLM replicas at one address. Replicas register themselves (vllm-pool replica),
or are listed by a file or a Kubernetes Service; requests go to those that generate tokens.
"""
_EPILOG: Final = """\
examples:
  vllm-pool serve --listen-port 8000 --token-file /run/secrets/token
  vllm-pool serve --name judge --min-ready 2 --members-file /shared/judge.json
  VLLM_POOL_SLICES=judge-replicas vllm-pool serve         in a pod

At SIGTERM it is not ready any more, finishes what it has, and ends; the second one ends it at once.
Each flag can be given as VLLM_POOL_… in the environment.

exit codes: 0 ended as asked, 1 a part of it cannot be kept alive, 2 usage, 3 cannot be started
"""


def _settings(command: str, argv: Sequence[str]) -> PoolSettings:
    parser = argparse.ArgumentParser(
        prog=f"vllm-pool {command}", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        usage=f"vllm-pool {command} [flags]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for name, field in PoolSettings.model_fields.items():
        text = (field.description or "").replace("%", "%%")
        parser.add_argument(PoolSettings.flag(name), dest=name, help=text)
    return PoolSettings.load(vars(parser.parse_args(argv)))


def serve(argv: Sequence[str]) -> int:
    """Serve a pool until it is told to end; return the exit code.

    Raises:
        UserError: Something that the user can mend; nothing has been started then.
    """
    settings = _settings("serve", argv)
    logs.configure("vllm-pool", level=settings.log_level)
    plane = settings.plane()
    process.check_port(plane)
    try:
        files.write_plane(plane)
        memory.begin(settings.run_dir)
    except OSError as error:
        raise UserError(
            Problem(
                f"{settings.run_dir} cannot be used: {error}",
                f"set {settings.variable('run_dir')} to a folder of our own that can be written",
            ),
            ExitCode.PRECONDITION,
        ) from None
    process.validate(plane.run_dir)
    commands = {
        "envoy": process.command(plane.run_dir, plane),
        "manager": [sys.executable, "-m", "vllm_pool", "manager", *argv],
    }
    shown = f"[{plane.listen_host}]" if ":" in plane.listen_host else plane.listen_host

    async def run() -> int:
        supervisor = Supervisor(
            plane.run_dir, commands, address=f"http://{shown}:{plane.listen_port}",
            notice_seconds=settings.drain_notice_seconds, drain_seconds=settings.drain_seconds,
        )  # fmt: skip
        return await supervisor.run()

    return asyncio.run(run())


def manager(argv: Sequence[str]) -> int:
    """Run the manager alone, as the supervisor does; return the exit code.

    Raises:
        UserError: Something that the user can mend.
    """
    # The supervisor needs none of it, and is there as long as the pool.
    from vllm_pool.manager.program import run as run_manager  # noqa: PLC0415

    return run_manager(_settings("manager", argv))
