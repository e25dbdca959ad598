"""What Slurm really does where a launcher relies on it, and that the lab leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.slurm_lab import leftovers
from support.slurm_lab.lab import Lab
from support.slurm_lab.labs import Labs
from support.slurm_lab.namespaces import Program, until
from support.slurm_lab.settings import address

SOON = 30.0
#: Notes TERM and USR1, and takes a second to end after a TERM.
TASK = """
note() { echo "$1" >> "$NOTES"; }
trap 'note TERM; sleep 1; note drained; exit 0' TERM
trap 'note USR1' USR1
note up
while :; do sleep 0.05; done
"""


@dataclass(frozen=True)
class Step:
    """A step whose tasks note their signals, with the srun that has started it."""

    id: str
    srun: Program
    notes: Path
    log: Path

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    def wait_noted(self, word: str, times: int = 1) -> None:
        until(
            lambda: self.noted().count(word) >= times,
            lambda: f"{times} times {word}: {self.noted()} {self.log.read_text()}",
            SOON,
        )


Starter = Callable[..., Step]


@pytest.fixture
def start(slurm: Lab) -> Iterator[Starter]:
    """Start a step of a job that is there."""
    started: list[Step] = []

    def starter(job: int, *options: str, tasks: int = 1) -> Step:
        notes = slurm.shared / f"notes-{job}-{len(started)}"
        log = notes.with_suffix(".log")
        before = set(slurm.steps())
        words = ["srun", f"--jobid={job}", "--overlap", *options, "sh", "-c", TASK]
        srun = slurm.start(words, log=log, env={"NOTES": str(notes)})
        started.append(made := Step("", srun, notes, log))
        made.wait_noted("up", tasks)
        [step] = set(slurm.steps()) - before
        return Step(step, srun, notes, log)

    yield starter
    for each in started:
        each.srun.kill()


def test_each_node_is_a_host_of_its_own(slurm: Lab) -> None:
    (slurm.shared / "seen-by-all").write_text("yes")
    own = ["/tmp/slurm-lab-own", "/dev/shm/slurm-lab-own"]  # noqa: S108 - the node's
    slurm.node(1, ["touch", *own])
    for node in (1, 6):
        assert slurm.node(node, ["hostname"]).stdout.strip() == f"n{node}"
        assert address(node) in slurm.node(node, ["ip", "-4", "addr", "show", "eth0"]).stdout
        assert slurm.node(node, ["cat", slurm.shared / "seen-by-all"]).stdout == "yes"
    for path in own:
        assert slurm.node(1, ["ls", path]).stdout.strip() == path
        assert slurm.node(6, ["ls", path], check=False).returncode
        assert not Path(path).exists()
    assert slurm.processes_of(1) == []


@pytest.mark.parametrize("sizes", [(2, 3), (2, 1, 3)])
def test_a_step_runs_on_the_nodes_of_its_component(slurm: Lab, sizes: tuple[int, ...]) -> None:
    script = "\n".join(
        [
            "set -e", "echo size $SLURM_HET_SIZE", "echo first $SLURM_JOB_NODELIST",
            *(f"echo list {i} $SLURM_JOB_NODELIST_HET_GROUP_{i}" for i in range(len(sizes))),
            *(f"srun --het-group={i} sh -c 'echo on {i} $(hostname)'" for i in range(len(sizes))),
            "srun sh -c 'echo on first $(hostname)'",
        ]
    )  # fmt: skip
    job = slurm.submit(script, *([f"-N{size}", "--exclusive"] for size in sizes))
    assert slurm.wait_ended(job).exit_code == 0, slurm.output(job)

    components = slurm.components(job)
    assert [component.offset for component in components] == list(range(len(sizes)))
    assert [len(component.nodes) for component in components] == list(sizes)
    said = slurm.output(job)
    assert f"size {len(sizes)}" in said
    nodes = [node for component in components for node in component.nodes]
    assert len(set(nodes)) == sum(sizes)
    for component in components:
        ran = {line.split()[-1] for line in said.splitlines() if f"on {component.offset} " in line}
        assert ran == set(component.nodes)
    # Without --het-group a step is the first component's, and so are the variables without one.
    first = {line.split()[-1] for line in said.splitlines() if "on first " in line}
    assert first == set(components[0].nodes)
    told = dict(line.rsplit(maxsplit=1) for line in said.splitlines() if line.startswith("list "))
    assert told["list 0"] in said.partition("first ")[2].splitlines()[0]


def test_two_steps_share_a_node_s_gpus(slurm: Lab) -> None:
    job = slurm.allocate(["-N1", "--exclusive"])
    half = [
        "srun",
        f"--jobid={job}",
        "--exact",
        "-n1",
        "-c2",
        "--mem=0",
        "--gres=gpu:2",
        "sh",
        "-c",
    ]
    script = "echo $CUDA_VISIBLE_DEVICES > $FILE; while [ ! -s $OTHER ]; do sleep 0.05; done"
    files = [slurm.shared / "gpus-0", slurm.shared / "gpus-1"]
    steps = [
        slurm.start([*half, script], env={"FILE": str(mine), "OTHER": str(other)})
        for mine, other in (files, reversed(files))
    ]
    # Each ends when it has seen the other: they ran at the same time.
    assert [step.wait(SOON) for step in steps] == [0, 0]
    assert sorted(file.read_text().strip() for file in files) == ["0,1", "2,3"]


def test_scancel_of_a_step_lets_its_tasks_see_term_and_drain(slurm: Lab, start: Starter) -> None:
    job = slurm.allocate(["-N2"])
    step = start(job, "-N2", tasks=2)
    slurm.exec(["scancel", "--signal=TERM", step.id])
    assert step.srun.wait(SOON) == 0
    assert sorted(step.noted()) == ["TERM", "TERM", "drained", "drained", "up", "up"]


def test_term_to_srun_kills_its_tasks_before_they_see_it(slurm: Lab, start: Starter) -> None:
    job = slurm.allocate(["-N2"])
    step = start(job, "-N2", tasks=2)
    step.srun.signal(signal.SIGTERM)
    assert step.srun.wait(SOON) != 0
    assert step.noted() == ["up", "up"]
    until(lambda: slurm.steps() == [], "the step has ended", SOON)
    assert step.noted() == ["up", "up"]


def test_usr1_to_srun_is_forwarded_to_its_tasks(slurm: Lab, start: Starter) -> None:
    job = slurm.allocate(["-N2"])
    step = start(job, "-N2", tasks=2)
    step.srun.signal(signal.SIGUSR1)
    step.wait_noted("USR1", 2)
    assert step.srun.running


def test_a_crashed_node_ends_only_its_own_step_when_no_component_is_killed_for_it(
    slurm: Lab, start: Starter
) -> None:
    job = slurm.allocate(["-N2", "--no-kill"], ["-N2", "--no-kill"])
    leader, service = slurm.components(job)
    lost, kept = service.nodes
    steps = {
        node: start(job, f"--het-group={group}", "-N1", "-n1", f"--nodelist={node}")
        for group, node in ((0, leader.nodes[1]), (1, lost), (1, kept))
    }

    slurm.crash(int(lost.removeprefix("n")))
    # What SlurmdTimeout does later: until then nobody sees that the node is dead.
    slurm.declare_down(int(lost.removeprefix("n")))

    # srun calls it a success; what tells is its message.
    assert steps[lost].srun.wait(SOON) == 0
    assert f"Node failure on {lost}" in steps[lost].log.read_text()
    assert slurm.states()[lost].startswith("down")
    assert [component.state for component in slurm.components(job)] == ["RUNNING", "RUNNING"]
    for node in (leader.nodes[1], kept):
        slurm.exec(["scancel", "--signal=USR1", steps[node].id], check=False)
        steps[node].wait_noted("USR1")
        assert steps[node].srun.running


def test_a_lost_node_ends_the_whole_job_when_only_the_service_may_lose_one(slurm: Lab) -> None:
    job = slurm.submit("sleep 300", ["-N2", "--no-kill=off"], ["-N2", "--no-kill"])
    slurm.wait_running(job)
    slurm.declare_down(int(slurm.components(job)[1].nodes[0].removeprefix("n")))
    slurm.wait(job, lambda seen: seen.state != "RUNNING", "runs no more")


@pytest.mark.full
def test_a_node_that_was_cut_off_comes_back_without_its_steps(slurm: Lab, start: Starter) -> None:
    job = slurm.allocate(["-N2", "--no-kill"])
    node = slurm.job(job).nodes[1]
    number = int(node.removeprefix("n"))
    step = start(job, "-N1", "-n1", f"--nodelist={node}")
    slurm.cut(number)
    until(lambda: slurm.states()[node].startswith("down"), "it is down", SOON)
    assert any(TASK.split(maxsplit=1)[0] in each.command for each in slurm.processes_of(number))
    slurm.heal(number)
    assert step.srun.wait(SOON) == 0
    until(lambda: slurm.states()[node] == "idle", "it is idle", SOON)
    until(lambda: slurm.processes_of(number) == [], "its tasks have ended", SOON)


@pytest.mark.full
def test_jobs_outlive_a_restart_of_the_controller(slurm: Lab, start: Starter) -> None:
    job = slurm.allocate(["-N1"])
    step = start(job)
    slurm.stop_slurmctld()
    assert slurm.exec(["squeue"], check=False).returncode != 0
    slurm.start_slurmctld()
    until(lambda: slurm.steps() == [step.id], "the step is known", SOON)
    slurm.exec(["scancel", "--signal=TERM", step.id])
    assert step.srun.wait(SOON) == 0
    assert "drained" in step.noted()


def test_a_program_that_has_left_its_step_ends_with_the_job_by_the_freezer_alone(
    slurm: Lab,
) -> None:
    job = slurm.submit("setsid setsid sleep 300 &\nsleep 300", ["-N1"])
    slurm.wait_running(job)
    node = int(slurm.job(job).batch_host.removeprefix("n"))
    until(
        lambda: sum("sleep 300" in each.command for each in slurm.processes_of(node)) == 2,
        "both run", SOON,
    )  # fmt: skip
    slurm.exec(["scancel", str(job)])
    slurm.wait_idle()
    left = [each.command for each in slurm.processes_of(node)]
    assert left == ([] if slurm.settings.proctrack == "cgroup" else ["sleep 300"])


def test_container_flags_reach_the_task(slurm: Lab) -> None:
    data, inside = slurm.shared / "data", slurm.shared / "inside" / "data"
    data.mkdir()
    (data / "file").write_text("of the mount")
    assert not inside.exists()
    said = slurm.exec(
        [
            "srun", "-N1", "--container-image=registry#image:tag",
            f"--container-mounts={data}:{inside}:ro,/etc/hosts",
            f"--container-workdir={inside}", "--container-name=judge", "--no-container-mount-home",
            "sh", "-c", "pwd; cat file; touch file 2>&1; env | grep ^FAKE_ | sort",
        ]
    ).stdout.splitlines()  # fmt: skip
    assert said[0] == str(inside)
    assert "of the mount" in said[1]
    assert "Read-only" in said[1] + said[2]
    assert {
        "FAKE_CONTAINER_IMAGE=registry#image:tag", "FAKE_CONTAINER_NAME=judge",
        "FAKE_CONTAINER_MOUNT_HOME=0", f"FAKE_CONTAINER_WORKDIR={inside}",
        f"FAKE_CONTAINER_MOUNTS={data}:{inside}:ro,/etc/hosts",
    } <= set(said)  # fmt: skip
    # The mount was the task's alone.
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--container-image=missing.sqsh"], "no such image: missing.sqsh"),
        (["--container-image=/nowhere/image.sqsh"], "no such image: /nowhere/image.sqsh"),
        (["--container-image=a", "--container-mounts=/nowhere:/tmp/x"], "mount source /nowhere"),
        (["--container-image=a", "--container-mounts=/etc:/opt/none"], "/opt/none does not exist"),
        (["--container-image=a", "--container-workdir=/nowhere"], "chdir /nowhere"),
    ],
)
def test_a_container_that_cannot_start_fails_its_step(
    slurm: Lab, flags: list[str], message: str
) -> None:
    done = slurm.exec(["srun", "-N1", *flags, "echo", "started"], check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert "started" not in done.stdout
    assert not Path("/opt/none").exists()


def test_one_kill_ends_a_lab_and_leaves_nothing(slurm_labs: Labs) -> None:
    lab = slurm_labs(nodes=2, gpus=0)
    job = lab.submit("setsid sleep 300 &\nsleep 300", ["-N2"])
    lab.wait_running(job)
    told = " ".join(lab.leftovers())
    assert "slurmctld" in told
    assert ("cgroup" in told) == (lab.settings.proctrack == "cgroup")
    until(lambda: "sleep 300" in " ".join(lab.leftovers()), "the job's programs run", SOON)

    os.kill(lab.pid, signal.SIGKILL)
    until(lambda: not leftovers.processes(lab.folder), "all have ended", SOON)
    lab.down()
    assert lab.leftovers() == []
    assert lab.pid == 0


def test_two_labs_do_not_meet(slurm: Lab, slurm_labs: Labs) -> None:
    other = slurm_labs(nodes=1)
    job = other.allocate(["-N1"])
    assert other.job(job).state == "RUNNING"
    assert slurm.is_idle()
    other.down()
    assert slurm.is_idle()
