"""Requests to end, taken down from the first instruction on.

Only small modules of the standard library are imported here: an entry point installs the
handlers before it imports anything that takes time. A process that is the first one of its
container has no default action for SIGTERM, so without a handler it would be ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

#: What asks a program to end: the kubelet, Ctrl-C, a terminal that went away.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: A shell's exit code for a process that a signal ended is this plus the signal's number.
SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody asked this program to end."""

    number: int

    def __str__(self) -> str:
        """Return the signal's name."""
        return signal.Signals(self.number).name


@dataclass(frozen=True, slots=True)
class Crashed:
    """A thread has ended by a defect of ours; nobody would do its work any more."""

    thread: str
    error: Exception


def thread(name: str, work: Callable[[], None], tell: Callable[[Any], None]) -> threading.Thread:
    """Return a thread, not started yet, whose end by a defect is told and does not go unseen."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread raises it
            tell(Crashed(name, error))

    return threading.Thread(target=run, name=name, daemon=True)


class Mailbox:
    """Everything that happens, in order: signals, ends of children, news of the registry.

    Threads and signal handlers put, the main thread gets. (A SimpleQueue may be put to from a
    handler that has interrupted a get.)
    """

    def __init__(self) -> None:
        """Start empty."""
        self._queue: SimpleQueue[Any] = SimpleQueue()
        #: Whether somebody gets what is put. Before, a request to end ends the process at once:
        #: nothing has been started that would have to be ended in good order.
        self.read = False

    def put(self, event: Any) -> None:
        """Add an event."""
        self._queue.put(event)

    def get(self, seconds: float) -> Any:
        """Return the next event, None when none came in so many seconds."""
        try:
            return self._queue.get(timeout=max(0.0, seconds))
        except Empty:
            return None


def catch(mailbox: Mailbox) -> None:
    """Take every request to end from now on: as an event, or at once while nobody reads."""

    def handler(number: int, _frame: FrameType | None) -> None:
        mailbox.put(Stop(number))
        if not mailbox.read:
            raise SystemExit(SIGNALLED + number)

    for number in ENDING:
        signal.signal(number, handler)
