"""Fixtures of the data plane's suite: real Envoys, each in a run directory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.pool_plane import Plane, planes


@pytest.fixture
def make_plane() -> Iterator[Callable[..., Plane]]:
    """A function that starts a data plane with settings of the test's."""
    with planes() as make:
        yield make


@pytest.fixture
def plane(make_plane: Callable[..., Plane]) -> Plane:
    """A data plane with the settings that are the default."""
    return make_plane()
