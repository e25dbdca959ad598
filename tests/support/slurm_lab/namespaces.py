"""Processes in namespaces, seen and started from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A process, by its number out here."""

    pid: int
    #: Its number in its own pid namespace.
    inner: int
    command: str


def until(holds: Callable[[], Any], what: str | Callable[[], str], seconds: float) -> Any:
    """Wait until something holds, and return what it said.

    Raises:
        TimeoutError: It did not within that time; `what` says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise TimeoutError(f"not within {seconds:g} s: {said}")
        time.sleep(_PAUSE_SECONDS)
    return answer


def processes() -> Iterator[int]:
    """Return the processes of this machine, those that wait to be reaped too."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def namespace_of(pid: int) -> int:
    """Return the number of a process's pid namespace; 0 when it has ended."""
    with suppress(OSError):
        # A process that waits to be reaped has none any more.
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - hundreds of them, often
    return 0


def in_namespace(number: int) -> list[Process]:
    """Return the living processes of a pid namespace, pid 1 first."""
    found = []
    for pid in processes():
        if number and namespace_of(pid) == number:
            with suppress(OSError):
                found.append(Process(pid, _inner_pid(pid), command_of(pid)))
    return sorted(found, key=lambda process: process.inner)


def first_of(number: int) -> int:
    """Return the pid out here of a pid namespace's first process; 0 when it has ended."""
    found = in_namespace(number)
    return found[0].pid if found and found[0].inner == 1 else 0


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started and that have not been reaped."""
    found = []
    for pid in processes():
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            # The name before it is in parentheses, and may hold any character.
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(pid)
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process.

    Raises:
        OSError: It has ended.
    """
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    return " ".join(raw.decode(errors="replace").split("\0")).strip()


def _inner_pid(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


@dataclass
class Program:
    """A program that runs in somebody's namespaces, in the background.

    Entering a pid namespace takes a fork, so that `outer` is not the program but who waits for
    it: signals go by `signal`.
    """

    outer: subprocess.Popen[str]

    def signal(self, number: int, seconds: float = 10.0) -> None:
        """Send the program itself a signal, once it has been started."""
        until(
            lambda: self.outer.poll() is not None or self._inner(), "it has been started", seconds
        )
        if pid := self._inner():
            os.kill(pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Return its exit code; after that time it is killed.

        Raises:
            TimeoutError: It did not end in time.
        """
        try:
            return self.outer.wait(seconds)
        except subprocess.TimeoutExpired as late:
            self.kill()
            raise TimeoutError(f"not within {seconds:g} s: {late.cmd} ends") from late

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.outer.poll() is None

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            if pid := self._inner():
                os.kill(pid, signal.SIGKILL)
        self.outer.kill()
        self.outer.wait(10)

    def _inner(self) -> int:
        # `env` and `setpriv` become the program; until then a signal would end them instead.
        for pid in children_of(self.outer.pid):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") not in _STEPS:  # noqa: PTH115 - see above
                    return pid
        return 0


def _programs(*names: str) -> frozenset[str]:
    return frozenset(str(Path(folder, name).resolve()) for name in names for folder in _FOLDERS)


_FOLDERS = ("/usr/bin", "/bin")
_STEPS = _programs("nsenter", "setpriv", "env")


def entered(pid: int, argv: Sequence[str | Path], *, cwd: Path) -> list[str]:
    """Return the command that runs a program in all namespaces of a process.

    The program is killed when who starts it ends.
    """
    return [
        "nsenter", f"--target={pid}", "--all", "--",
        "setpriv", "--pdeathsig=KILL", "env", f"--chdir={cwd}", "--", *map(str, argv),
    ]  # fmt: skip


def start(
    words: Sequence[str], *, env: Mapping[str, str], log: Path | None = None
) -> subprocess.Popen[str]:
    """Start a program whose output goes to a file, or nowhere."""
    with (log or Path(os.devnull)).open("ab") as out:
        return subprocess.Popen(
            words, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True
        )
