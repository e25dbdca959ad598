"""Fixtures of the suite against a real KAI, for a bundle that holds its chart and images.

Not part of `make check`: no package registry has KAI. `make check-kai` refuses without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kai_cluster import Queues, Workloads, admission_lifted, remove_queues
from tandem.bundle.kai import kai_of
from tandem.bundle.layout import Layout
from tandem.errors import ExitCode


def pytest_sessionstart() -> None:
    """Refuse a bundle without KAI, before a cluster is brought up for nothing."""
    kai = kai_of(Layout())
    if not kai.complete:
        pytest.exit(
            f"error: the bundle has no KAI: {kai.why}\n"
            "  fix: put its chart into .bundle/charts/kai-scheduler and its images, under their "
            "upstream names, into .bundle/images; then make bundle",
            returncode=ExitCode.PRECONDITION,
        )


@pytest.fixture
def workloads(platform: Path) -> Iterator[Workloads]:
    """Apply objects that are removed at the test's end, with all their pods."""
    assert platform.is_file()
    made = Workloads()
    yield made
    made.remove()


@pytest.fixture
def queues(platform: Path) -> Iterator[Queues]:
    """A tree of the test's own: `first` has all GPUs by right, `last` only what is idle."""
    assert platform.is_file()
    made = Queues.make(gpus=8)
    try:
        # They are none of the platform's, and the API server would refuse runs that name them.
        with admission_lifted(made.first):
            yield made
    finally:
        remove_queues(made)
