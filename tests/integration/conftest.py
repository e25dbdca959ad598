"""Fixtures of the suites on the bare API server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem_host.control_plane import ControlPlane


@pytest.fixture(scope="module")
def kubeconfig(api_server: ControlPlane) -> Iterator[Path]:
    """The API server's kubeconfig, also as KUBECONFIG of every program that a test starts."""
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(api_server.kubeconfig)
    yield api_server.kubeconfig
    if before is None:
        del os.environ["KUBECONFIG"]
    else:
        os.environ["KUBECONFIG"] = before
