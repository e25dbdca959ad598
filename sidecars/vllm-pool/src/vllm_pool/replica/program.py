"""The command `vllm-pool replica`."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Final

from tandem_common import logs
from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.serve import HealthServer
from vllm_pool.replica.agent import Agent
from vllm_pool.replica.metrics import Metrics
from vllm_pool.replica.settings import ReplicaSettings

_DESCRIPTION: Final = """\
Keep one vLLM server known to the balancers of a pool: start it, or watch one that is there.
It is registered once /health and a completion of one token pass, and for as long as they do.
"""
_EPILOG: Final = """\
examples:
  vllm-pool replica --id judge-0 --manager http://10.0.0.5:8000 -- vllm serve m --port 8100
  vllm-pool replica --id judge-0 --manager dns+http://judge-managers:8000 \\
    --target http://127.0.0.1:8000        beside a server that somebody else runs

Each flag can be given as VLLM_POOL_REPLICA_… in the environment.

exit codes: the server's own (128 + number when a signal ended it); 0 ended as asked, 1 a defect,
2 usage, 3 cannot be started or a newer process has the id, 4 not ready in time
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm-pool replica", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        usage="vllm-pool replica [flags] [-- command …]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for name, field in ReplicaSettings.model_fields.items():
        text = (field.description or "").replace("%", "%%")
        parser.add_argument(ReplicaSettings.flag(name), dest=name, help=text)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run an agent; return the exit code.

    Args:
        argv: Flags, then `--` and the server's command line where it is to be started.

    Raises:
        UserError: Something that the user can mend, with every problem that is known.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    flags, command = argv[:cut], list(argv[cut + 1 :])
    given = vars(_parser().parse_args(flags))
    settings = ReplicaSettings.load(given)
    if cut < len(argv) and not command:
        raise UserError(
            Problem("nothing follows --", "name the server's command, or leave -- out"),
            ExitCode.USAGE,
        )
    if not command and not settings.target:
        raise UserError(
            Problem(
                "there is no server: neither a command nor an address",
                f"give a command behind --, or set {settings.variable('target')}",
            ),
            ExitCode.USAGE,
        )
    logs.configure("vllm-pool-replica", level=settings.log_level)
    return asyncio.run(_run(settings, command))


async def _run(settings: ReplicaSettings, command: Sequence[str]) -> int:
    agent = Agent(settings, command, Metrics(), os.environ)
    with HealthServer(
        settings.health_host, settings.health_port, live=agent.live, ready=agent.ready
    ):
        return await agent.run()
