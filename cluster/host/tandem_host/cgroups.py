"""The cgroup that all pods live in, in every hierarchy of the machine (v1, v2, hybrid)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tandem_host.settings import CGROUP_ROOT

#: What kubelet and runc need to limit a pod.
NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})


def hierarchies(mounts: str) -> list[Path]:
    """Return the mount points of all cgroup hierarchies, from the text of /proc/mounts."""
    lines = (line.split() for line in mounts.splitlines())
    return [Path(line[1]) for line in lines if line[2] in {"cgroup", "cgroup2"}]


def unified(mounts: str) -> bool:
    """Return whether the machine has cgroup v2 only."""
    lines = (line.split() for line in mounts.splitlines())
    return any(line[1] == "/sys/fs/cgroup" and line[2] == "cgroup2" for line in lines)


def controllers(mounts: str) -> set[str]:
    """Return the controllers that this machine offers."""
    if unified(mounts):
        return set(Path("/sys/fs/cgroup/cgroup.controllers").read_text(encoding="utf-8").split())
    found: set[str] = set()
    for line in mounts.splitlines():
        words = line.split()
        if words[2] == "cgroup":
            found |= set(words[3].split(","))
    return found


def create() -> None:
    """Make our cgroup in every hierarchy; the kubelet refuses a root that is not there."""
    mounts = _mounts()
    if unified(mounts):
        root = Path("/sys/fs/cgroup")
        wanted = " ".join(f"+{name}" for name in sorted(controllers(mounts) & (NEEDED | {"io"})))
        (root / "cgroup.subtree_control").write_text(wanted, encoding="utf-8")
    for hierarchy in hierarchies(mounts):
        _folder(hierarchy).mkdir(exist_ok=True)


def sound() -> bool:
    """Return whether our cgroup is there in every hierarchy."""
    return all(_folder(hierarchy).is_dir() for hierarchy in hierarchies(_mounts()))


def pids() -> set[int]:
    """Return all processes of all pods."""
    found: set[int] = set()
    for folder in _folders():
        with suppress(OSError):  # A pod may end while we look.
            found |= {int(p) for p in (folder / "cgroup.procs").read_text("utf-8").split()}
    return found


def remove() -> list[Path]:
    """Remove our cgroups, inner ones first; return those that are still in use."""
    left = []
    for folder in _folders():
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left.append(folder)
    return left


def _folders() -> Iterator[Path]:
    """Yield our cgroups, inner ones first."""
    for hierarchy in hierarchies(_mounts()):
        for path, _, _ in os.walk(_folder(hierarchy), topdown=False):
            yield Path(path)


def _folder(hierarchy: Path) -> Path:
    return hierarchy / CGROUP_ROOT.lstrip("/")


def _mounts() -> str:
    return Path("/proc/mounts").read_text(encoding="utf-8")
