"""What a person reads while a command works: one line a phase, with elapsed seconds.

Everything goes to stderr, so that stdout stays free for results (`--output json`).
Colour appears on a TTY only and never with NO_COLOR (rich sees to both).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console as RichConsole
from rich.text import Text

_STARTED = "TANDEM_STARTED_MONOTONIC_SECONDS"


@dataclass
class Phase:
    """A running phase; `detail` is shown behind the elapsed time when it ends."""

    name: str
    started: float = field(default_factory=time.monotonic)
    detail: str = ""

    @property
    def seconds(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self.started


class Console:
    """Lines on stderr, each begun with the seconds since the program started."""

    def __init__(self) -> None:
        """Begin the clock of the lines."""
        self._rich = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        # Programs started by one of ours count on from its clock (Linux' monotonic
        # clock is one for the machine), so that the lines of `make demo` read as one.
        started = os.environ.setdefault(_STARTED, f"{time.monotonic():.3f}")
        self._started = float(started)

    def _line(self, mark: str, style: str, text: str) -> None:
        # A console that was closed by `| head` must not turn a good run into a failure.
        elapsed = time.monotonic() - self._started
        self._rich.print(
            Text.assemble((f"[{elapsed:7.1f} s] ", "dim"), (f"{mark:<5} ", style), text)
        )
        sys.stderr.flush()

    def note(self, text: str) -> None:
        """Print a plain line."""
        self._line("", "", text)

    def ok(self, text: str) -> None:
        """Print that something is done."""
        self._line("ok", "green", text)

    def warn(self, text: str) -> None:
        """Print something that a person should know, and that stops nothing."""
        self._line("warn", "yellow", text)

    def error(self, what: str, fix: str) -> None:
        """Print one problem and its fix."""
        self._rich.print(Text.assemble(("error: ", "bold red"), what))
        self._rich.print(Text.assemble(("  fix: ", "bold"), fix))

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Print that a phase begins and, when it ends, how long it took."""
        current = Phase(name)
        self._line("...", "cyan", name)
        try:
            yield current
        except BaseException:
            self._line("fail", "red", f"{name} ({current.seconds:.1f} s)")
            raise
        detail = f": {current.detail}" if current.detail else ""
        self._line("ok", "green", f"{name} ({current.seconds:.1f} s){detail}")


console = Console()
