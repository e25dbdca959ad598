"""What every program does that runs another one under it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

#: A shell's exit code for a process that a signal ended is this plus the signal's number.
_SIGNALLED = 128


def exit_code(status: int) -> int:
    """Return the code as a shell gives it: 128 + number when a signal ended it.

    Args:
        status: As `subprocess` gives it: the exit code, or the signal's number below zero.
    """
    return status if status >= 0 else _SIGNALLED - status


def members(group: int) -> list[int]:
    """Return the living processes of a group, its leader not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        # Processes come and go while we read.
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            # The program's name is in brackets and may hold spaces: fields count from behind it.
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            state, _, its_group = stat.rpartition(")")[2].split()[:3]
            if pid != group and int(its_group) == group and state not in "ZX":
                found.append(pid)
    return found


def ending_with_us(argv: Sequence[str]) -> list[str]:
    """Return the command line that ends a program when this process is gone, however it went."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--", *argv] if setpriv else list(argv)
