"""The allocation as Slurm's variables tell of it."""

from __future__ import annotations

import pytest

from slurm_launcher.allocation import environment
from tandem_common.errors import ExitCode, UserError

GOOD = {
    "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURMD_NODENAME": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1 n2", "SLURM_JOB_NODELIST_HET_GROUP_1": "n10 n9",
}  # fmt: skip


def read(needed: list[int], **changes: str) -> environment.Allocation:
    return environment.read(GOOD | changes, needed, expand=str.split)


def test_nodes_stay_in_slurms_order() -> None:
    found = read([2, 2], SLURM_RESTART_COUNT="1")
    assert found.components == (("n1", "n2"), ("n10", "n9"))
    assert (found.job, found.restarts, found.batch_host) == ("7", 1, "n1")


@pytest.mark.parametrize("changes", [{"SLURM_JOB_ID": ""}, {"SLURM_HET_SIZE": ""}])
def test_what_is_no_heterogeneous_job_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(UserError, match="no heterogeneous job") as told:
        read([2, 2], **changes)
    assert told.value.code == ExitCode.PRECONDITION


def test_another_allocation_than_the_configurations_is_refused_with_all_that_differs() -> None:
    with pytest.raises(UserError) as told:
        read([3, 1, 1])
    text = str(told.value)
    assert "2 components, the configuration needs 3" in text
    assert "component 0 has 2 nodes" in text
    assert "component 1 has 2 nodes" in text
