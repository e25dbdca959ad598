"""The texts of the lab's Slurm, and how what scontrol prints is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.slurm_lab.jobs import expand, parse_jobs
from support.slurm_lab.lab import Lab
from support.slurm_lab.settings import MAX_FOLDER, Settings, address, texts
from tandem.errors import UserError

#: As `scontrol show job` of Slurm 22.05 prints a heterogeneous job, shortened.
SHOWN = """\
JobId=1 HetJobId=1 HetJobOffset=0 JobName=a job
   HetJobIdSet=1-2
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:15
   Partition=batch AllocNode:Sid=ctl:0
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Command=/x/launch.sh --model=a b=c
   Comment=a b=c
   Power=
   

JobId=2 HetJobId=1 HetJobOffset=1 JobName=a job
   JobState=NODE_FAIL Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   NodeList=n[3-5] SchedNodeList=n[3-5]
   Power=
   

"""  # noqa: W293 - that is what it prints


def test_components_are_read_each_with_its_own() -> None:
    leader, second = parse_jobs(SHOWN)
    assert (leader.id, leader.leader, leader.offset) == (1, 1, 0)
    assert (second.id, second.leader, second.offset) == (2, 1, 1)
    assert (leader.state, leader.ended) == ("RUNNING", False)
    assert (second.state, second.ended, second.reason) == ("NODE_FAIL", True, "NonZeroExitCode")
    assert leader.nodes == ["n1", "n2"]
    assert second.nodes == ["n3", "n4", "n5"]
    assert (leader.batch_host, second.batch_host) == ("n1", "")
    assert (leader.exit_code, leader.exit_signal, leader.restarts) == (0, 15, 2)
    assert (second.exit_code, second.exit_signal) == (3, 0)
    assert leader.fields["JobName"] == "a job"
    assert leader.fields["Command"] == "/x/launch.sh --model=a b=c"
    assert leader.fields["Comment"] == "a b=c"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("(null)", []),
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3-4],m7", ["n1", "n3", "n4", "m7"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
    ],
)
def test_lists_of_nodes_are_expanded(nodes: str, expected: list[str]) -> None:
    assert expand(nodes) == expected


def test_slurm_reads_the_sizes_and_the_times() -> None:
    settings = Settings(nodes=3, gpus=2, cpus=5, proctrack="linuxproc", kill_wait=7)
    files = texts(settings, Path("/lab"), Path("/lab/plugin.so"))
    assert f"NodeName=n3 NodeAddr={address(3)}" in files["slurm.conf"]
    assert "NodeName=n4" not in files["slurm.conf"]
    assert {"ProctrackType=proctrack/linuxproc", "KillWait=7"} <= set(
        files["slurm.conf"].splitlines()
    )
    assert "CPUs=5 " in files["slurm.conf"]
    assert files["gres.conf"] == "NodeName=n[1-3] Name=gpu File=/lab/dev/nvidia[0-1]\n"
    assert f"{address(3)} n3" in files["hosts"].splitlines()
    assert files["plugstack.conf"] == "required /lab/plugin.so /lab\n"


def test_a_lab_without_gpus_or_plugin_names_none() -> None:
    files = texts(Settings(gpus=0), Path("/lab"), None)
    assert "Gres=" not in files["slurm.conf"]
    assert files["gres.conf"] == ""
    assert "plugstack.conf" not in files


def test_a_lab_that_cannot_be_is_refused_whole() -> None:
    folder = Path("/tmp") / ("x" * MAX_FOLDER)  # noqa: S108 - that is what is wrong with it
    with pytest.raises(UserError) as refused:
        Lab(folder, Settings(nodes=0, kill_wait=0)).up()
    said = str(refused.value)
    for expected in ("nodes is 0", "kill_wait is 0", "no shared folder", "characters"):
        assert expected in said
    assert not folder.exists()


def test_no_lab_is_found_where_none_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no lab in"):
        Lab.at(tmp_path)
