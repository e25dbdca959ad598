"""The allocation, as Slurm's variables tell of it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem_common.errors import ExitCode, Problem, UserError

_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Allocation:
    """A heterogeneous job that runs.

    Attributes:
        job: Id of its leader.
        restarts: How often it was requeued.
        components: Nodes of each component, in Slurm's order.
        batch_host: Node that the launcher is on.
    """

    job: str
    restarts: int
    components: tuple[tuple[str, ...], ...]
    batch_host: str


def hostnames(nodelist: str) -> list[str]:
    """Return the nodes of a list such as `n[1-3,7]`, in Slurm's order.

    Raises:
        UserError: scontrol cannot say.
    """
    try:
        ran = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist],
            capture_output=True, text=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            Problem(f"scontrol cannot tell the nodes of {nodelist!r}: {error}", "see its message"),
            ExitCode.PRECONDITION,
        ) from None
    return ran.stdout.split()


def read(
    environment: Mapping[str, str],
    needed: Sequence[int],
    expand: Callable[[str], list[str]] = hostnames,
) -> Allocation:
    """Return the allocation that this process is in.

    Args:
        environment: Its variables.
        needed: How many nodes each component has to have.
        expand: Returns the nodes of a list.

    Raises:
        UserError: It is none, or another one than the configuration needs; with all problems.
    """
    job = environment.get("SLURM_JOB_ID", "")
    size = environment.get("SLURM_HET_SIZE", "")
    if not job.isdecimal() or not size.isdecimal():
        raise UserError(
            Problem(
                f"SLURM_JOB_ID={job!r}, SLURM_HET_SIZE={size!r}: this is no heterogeneous job",
                "submit it with `slurm-launcher submit`",
            ),
            ExitCode.PRECONDITION,
        )
    problems = []
    if int(size) != len(needed):
        problems.append(
            Problem(
                f"the job has {size} components, the configuration needs {len(needed)}",
                "submit it with `slurm-launcher submit`",
            )
        )
    found = []
    for number, nodes in enumerate(needed[: int(size)]):
        name = f"SLURM_JOB_NODELIST_HET_GROUP_{number}"
        listed = expand(environment[name]) if environment.get(name) else []
        if len(listed) != nodes:
            problems.append(
                Problem(
                    f"component {number} has {len(listed)} nodes ({name}), it needs {nodes}",
                    "submit it with `slurm-launcher submit`",
                )
            )
        found.append(tuple(listed))
    if problems:
        raise UserError(problems, ExitCode.PRECONDITION)
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return Allocation(
        job=job,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        components=tuple(found),
        batch_host=environment.get("SLURMD_NODENAME") or socket.gethostname(),
    )
