"""Processes on this machine: which are ours, whether they live, how to end them.

Every process that we start carries variables in its environment that name the cluster
and the component. The kernel keeps them beside the process, so they survive lost files,
killed supervisors and re-used process ids: `/proc` is the only truth about what is ours.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Marks a process of a full cluster; the value is the cluster's state folder.
MARK = "TANDEM_HOST_CLUSTER"
COMPONENT = "TANDEM_HOST_COMPONENT"
DIGEST = "TANDEM_HOST_DIGEST"
#: Marks a process of a tests' control plane: never touched by `cluster-down`.
TEST_MARK = "TANDEM_CONTROL_PLANE"

#: Home of the cluster's processes where the caller's environment names none: root's.
DEFAULT_HOME = "/root"

SUPERVISOR = "supervisor"
SHIM = "containerd-shim-runc-v2"

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken: its id and the clock tick of its start."""

    pid: int
    ticks: int

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return start_ticks(self.pid) == self.ticks


@dataclass(frozen=True, slots=True)
class Process:
    """A process of ours, as found in `/proc`."""

    identity: Identity
    argv: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.identity.pid

    @property
    def program(self) -> str:
        """Name of the program that it runs."""
        return os.path.basename(self.argv[0]) if self.argv else ""  # noqa: PTH119 - a bare name

    @property
    def component(self) -> str:
        """Component that it is or descends from."""
        return self.environ.get(COMPONENT, "")

    @property
    def digest(self) -> str:
        """Digest of the component's definition when it was started."""
        return self.environ.get(DIGEST, "")


def start_ticks(pid: int) -> int | None:
    """Return the clock tick at which a process started, None when it is gone or a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name is in brackets and may hold spaces: fields count from behind it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def uptime(identity: Identity) -> float:
    """Return the seconds since a process started."""
    boot = float((_PROC / "uptime").read_text(encoding="utf-8").split()[0])
    return max(0.0, boot - identity.ticks / os.sysconf("SC_CLK_TCK"))


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds in RAM, 0 when it is gone."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def marked(mark: str = MARK) -> list[Process]:
    """Return every process of root that carries a mark, oldest first."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        # Processes come and go while we read: whatever vanishes was not worth counting.
        with suppress(OSError):
            if entry.stat().st_uid != 0:
                continue
            environ = _environ(entry)
            ticks = start_ticks(int(entry.name))
            if mark in environ and ticks is not None:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace")
                words = tuple(argv.rstrip("\0").split("\0"))
                found.append(Process(Identity(int(entry.name), ticks), words, environ))
    return sorted(found, key=lambda process: (process.identity.ticks, process.pid))


def _environ(entry: Path) -> dict[str, str]:
    raw = (entry / "environ").read_bytes()
    if b"TANDEM_" not in raw:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def of_cluster(state: Path, mark: str = MARK) -> list[Process]:
    """Return every marked process of one cluster, oldest first."""
    return [process for process in marked(mark) if process.environ[mark] == str(state)]


def main_process(processes: Iterable[Process], component: str) -> Process | None:
    """Return the process that is a component, not one of its children.

    Children (shims, plugins, iptables) inherit the environment; they run other programs,
    and in the instant between fork and exec they are younger.
    """
    for process in processes:
        itself = component in (process.program, SUPERVISOR)
        if process.component == component and itself:
            return process
    return None


def spawn(
    argv: Sequence[str], *, log: Path, environ: Mapping[str, str], cwd: Path = Path("/")
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, writing to a log file that it appends to.

    Appending matters: the log can be cut while the process goes on writing.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor,
            env=dict(environ), cwd=cwd, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(descriptor)


def environment(bin_folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return a small, known environment: ours first, then the system's programs.

    The home is the caller's: the kubelet looks there for credentials of registries.
    """
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
    home = os.environ.get("HOME") or DEFAULT_HOME
    return {"PATH": f"{bin_folder}:{system}", "HOME": home, **kept, **extra}


def wait_gone(identities: Iterable[Identity], seconds: float) -> list[Identity]:
    """Wait until processes have ended; return those that live on after the deadline.

    Uses pidfds, so the wait ends with the last exit and also works for processes that
    are not our children. Children of ours are reaped.
    """
    deadline = time.monotonic() + seconds
    return [
        identity
        for identity in identities
        if not _wait_one(identity, max(0.0, deadline - time.monotonic()))
    ]


def _wait_one(identity: Identity, seconds: float) -> bool:
    if not identity.alive():
        _reap(identity.pid)
        return True
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        if not identity.alive():  # The id was given to another process meanwhile.
            return True
        ended = bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
    if ended:
        _reap(identity.pid)
    return ended


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def send(identity: Identity, signum: signal.Signals) -> None:
    """Send a signal to this very process; nothing happens when it is gone."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        if identity.alive():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signum)
    finally:
        os.close(descriptor)


def stop(identities: Sequence[Identity], seconds: float) -> None:
    """End processes together: politely, after the deadline by SIGKILL; wait for each exit."""
    for identity in identities:
        send(identity, signal.SIGTERM)
    kill(wait_gone(identities, seconds))


def kill(identities: Sequence[Identity], seconds: float = 10.0) -> None:
    """Kill processes and wait until the kernel has let go of them."""
    for identity in identities:
        send(identity, signal.SIGKILL)
    wait_gone(identities, seconds)


def descendants(pid: int) -> Iterator[int]:
    """Yield the process ids of all children and their children."""
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        with suppress(OSError):
            for child in (task / "children").read_text(encoding="utf-8").split():
                yield int(child)
                yield from descendants(int(child))
