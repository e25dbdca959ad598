"""Measured figures: one value beside what is promised for it, and the table of them.

Shared by every program of `make bench`. Nothing is asserted: a slow machine is no defect.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `limit` is what is promised for it on two cores, if anything is."""

    name: str
    value: float
    limit: float | None = None
    unit: str = "s"

    @property
    def over(self) -> bool:
        """Whether it is beyond its limit."""
        return self.limit is not None and self.value > self.limit


def machine() -> str:
    """Return processor count, memory and kernel of this machine, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


def table(where: str, figures: Sequence[Figure]) -> str:
    """Return the figures as text: where and when, then a line for each with its limit."""
    width = max([36, *(len(figure.name) + 2 for figure in figures)])
    lines = [where, f"  {'':<{width}}{'measured':>10}  {'limit':>10}"]
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:g} {figure.unit}"
        mark = "  over" if figure.over else ""
        digits = 0 if figure.unit == "MiB" else 1
        value = f"{figure.value:.{digits}f} {figure.unit}"
        lines.append(f"  {figure.name:<{width}}{value:>10}  {limit:>10}{mark}".rstrip())
    return "\n".join(lines)


def report(figures: Sequence[Figure], output: str) -> None:
    """Print the figures with the machine and the date, as `json` or as a table."""
    where = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    if output == "json":
        print(json.dumps({**where, "figures": [asdict(f) for f in figures]}, indent=2))
    else:
        print(table(f"{where['machine']}, {where['date']}", figures))
