"""Logs: one JSON object a line, or coloured text when a person reads along.

An event has a short fixed name and fields, never values inside its text, so that a query
finds it: `log.warning("peer_unhealthy", peer=name, reason=reason)`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure(program: str, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Send this process's events to a stream, stderr by default.

    Args:
        program: Name that every event carries.
        level: One of `LEVELS`; what is below it is dropped.
        stream: Where to write. JSON unless it is a terminal; colour to a terminal only.
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=True)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    processors: list[Any] = [
        _program(program),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not terminal:
        processors.append(structlog.processors.dict_tracebacks)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )


def _program(name: str) -> Any:
    def add(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        event.setdefault("program", name)
        return event

    return add


def get_logger(**fields: Any) -> Any:
    """Return a logger whose events all carry these fields."""
    return structlog.get_logger(**fields)
