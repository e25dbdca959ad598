"""What the commands print: texts made of a balancer's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_COLUMNS: Final = ("REPLICA", "STATE", "WEIGHT", "INFLIGHT", "CANARY", "WEIGHTS", "URL", "REASONS")
_GREEN, _YELLOW, _RED, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_COLOURS: Final = {
    "ready": _GREEN, "healthy": _GREEN,
    "slow-start": _YELLOW, "joining": _YELLOW, "draining": _YELLOW, "drained": _YELLOW,
    "degraded": _YELLOW, "unhealthy": _RED, "lost": _RED,
}  # fmt: skip


def _dash(value: Any) -> str:
    return "-" if value in (None, "", []) else str(value)


def _row(each: Mapping[str, Any]) -> list[str]:
    seconds = each.get("canary_seconds")
    return [
        str(each["id"]),
        str(each["state"]),
        _dash(each.get("weight")),
        _dash(each.get("inflight")),
        "-" if seconds is None else f"{seconds * 1000:.0f} ms",
        _dash(each.get("weight_version")),
        str(each["url"]),
        _dash(", ".join(each.get("reasons") or [])),
    ]


def table(rows: Sequence[Sequence[str]], *, colour: bool, state: int) -> str:
    """Return rows as columns; the words of the column `state` in colour, if wanted."""
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        tint = _COLOURS.get(row[state]) if colour else None
        if tint:
            cells[state] = f"{tint}{cells[state]}{_PLAIN}"
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def status(said: Mapping[str, Any], *, colour: bool) -> str:
    """Return the state of a pool as text."""
    word = str(said["status"])
    tint = _COLOURS.get(word) if colour else None
    shown = f"{tint}{word}{_PLAIN}" if tint else word
    line = (
        f"{shown}: {said['healthy_backends']} of {said['total_backends']} in rotation, "
        f"{said['min_ready']} needed"
    )
    if said.get("draining"):
        line += "; this balancer is about to go"
    backends = said["backends"]
    if not backends:
        return f"{line}\nno replica has registered"
    rows = [list(_COLUMNS), *(_row(each) for each in backends)]
    return f"{line}\n{table(rows, colour=colour, state=1)}"


def canaries(said: Mapping[str, Any], *, colour: bool) -> str:
    """Return what canaries have shown as text."""
    rows = [["REPLICA", "RESULT", "SECONDS", "DETAIL"]]
    for name, each in sorted(said["replicas"].items()):
        rows.append([name, each["result"], f"{each['seconds']:.3f}", _dash(each["detail"])])
    return table(rows, colour=colour, state=1) if len(rows) > 1 else "no replica has registered"
