"""What people are shown."""

from __future__ import annotations

from typing import Any

from vllm_pool.client import show


def _said(**row: Any) -> dict[str, Any]:
    backend = {
        "id": "judge-0", "url": "http://10.0.0.7:8100", "state": "ready", "reasons": [],
        "weight": 100, "inflight": 3, "canary_seconds": 0.0123, "weight_version": None, **row,
    }  # fmt: skip
    return {
        "status": "degraded", "healthy_backends": 1, "total_backends": 2, "min_ready": 2,
        "draining": False, "backends": [backend],
    }  # fmt: skip


def test_a_pool_is_one_line_and_a_table() -> None:
    first, head, row = show.status(_said(), colour=False).splitlines()
    assert first == "degraded: 1 of 2 in rotation, 2 needed"
    assert head.split() == [
        "REPLICA", "STATE", "WEIGHT", "INFLIGHT", "CANARY", "WEIGHTS", "URL", "REASONS"
    ]  # fmt: skip
    assert row.split() == [
        "judge-0", "ready", "100", "3", "12", "ms", "-", "http://10.0.0.7:8100", "-"
    ]  # fmt: skip


def test_why_one_is_out_is_told() -> None:
    text = show.status(_said(state="lost", reasons=["lease-lapsed", "x"], weight=0), colour=False)
    assert text.endswith("lease-lapsed, x")


def test_colour_changes_no_column() -> None:
    plain = show.status(_said(), colour=False)
    colours = show.status(_said(), colour=True)
    assert "\x1b" not in plain
    assert "\x1b[33mdegraded" in colours
    for code in ("\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"):
        colours = colours.replace(code, "")
    assert colours == plain


def test_a_pool_without_anybody_says_so() -> None:
    said = {**_said(), "backends": [], "draining": True}
    text = show.status(said, colour=False)
    assert "about to go" in text
    assert "no replica has registered" in text


def test_canaries_are_shown_with_what_was_wrong() -> None:
    said = {
        "replicas": {
            "b": {"result": "late", "seconds": 3.0, "detail": "no answer in 3 s"},
            "a": {"result": "ok", "seconds": 0.01, "detail": ""},
        }
    }
    assert [line.split() for line in show.canaries(said, colour=False).splitlines()[1:]] == [
        ["a", "ok", "0.010", "-"], ["b", "late", "3.000", "no", "answer", "in", "3", "s"],
    ]  # fmt: skip
    assert show.canaries({"replicas": {}}, colour=False) == "no replica has registered"
