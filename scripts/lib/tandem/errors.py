"""Errors that a user can mend, and the exit codes of every program here.

A program refuses early and whole: it collects every problem that it can see, raises
them together, and nothing has been started by then.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

from tandem.console import console
from tandem.paths import ROOT

GIB = 1024**3
MIB = 1024**2
#: A disk with less than this is taken to be the full one when an error names no path.
_FULL_MIB = 64
#: Set to show where an error of the operating system came from.
TRACE = "TANDEM_TRACE"
#: The one sentence on full disks, whoever met it: one of ours or a program that we ran.
SPACE_FIX = (
    "free some space there and run it again; `make cluster-down PURGE=1` deletes the node's"
    " images, `go clean -cache` the compiler's cache"
)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_PERMISSION = (errno.EACCES, errno.EPERM)
#: How programs that we run say it, in small letters.
_SAY_NO_SPACE = ("no space left on device", "enospc", "disk quota exceeded", "disk is full")
#: Python's own words when no folder for temporary files can be written to.
_NO_TEMPORARY = "No usable temporary directory"


class ExitCode(IntEnum):
    """Exit codes, the same in every program; documented in each `--help`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PRECONDITION = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with the value seen and what to do about it."""

    what: str
    fix: str

    def __str__(self) -> str:
        """Return the problem and its fix as two lines."""
        return f"{self.what}\n  fix: {self.fix}"


class UserError(Exception):
    """One or more problems that the user can mend; carries the exit code to end with."""

    def __init__(
        self, problems: Problem | Sequence[Problem], code: ExitCode = ExitCode.PRECONDITION
    ) -> None:
        """Take the problems, all that are known, in the order to show them."""
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        self.code = code
        super().__init__("\n".join(str(p) for p in self.problems))


def _existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def written_to() -> list[Path]:
    """Return the folders that programs of ours write to, by way of the programs they run."""
    home = Path(os.environ.get("HOME") or "/")
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - looked at, not used
    return [ROOT, temporary, home, Path.cwd()]


def describe_space(paths: Iterable[Path]) -> str:
    """Return the free space of the disks that are full, or of all when none looks so."""
    seen: dict[int, tuple[int, str]] = {}
    for path in paths:
        with suppress(OSError):
            folder = _existing(path)
            free = shutil.disk_usage(folder).free // MIB
            inodes = os.statvfs(folder)
            # File systems without a table of inodes count none at all.
            gone = inodes.f_files > 0 and inodes.f_favail == 0
            text = f"{folder}: {free} MiB free" + (", no inodes free" if gone else "")
            seen.setdefault(folder.stat().st_dev, (0 if gone else free, text))
    full = [text for free, text in seen.values() if free < _FULL_MIB]
    return "; ".join(full or [text for _, text in seen.values()])


def no_space(who: str, paths: Iterable[Path] | None = None) -> Problem:
    """Return the problem of a full disk.

    Args:
        who: What ran out of it.
        paths: Where it wrote, as far as that is known.
    """
    where = describe_space(written_to() if paths is None else paths)
    return Problem(f"{who}: no space left on the disk ({where})", SPACE_FIX)


def says_no_space(text: str) -> bool:
    """Return whether the output of a program tells of a full disk."""
    small = text.lower()
    return any(words in small for words in _SAY_NO_SPACE)


def require_space(folder: Path, needed: float, what: str) -> None:
    """Refuse to begin what would fill a disk.

    Args:
        folder: Where it writes; need not exist yet.
        needed: GiB that it may take.
        what: What is to be made, for the message.

    Raises:
        UserError: There is too little space.
    """
    there = _existing(folder)
    free = shutil.disk_usage(there).free / GIB
    if free < needed:
        raise UserError(
            Problem(f"{free:.1f} GiB are free at {there}; {what} may need {needed:.1f}", SPACE_FIX)
        )


def explain(error: OSError) -> UserError:
    """Return what a user can do about an error of the operating system."""
    words = error.strerror or str(error) or type(error).__name__
    path = error.filename if isinstance(error.filename, str) else ""
    if error.errno in _NO_SPACE or _NO_TEMPORARY in str(error):
        if path:
            return UserError(no_space(path, [Path(path)]))
        return UserError(no_space("something could not be written"))
    if error.errno in _NO_PERMISSION:
        return UserError(
            Problem(
                f"{path or 'a file'}: {words} (as user {os.geteuid()})",
                "run it as the user that owns it, or as root; or give it to you: "
                f"chown -R $USER {path or '<path>'}",
            )
        )
    if error.errno == errno.EROFS:
        return UserError(
            Problem(
                f"{path or 'a file'}: its file system is mounted read-only",
                "mount it writable, or use a checkout on another disk",
            )
        )
    where = f"{path}: " if path else ""
    fix = f"mend what it says; {TRACE}=1 in the environment shows where it happened"
    return UserError(Problem(f"{where}{words}", fix), ExitCode.FAILURE)


def run_main(main: Callable[[], int]) -> NoReturn:
    """Run a program's main function and exit with its code.

    A `UserError` becomes one `error:` paragraph a problem on stderr and its own exit
    code; Ctrl-C becomes 130 without a stack trace, and a reader that closed our stdout
    is no failure. An error of the operating system (a full disk, a missing right) becomes
    a problem as well. Anything else is a defect of ours and keeps its trace.
    """
    try:
        code = main()
        sys.stdout.flush()
    except UserError as error:
        code = _show(error)
    except KeyboardInterrupt:
        console.note("interrupted")
        code = 130
    except BrokenPipeError:
        # `… | head` has read enough; the interpreter must not try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    except OSError as error:
        if os.environ.get(TRACE):
            traceback.print_exc()
        code = _show(explain(error))
    raise SystemExit(int(code))


def _show(error: UserError) -> ExitCode:
    for problem in error.problems:
        console.error(problem.what, problem.fix)
    return error.code
