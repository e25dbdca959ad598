"""A run for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gym_run import Run
from tandem_host.control_plane import ControlPlane


@pytest.fixture
def run(api_server: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(api_server.kubeconfig, namespace, tmp_path)
    yield made
    made.close()
