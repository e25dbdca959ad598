"""What of a lab is on this machine: for the check that nothing is, once it is down."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from support.slurm_lab.namespaces import command_of, namespace_of
from support.slurm_lab.namespaces import processes as all_processes

_CGROUPS = Path("/sys/fs/cgroup")


def find(folder: Path, *, cgroup: str, links: str) -> list[str]:
    """Return processes, mounts, cgroups and network links, each in words.

    Args:
        folder: The lab's.
        cgroup: How its cgroups' names begin.
        links: How its links' names begin; they belong into its own network alone.
    """
    return [
        *(f"process {told}" for told in processes(folder)),
        *(f"mount {line}" for line in _mounts(folder)),
        *(f"cgroup {path}" for path in cgroups(cgroup)),
        *(f"link {name}" for _, name in socket.if_nameindex() if name.startswith(links)),
    ]


def processes(folder: Path) -> list[str]:
    """Return the processes of other pid namespaces that name the folder, or were told of it.

    Those that have ended and wait for their parent to see it are none: they have no namespace.
    """
    ours = namespace_of(os.getpid())
    mark = str(folder).encode()
    found = []
    for pid in all_processes():
        if namespace_of(pid) not in {0, ours}:
            with suppress(OSError):
                if _names(pid, mark):
                    found.append(f"{pid}: {command_of(pid)}")
    return found


def cgroups(prefix: str) -> list[Path]:
    """Return the cgroups of the lab's nodes, in every hierarchy."""
    return sorted(path for each in _hierarchies() for path in each.glob(f"{prefix}-n*"))


def remove_cgroups(prefix: str) -> bool:
    """Remove the cgroups of a lab; return whether all are: one is busy while a process ends."""
    for top in cgroups(prefix):
        for path, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(path).rmdir()
    return not cgroups(prefix)


def _names(pid: int, mark: bytes) -> bool:
    return any(mark in Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "environ"))


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


def _hierarchies() -> list[Path]:
    return [_CGROUPS, *(path for path in _CGROUPS.iterdir() if path.is_dir())]
