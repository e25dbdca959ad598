"""Fixtures of the suite under load: a real Envoy over compiled replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.pool_fleet import Fleet, fleets
from support.pool_plane import Plane, planes
from support.pool_serve import Balancer, balancers


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three fake replicas."""
    with fleets(3) as made:
        yield made


@pytest.fixture
def make_plane() -> Iterator[Callable[..., Plane]]:
    """A function that starts a data plane with settings of the test's."""
    with planes() as make:
        yield make


@pytest.fixture
def plane(make_plane: Callable[..., Plane], fleet: Fleet) -> Plane:
    """A data plane whose members are the fleet."""
    made = make_plane()
    made.members(fleet.backends())
    return made


@pytest.fixture
def make_balancer() -> Iterator[Callable[..., Balancer]]:
    """A function that starts a balancer with an environment of the test's."""
    with balancers() as make:
        yield make
