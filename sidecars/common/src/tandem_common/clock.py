"""Deadlines on a monotonic clock that tests can replace.

Wall clocks jump and differ between machines; nothing that waits or expires reads them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

#: Seconds that only ever grow; `time.monotonic` outside of tests.
Clock = Callable[[], float]


class Deadline:
    """A point in time that work must not go beyond."""

    def __init__(self, seconds: float | None, clock: Clock = time.monotonic) -> None:
        """Start now; `None` never ends."""
        self._clock = clock
        self.started = clock()
        self.seconds = math.inf if seconds is None else seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.started

    @property
    def remaining(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.remaining <= 0

    def within(self, seconds: float) -> float:
        """Return so many seconds, or what is left when that is less."""
        return min(seconds, self.remaining)
