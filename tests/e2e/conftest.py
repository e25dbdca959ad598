"""Fixtures of the suites on the real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runs import Runs


@pytest.fixture
def runs(platform: Path) -> Iterator[Runs]:
    """Start runs of the test's own; they are removed at its end."""
    assert platform.is_file()
    made = Runs()
    yield made
    made.remove()
