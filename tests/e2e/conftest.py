"""Fixtures of the suites on the real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runs import Runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take the cluster down come before those that put the platform on it."""
    items.sort(key=lambda item: "test_host_" not in item.nodeid)


@pytest.fixture
def runs(platform: Path) -> Iterator[Runs]:
    """Start runs of the test's own; they are removed at its end."""
    assert platform.is_file()
    made = Runs()
    yield made
    made.remove()
