"""Mounts below our folders: found in the kernel's list, taken off inner ones first."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

_DETACH = 2  # MNT_DETACH: out of sight at once, gone with its last user
_ESCAPE = re.compile(r"\\([0-7]{3})")


def below(mountinfo: str, folders: Iterable[Path]) -> list[str]:
    """Return the mount points at or below some folders, the last mounted first."""
    found = []
    prefixes = tuple(str(folder) for folder in folders)
    for line in mountinfo.splitlines():
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), line.split()[4])
        if any(point == prefix or point.startswith(f"{prefix}/") for prefix in prefixes):
            found.append(point)
    return found[::-1]


def current(folders: Iterable[Path]) -> list[str]:
    """Return the mount points at or below some folders now."""
    return below(Path("/proc/self/mountinfo").read_text(encoding="utf-8"), folders)


def unmount(folders: Iterable[Path]) -> list[str]:
    """Take off everything mounted at or below some folders; return what stays."""
    wanted = list(folders)
    libc = ctypes.CDLL(None, use_errno=True)
    for point in current(wanted):
        # Processes are gone by now. What is still busy is detached: it goes with its user.
        if libc.umount2(os.fsencode(point), 0) != 0:
            libc.umount2(os.fsencode(point), _DETACH)
    return current(wanted)
