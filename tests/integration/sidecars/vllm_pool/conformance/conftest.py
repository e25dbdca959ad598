"""Fixture of the conformance suite: a test, run against a pool with a fault."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import pool_plane
from support.pool_behaviours import Behaviour, failure_of

#: How long a test waits for what the fault keeps from coming.
IMPATIENT = 1.0


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Behaviour], bool]]:
    """A function that says whether the test of a behaviour fails on a pool with its fault."""
    monkeypatch.setattr(pool_plane, "SOON", IMPATIENT)

    def run(one: Behaviour) -> bool:
        said = failure_of(one, tmp_path)
        print(f"a pool that {one.fault.name}: {said}")
        return said is not None

    yield run
    # What hangs on the failed test, sockets above all, ends with it.
    gc.collect()
