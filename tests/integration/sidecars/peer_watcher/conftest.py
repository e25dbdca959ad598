"""Fixtures for watchers on the real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peer_watcher.facts import Members
from support.fault_proxy import FaultProxy
from support.stage import MEMBERS, Hands, Stage
from tandem_common.kube import Client
from tandem_host.control_plane import ControlPlane


@pytest.fixture
def stage(api_server: ControlPlane, namespace: str, kinds: None) -> Iterator[Stage]:
    """The administrator's hands, straight at the API server."""
    assert kinds is None
    with (
        FaultProxy(api_server.kubeconfig) as straight,
        Client(straight.config(namespace)) as client,
    ):
        yield Stage(client)


@pytest.fixture
def hands(client: Client, stage: Stage) -> Iterator[Callable[..., Hands]]:
    """Make watchers that a test steps by hand, through the proxy that can break things."""
    del stage  # the kinds are there
    made: list[Hands] = []

    def make(members: Members = MEMBERS, *, through: Client | None = None, **options: Any) -> Hands:
        made.append(Hands(through or client, members, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
