"""The steps of a run's start, each with its own deadline and a message that says where to look."""

from __future__ import annotations

from dataclasses import dataclass

from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError

_MINUTE = 60.0
_MINUTES_FROM = 180.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One step: what is waited for, how long, and whose business it is."""

    name: str
    #: Completes "waiting for …".
    awaits: str
    #: Which side of the run has to deliver.
    side: str
    #: Where a person finds out why it has not.
    look: str
    seconds: float
    #: The setting that holds the deadline.
    variable: str

    def begin(self) -> Deadline:
        """Start its clock."""
        return Deadline(self.seconds)


def span(seconds: float) -> str:
    """Return a time as people read it."""
    if seconds < _MINUTES_FROM:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min"


def progress(phase: Phase, elapsed: float, last: str) -> str:
    """Return the line that is shown while waiting."""
    seen = f"; last: {last}" if last else ""
    return (
        f"{phase.name}: waiting for {phase.awaits} ({phase.side}), "
        f"{span(elapsed)} of {span(phase.seconds)}{seen}"
    )


def overdue(phase: Phase, last: str) -> UserError:
    """Return the error of a phase whose time is over."""
    seen = f"; last: {last}" if last else ""
    return UserError(
        Problem(
            f"phase {phase.name}: {phase.side}: no {phase.awaits} within "
            f"{span(phase.seconds)}{seen}",
            f"look at {phase.look}; a start that is only slow needs a higher {phase.variable}",
        ),
        ExitCode.TIMEOUT,
    )
