"""Rehearsals of scale with the platform's real JobSet: a small one in CI, the README's in full.

A small one with Kueue is among the tests of Kueue, where it is on the cluster already.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.on_cluster import items
from tandem import rehearsal
from tandem_host import kwok

pytestmark = pytest.mark.cluster


def names(*words: str) -> list[str]:
    return [each["metadata"]["name"] for each in items(*words)]


def test_a_small_rehearsal_runs_all_its_pods_and_leaves_nothing(platform: Path) -> None:
    assert platform.is_file()
    # It refuses figures of pods that do not all run, each on a simulated node.
    figures = rehearsal.rehearse(rehearsal.plan_of("disagg-jobset", 2, 16, 30, "h100"))
    told = [figure.name for figure in figures]
    assert "first apply to the last pod Running" in told
    assert "memory of kwok, all running" in told
    assert "memory of the JobSet controller, all running" in told
    runs = names("jobsets,jobs,pods", "-n", "tandem", "--selector=tandem.dev/run-id")
    assert [name for name in runs if rehearsal.PREFIX in name] == []
    assert names("nodes", f"--selector={kwok.SIMULATED_LABEL}") == []


@pytest.mark.full
@pytest.mark.parametrize("scheduler", ["default", "kueue"])
def test_the_rehearsal_that_the_readme_tells_of(platform: Path, scheduler: str) -> None:
    assert platform.is_file()
    plan = rehearsal.plan_of("disagg-jobset", 20, 64, 1000, "h100", scheduler=scheduler)
    figures = rehearsal.rehearse(plan)
    assert "1000 simulated nodes made and Ready" in [figure.name for figure in figures]
