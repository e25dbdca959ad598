"""Logs: JSON to a file or pipe, text to a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from tandem_common import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_an_event_is_one_line_of_json_with_program_level_time_and_fields() -> None:
    out = io.StringIO()
    logs.configure("pinger", stream=out)
    logs.get_logger(peer="gym").warning("peer_unhealthy", reason="no answer")
    [line] = out.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "peer_unhealthy", "level": "warning", "program": "pinger", "peer": "gym",
        "reason": "no answer",
    }  # fmt: skip


def test_what_is_below_the_level_is_dropped() -> None:
    out = io.StringIO()
    logs.configure("pinger", level="warning", stream=out)
    logs.get_logger().info("started")
    assert out.getvalue() == ""


def test_a_trace_stays_on_its_line() -> None:
    out = io.StringIO()
    logs.configure("pinger", stream=out)
    try:
        int("odd")
    except ValueError:
        logs.get_logger().exception("broken")
    [line] = out.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_type"] == "ValueError"


def test_a_terminal_gets_coloured_text() -> None:
    out = Terminal()
    logs.configure("pinger", stream=out)
    logs.get_logger().info("started")
    assert "\x1b[" in out.getvalue()
    assert not out.getvalue().startswith("{")
