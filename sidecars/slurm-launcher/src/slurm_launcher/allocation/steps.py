"""Command lines of srun: every value is an argument, and no shell reads any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_launcher.config import Pool
from slurm_launcher.placement import Place


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        argv: Its command line.
        environment: Variables that srun's own process must have besides those of the launcher:
            names are passed on, since srun cuts values at commas.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def replica(
    pool: Pool,
    place: Place,
    *,
    name: str,
    nodes: Sequence[str],
    log: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    basic: Sequence[str],
) -> Step:
    """Return the step of a replica.

    Args:
        pool: Its pool.
        place: Where it runs.
        name: Its id.
        nodes: The place's nodes.
        log: File for its output.
        command: What each task runs.
        environment: Variables of the replica.
        basic: Names of further variables that are passed on.
    """
    names = [*basic, *pool.pass_env, *environment]
    argv = [
        "srun", f"--het-group={place.component}", f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}",
        f"--gres=gpu:{place.gpus_per_node}", "--exact", "--overlap", "--mem=0",
        # The end of one task is the end of the replica; a lost node ends this step alone.
        "--kill-on-bad-exit=1", "--wait=5", "--no-kill",
        f"--job-name={name}", f"--output={log}", "--open-mode=append",
        f"--export={','.join(dict.fromkeys(names))}",
    ]  # fmt: skip
    if pool.container is not None:
        argv.append(f"--container-image={pool.container}")
        if pool.mounts:
            argv.append(f"--container-mounts={','.join(pool.mounts)}")
    return Step((*argv, *command), dict(environment))
