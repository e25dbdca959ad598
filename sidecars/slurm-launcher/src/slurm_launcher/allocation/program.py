"""The commands that run inside a job: `run-in-allocation`, and `task` in its steps."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_launcher import plan
from slurm_launcher.allocation import environment
from slurm_launcher.allocation.launcher import Launcher
from slurm_launcher.allocation.task import Task
from slurm_launcher.config import Config
from tandem_common import logs
from tandem_common.errors import ExitCode, Problem, UserError


def run_in_allocation(argv: Sequence[str]) -> int:
    """Run a job; return the exit code of its training.

    Raises:
        UserError: This is no job, or another one.
    """
    parser = argparse.ArgumentParser(
        prog="slurm-launcher run-in-allocation", allow_abbrev=False,
        description="Run the job: what the batch script of `submit` does.",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, required=True, help="the frozen configuration")
    given = parser.parse_args(argv)
    try:
        config = Config.model_validate_json(given.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            Problem(f"{given.config}: {error}", "submit the job again"), ExitCode.USAGE
        ) from None
    logs.configure("slurm-launcher")
    needed = [part.nodes for part in plan.build(config).components]
    allocation = environment.read(os.environ, needed)

    async def run() -> int:
        return await Launcher(config, allocation, os.environ).run()

    return asyncio.run(run())


def task(argv: Sequence[str]) -> int:
    """Run one task of a replica; return the exit code of what it ran."""
    cut = list(argv).index("--")
    parser = argparse.ArgumentParser(prog="slurm-launcher task", allow_abbrev=False)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--lease-seconds", type=float, required=True)
    parser.add_argument("--job", required=True)
    given = parser.parse_args(argv[:cut])
    logs.configure("slurm-launcher-task")
    host, _, port = given.launcher.rpartition(":")

    async def run() -> int:
        one = Task(
            list(argv[cut + 1 :]), host=host, port=int(port), name=given.replica,
            seconds=given.lease_seconds, job=given.job,
        )  # fmt: skip
        return await one.run()

    return asyncio.run(run())
