"""How long to wait before a process that ended is started again: a decision without a clock."""

from __future__ import annotations

from typing import Final

#: One that lived so long was well; its end is the first of a new series.
WELL_SECONDS: Final = 10.0
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 5.0
_MOST_IN_A_ROW: Final = 12


class Backoff:
    """The ends of one process, in a row.

    Attributes:
        never_lived: Whether it has never been well.
    """

    def __init__(self) -> None:
        """Begin without any end."""
        self.never_lived = True
        self._in_a_row = 0

    def ended(self, lived: float) -> float | None:
        """Return the seconds to wait before the next start; None: it is of no use.

        Args:
            lived: Seconds from its start to its end.
        """
        if lived >= WELL_SECONDS:
            self._in_a_row, self.never_lived = 0, False
        self._in_a_row += 1
        if self._in_a_row > _MOST_IN_A_ROW:
            return None
        return float(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (self._in_a_row - 1)))
