"""Training and its judges as one job on a real Slurm: what lives, what ends, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.slurm_lab.lab import Lab
from support.slurm_lab.namespaces import until
from support.slurm_launch import SOON, Launched, launch

Launch = Callable[..., Launched]


@pytest.fixture
def job(slurm: Lab, request: pytest.FixtureRequest) -> Launch:
    """Submit jobs of the launcher's."""

    def submit(**changes: Any) -> Launched:
        number = len(list(slurm.shared.iterdir()))
        name = request.node.name.split("[")[0].removeprefix("test_")[:30]
        return launch(slurm, slurm.shared / f"{name}-{number}", **changes)

    return submit


def left(lab: Lab) -> list[str]:
    """Return the processes of ours that run on any node."""
    words = ("slurm_launcher", "vllm_pool", "fake-vllm", "envoy")
    return [
        process.command
        for node in range(1, lab.settings.nodes + 1)
        if not lab.crashed(node)
        for process in lab.processes_of(node)
        if any(word in process.command for word in words)
    ]


def test_it_trains_ends_with_the_trainings_code_and_drains_its_replicas(job: Launch) -> None:
    one = job()
    one.wait_event("training_started")
    one.wait_asked()
    said = one.status()
    assert (said["phase"], said["slurm"]) == ("training", "RUNNING")
    # The training has the first nodes, the judges the others; a spare has nothing to do.
    assert len(set(one.nodes("judge-0") + one.nodes("judge-1"))) == 2
    one.end()
    assert one.reason() == {"code": 7, "reason": "the training ended with 7"}
    assert one.lab.wait_ended(one.id).exit_code == 7
    assert "failed 0" in one.output()
    assert one.terms() == sorted(one.nodes("judge-0") + one.nodes("judge-1"))
    assert left(one.lab) == []
    assert (one.logs / "token").stat().st_mode & 0o077 == 0


def test_a_training_survives_its_judges_and_their_balancer(job: Launch) -> None:
    one = job()
    one.wait_event("training_started")
    one.wait_rotation(2)
    # A server dies: it is started again where it was.
    one.kill(one.nodes("judge-0")[0], "fake-vllm")
    one.wait_event("replica_ended")
    one.wait_rotation(2)
    assert one.state()["pools"]["JUDGE"]["replicas"]["judge-0"]["restarts"] == 1
    # Its node dies: another replica has the spare.
    gone = one.nodes("judge-1")[0]
    one.lab.crash(int(gone.removeprefix("n")))
    one.wait_event("replica_ended", 2)
    one.wait_rotation(2)
    assert one.nodes("judge-1") != [gone]
    assert one.state()["pools"]["JUDGE"]["lost_nodes"] == [gone]
    one.wait_asked(50)
    one.end()
    # Not one request has failed, and none was tried twice by the training.
    assert one.reason()["code"] == 7, one.output()[-2000:]
    one.lab.wait_ended(one.id)
    assert left(one.lab) == []


def test_stopped_it_leaves_nothing(job: Launch) -> None:
    one = job()
    one.wait_event("training_started")
    one.command("stop", str(one.config), "--job", str(one.id))
    assert one.reason() == {"code": 1, "reason": "the end was asked for"}
    one.lab.wait_ended(one.id)
    until(lambda: left(one.lab) == [], lambda: f"nothing is left: {left(one.lab)}", SOON)


def test_told_that_time_is_short_the_training_ends_by_itself(job: Launch) -> None:
    one = job()
    one.wait_event("training_started")
    one.wait_asked()
    one.command("drain", str(one.config), "--job", str(one.id))
    assert one.reason() == {"code": 9, "reason": "the training ended with 9"}
    assert len(one.terms()) == 2


def test_a_pool_that_can_never_be_ready_again_ends_the_job_with_the_reason(job: Launch) -> None:
    one = job(min_ready=2, spares=0, max_restarts=0)
    one.wait_event("training_started")
    one.kill(one.nodes("judge-0")[0], "fake-vllm")
    said = one.reason()
    assert said["code"] == 1
    assert "pool JUDGE: 1 of 2 replicas are left, 2 are needed" in said["reason"]
    assert one.lab.wait_ended(one.id).exit_code == 1


def test_without_its_batch_host_the_job_ends_instead_of_holding_nodes(job: Launch) -> None:
    one = job(lease_seconds=5)
    one.wait_event("training_started")
    host = one.lab.job(one.id).batch_host
    one.lab.crash(int(host.removeprefix("n")))
    until(
        lambda: all(each.ended for each in one.lab.components(one.id)),
        "the job has ended", SOON,
    )  # fmt: skip
    until(lambda: left(one.lab) == [], lambda: f"nothing is left: {left(one.lab)}", SOON)


@pytest.mark.parametrize(
    "what",
    [
        "vllm_pool serve",
        pytest.param("envoy", marks=pytest.mark.full),
        pytest.param("vllm_pool manager", marks=pytest.mark.full),
    ],
)
def test_a_part_of_the_balancer_is_killed_and_the_training_goes_on(job: Launch, what: str) -> None:
    one = job()
    one.wait_event("training_started")
    one.wait_rotation(2)
    host = one.lab.job(one.id).batch_host
    one.kill(host, what)
    one.wait_rotation(2)
    one.wait_asked()
    one.end()
    # The port is away for a moment when Envoy dies: a client without a retry may see it.
    assert one.reason()["code"] in (7, 8)


def test_a_training_that_starts_at_once_waits_for_its_judges_itself(job: Launch) -> None:
    gate = 'echo begun; "$0" -m slurm_launcher wait-ready --timeout 60 && echo "$1 is ready"'
    one = job(start="at-once", command=["bash", "-c", gate, sys.executable, "__JUDGE_URL__"])
    assert one.reason()["code"] == 0
    assert "begun" in one.output()
    assert f"{one.state()['pools']['JUDGE']['url']} is ready" in one.output()
    names = [event["event"] for event in one.state()["events"]]
    assert names.index("training_started") < names.index("ready")


def test_what_is_wrong_is_refused_and_nothing_is_started(slurm: Lab) -> None:
    folder = slurm.shared / "wrong"
    with pytest.raises(AssertionError, match="without zeros in front"):
        launch(slurm, folder, replicas="08")
    assert not (folder / "logs").exists()
    assert slurm.exec(["squeue", "--noheader"]).stdout == ""


def test_a_server_that_cannot_be_started_ends_the_job_at_once_and_says_why(job: Launch) -> None:
    one = job(python="/no/such/python")
    said = one.reason()
    assert said["code"] == 1
    assert "cannot be started like this" in said["reason"]
    assert "there is no program '/no/such/python'" in (one.logs / "replica-judge-0.log").read_text()
    assert not one.events("training_started")
