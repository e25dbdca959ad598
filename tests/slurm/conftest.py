"""A real Slurm for the tests of this folder: see README.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.slurm_lab.lab import Lab
from support.slurm_lab.labs import Labs


@pytest.fixture
def slurm_labs() -> Iterator[Labs]:
    """Make labs of other sizes, for one test; each is down at its end."""
    with ExitStack() as stack:
        yield Labs(stack)


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[Lab]:
    """The lab of six nodes that tests share by way of `slurm`."""
    with ExitStack() as stack:
        yield Labs(stack)()


@pytest.fixture
def slurm(slurm_session: Lab) -> Iterator[Lab]:
    """A lab of six idle nodes; at the test's end its jobs are cancelled and its nodes revived."""
    slurm_session.wait_idle()
    yield slurm_session
    slurm_session.tidy()
