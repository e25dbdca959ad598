"""What both programs share: one loop over everything that happens, phases, an orderly end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gym_server import phases
from gym_server.children import Child, Ended
from gym_server.metrics import Metrics
from gym_server.phases import Phase
from gym_server.probe import Probed
from gym_server.signals import SIGNALLED, Crashed, Mailbox, Stop
from tandem_common import logs
from tandem_common.errors import ExitCode, Problem, UserError

T = TypeVar("T")

#: Kubernetes refuses a ConfigMap of more than 1 MiB, and a message is for a person.
_ERROR_LENGTH = 4000
_REGISTRY_FIX = "mend what the message says: the Role of this pod's account, or a run with this id"


@dataclass(frozen=True, slots=True)
class News:
    """The registry's values have changed; these are all that are valid now."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Complaint:
    """Another program of the run has written `error`."""

    message: str
    writer: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The registry can no longer be read or written, for a reason that waiting does not mend."""

    reason: str


class Link(Protocol):
    """This program's side of the endpoint registry. Its news come through the mailbox."""

    def publish(self, key: str, value: str) -> None:
        """Write a value and keep it alive until it is withdrawn."""

    def withdraw(self) -> None:
        """Take back every value of this program."""

    def fail(self, message: str) -> None:
        """Tell every other program of the run that it has failed, and why."""

    def succeed(self) -> None:
        """Write down that the run has succeeded."""

    def silence(self, key: str) -> str:
        """Return the last sign of life of whoever writes a key, for messages."""


class StoppedError(Exception):
    """Somebody asked for the end."""

    def __init__(self, stop: Stop) -> None:
        """Keep which signal it was."""
        super().__init__(str(stop))
        self.number = stop.number


class PeerFailedError(Exception):
    """Another program of the run has failed; its message is all there is to say."""


class RunFailedError(Exception):
    """The run cannot go on, for a reason that the others have to know."""

    def __init__(self, message: str, code: int = ExitCode.FAILURE) -> None:
        """Take the message for the registry and the exit code."""
        super().__init__(message)
        self.code = code


class Program:
    """Takes what happens from the mailbox and keeps the state that it adds up to."""

    def __init__(
        self, mailbox: Mailbox, link: Link, metrics: Metrics, progress_seconds: float
    ) -> None:
        """Take the parts."""
        self.mailbox = mailbox
        self.link = link
        self.metrics = metrics
        self.log = logs.get_logger()
        self._progress_seconds = progress_seconds
        #: The registry's valid values.
        self.values: dict[str, str] = {}
        #: Children that have ended, by name.
        self.ended: dict[str, Ended] = {}
        #: What the last probe found.
        self.probed: Probed | None = None
        self.phase = ""
        #: Whether the run has failed, here or elsewhere: nobody needs this program any more.
        self.failed = False

    def take(self, event: Any) -> None:
        """Take in one event.

        Raises:
            StoppedError: Somebody asked for the end.
            PeerFailedError: Another program of the run has failed.
            UserError: The registry cannot be used.
        """
        match event:
            case None:
                pass
            case Stop():
                self.log.info("stop_requested", signal=str(event))
                raise StoppedError(event)
            case Complaint(message, writer):
                raise PeerFailedError(f"{writer or 'another program of the run'}: {message}")
            case Lost(reason):
                raise UserError(Problem(f"the endpoint registry: {reason}", _REGISTRY_FIX))
            case Crashed(thread, error):
                raise RuntimeError(f"thread {thread}: {error}") from error
            case News(values):
                self.values = dict(values)
            case Ended(name):
                self.ended[name] = event
                self.metrics.child_ended(name, event.exit_code)
            case Probed():
                self.probed = event
            case _:
                self.other(event)

    def other(self, event: Any) -> None:
        """Take in an event that only one of the programs knows."""
        raise TypeError(f"nobody takes {event!r}")

    def check(self) -> None:
        """Raise when what is known now means that the run cannot go on."""

    def until(self, phase: Phase, want: Callable[[], T | None], last: Callable[[], str] = str) -> T:
        """Wait until something has come to pass and return it.

        Args:
            phase: What is waited for, and until when.
            want: Looks at the state; None means not yet.
            last: The last thing that was seen, for messages.

        Raises:
            UserError: The phase's time is over.
        """
        deadline = phase.begin()
        self.phase = phase.name
        self.metrics.enter(phase.name)
        self.log.info("phase_started", phase=phase.name, deadline_seconds=phase.seconds)
        told = 0.0
        while True:
            self.check()
            got = want()
            if got is not None:
                break
            if deadline.passed:
                raise phases.overdue(phase, last())
            event = self.mailbox.get(deadline.within(self._progress_seconds))
            if deadline.elapsed - told >= self._progress_seconds:
                told = deadline.elapsed
                message = phases.progress(phase, told, last())
                self.log.info("waiting", phase=phase.name, message=message)
            self.take(event)
        seconds = deadline.elapsed
        self.metrics.leave(phase.name, seconds)
        self.log.info("phase_done", phase=phase.name, seconds=round(seconds, 1))
        return got

    def conclude(self, act: Callable[[], None]) -> int:
        """Run something to its end, tell the others how it ended, clear up, return the exit code.

        Raises:
            UserError: What ended it is something that the user can mend.
        """
        ending: Exception | None = None
        try:
            act()
        except (StoppedError, PeerFailedError, RunFailedError, UserError) as error:
            ending = error
        except BaseException as error:
            # A defect of ours: the others must not wait for a deadline to hear of it.
            self.link.fail(f"{type(self).__name__}: {type(error).__name__}: {error}")
            self.close()
            raise
        code: int = ExitCode.OK
        self.failed = ending is not None and not isinstance(ending, StoppedError)
        match ending:
            case StoppedError():
                code = self.stopped(ending.number)
            case PeerFailedError():
                self.log.error("peer_failed", message=str(ending))
                code = ExitCode.FAILURE
            case RunFailedError():
                self.log.error("failed", message=str(ending))
                self.link.fail(str(ending)[:_ERROR_LENGTH])
                code = ending.code
            case UserError():
                self.link.fail("; ".join(each.what for each in ending.problems)[:_ERROR_LENGTH])
        clean = self.close()
        if isinstance(ending, UserError):
            raise ending
        if isinstance(ending, StoppedError) and not clean:
            code = SIGNALLED + ending.number
        self.log.info("ended", exit_code=code)
        return code

    def stopped(self, number: int) -> int:
        """Tell whom it concerns that this program was told to stop; return the exit code."""
        return SIGNALLED + number

    def close(self) -> bool:
        """Take everything back; return whether nothing had to be killed."""
        self.link.withdraw()
        return True

    def end(
        self, child: Child, grace: float, *, group: bool, failed_grace: float = math.inf
    ) -> bool:
        """End a child; return whether it ended without being killed.

        A second request to end while this waits ends the child at once.

        Args:
            child: What to end.
            grace: Seconds that it gets.
            group: Whether its whole group is asked, or the leader alone.
            failed_grace: Seconds that it gets at most from when the run is known to have failed.
        """
        if not child.pid or child.ended is not None:
            return True
        if self.failed:
            grace = min(grace, failed_grace)
        child.ask(grace, group=group)
        deadline = time.monotonic() + grace
        stopped = False
        while not stopped and (left := deadline - time.monotonic()) > 0:
            event = self.mailbox.get(left)
            if isinstance(event, Ended):
                self.take(event)
                if event.name == child.name:
                    return True
            if isinstance(event, Complaint):
                deadline = min(deadline, time.monotonic() + failed_grace)
            stopped = isinstance(event, Stop)
        if child.wait(0.0) is not None:
            return True
        self.log.warning("killing", child=child.name, grace_seconds=grace)
        child.kill()
        child.stop(0.0)
        return False
