"""Fixtures of the balancer's suite: `vllm-pool serve` with a real Envoy over fake engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.pool_serve import Balancer, balancers


@pytest.fixture
def make_balancer() -> Iterator[Callable[..., Balancer]]:
    """A function that starts a balancer with an environment of the test's."""
    with balancers() as make:
        yield make


@pytest.fixture(scope="module")
def shared() -> Iterator[Balancer]:
    """One balancer for a module: starting one takes seconds."""
    with balancers() as make:
        yield make()


@pytest.fixture
def balancer(shared: Balancer) -> Iterator[Balancer]:
    """The module's balancer, without members before and after a test."""
    yield shared
    shared.clear()
