"""Whose cluster is on this machine, and what a command of this checkout may do about it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tandem.console import console
from tandem.errors import Problem, UserError
from tandem_host import processes, record
from tandem_host.layout import Layout
from tandem_host.processes import Process
from tandem_host.record import Record
from tandem_host.settings import Settings


class Claim(Enum):
    """What this checkout finds when it wants a cluster."""

    FREE = "no host cluster on this machine"
    OURS = "the cluster is this checkout's"
    #: Another checkout's cluster that no process belongs to any more (a reboot, a crash).
    ABANDONED = "another checkout's cluster left traces"
    TAKEN = "another checkout's cluster runs"


@dataclass(frozen=True, slots=True)
class Owner:
    """The other checkout, as far as it is known."""

    checkout: str
    state: str
    supervisor_pid: int | None


def judge(settings: Settings, found: Record | None, running: list[Process]) -> Claim:
    """Return what this checkout may assume, from the record and the marked processes."""
    state = str(settings.state)
    if any(process.environ[processes.MARK] != state for process in running):
        return Claim.TAKEN
    if found is not None and found.state != state:
        return Claim.ABANDONED
    return Claim.OURS if found is not None or running else Claim.FREE


def owner(settings: Settings, found: Record | None, running: list[Process]) -> Owner:
    """Return who holds the machine's cluster, where it is not this checkout."""
    theirs = [p for p in running if p.environ[processes.MARK] != str(settings.state)]
    state = theirs[0].environ[processes.MARK] if theirs else (found.state if found else "?")
    checkout = found.checkout if found and found.state == state else str(Path(state).parents[1])
    supervisor = processes.main_process(theirs, processes.SUPERVISOR)
    return Owner(checkout, state, supervisor.pid if supervisor else None)


def refuse_if_taken(settings: Settings) -> Claim:
    """Return the claim, or refuse with the name of the checkout that has the machine."""
    # After a reboot only the copy is there: the cluster is still ours, with its data.
    found, running = record.load() or record.load_copy(settings), processes.marked()
    claim = judge(settings, found, running)
    if claim is Claim.TAKEN:
        other = owner(settings, found, running)
        pid = other.supervisor_pid
        by = f"supervisor pid {pid}" if pid else "without a supervisor"
        fix = f"make -C {other.checkout} cluster-down"
        if not Path(other.checkout).is_dir():
            fix = "that folder is gone; take its cluster down from here: make cluster-down FORCE=1"
        raise UserError(
            Problem(f"the host cluster of checkout {other.checkout} runs here ({by})", fix)
        )
    return claim


@contextmanager
def exclusive(settings: Settings) -> Iterator[None]:
    """Let one command at a time change this checkout's cluster; the second one waits."""
    path = Layout(settings.state).command_lock
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note("another command works on this cluster; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
