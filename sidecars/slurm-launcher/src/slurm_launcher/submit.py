"""Hands a plan to Slurm; nothing is written before all of it is known to be right."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from slurm_launcher import plan
from slurm_launcher.config import Config
from tandem_common.errors import ExitCode, Problem, UserError

_SBATCH_SECONDS: Final = 60
_PRIVATE: Final = 0o700


def _several_nodes(pool: plan.PoolPlan) -> Problem:
    # It can be planned; nothing starts the private Ray of such a replica yet.
    nodes = pool.replicas[0].place.nodes
    return Problem(
        f"pool {pool.name}: a replica has {nodes} nodes, and only replicas of one node can be run",
        "take sizes that fit one node",
    )


def submit(config: Config) -> dict[str, str]:
    """Submit a configuration; return the job's id and where its files are.

    Raises:
        UserError: Slurm is not there, refuses, or the folder cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            Problem("there is no sbatch here", "run it on a node from which jobs are submitted"),
            ExitCode.PRECONDITION,
        )
    made = plan.build(config)
    if problems := [_several_nodes(pool) for pool in made.pools if pool.replicas[0].ray_ports]:
        raise UserError(problems, ExitCode.USAGE)
    folder = Path(config.log_dir) / "submitted" / f"{config.name}-{time.time_ns()}"
    try:
        folder.mkdir(parents=True, mode=_PRIVATE)
        frozen, script = folder / "pools.json", folder / "job.sh"
        frozen.write_text(config.model_dump_json(indent=1), encoding="utf-8")
        script.write_text(plan.script(str(frozen)), encoding="utf-8")
    except OSError as error:
        raise UserError(
            Problem(f"{folder}: {error}", "set log_dir to a folder that can be written"),
            ExitCode.PRECONDITION,
        ) from None
    # Options that a person has set for other jobs of theirs would be added to ours.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SBATCH_")}
    ran = subprocess.run(
        plan.sbatch(made, str(script)), capture_output=True, text=True, check=False,
        timeout=_SBATCH_SECONDS, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    job = ran.stdout.strip().split(";")[0]
    if ran.returncode != 0 or not job.isdecimal():
        shutil.rmtree(folder)
        said = ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}"
        raise UserError(
            Problem(f"sbatch refuses: {said}", "mend what it names; nothing was submitted"),
            ExitCode.PRECONDITION,
        )
    return {"job": job, "folder": plan.files(config.log_dir, job)["folder"], "script": str(script)}
