"""Whatever of a run dies, all of it ends soon, and says why: real Ray, vLLM and NeMo Gym.

Every fault needs a run of its own; a few that stand for the others are in `make check`, the
whole matrix in `make check-full`.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.cascades import APART, SHAPES, Cascade, Ending, Object, cascade, report
from support.cli import runs_program
from tandem.run.shapes import ROLE_LABEL
from tandem_trainer.metrics import LINE_PREFIX

pytestmark = pytest.mark.cluster

#: From the fault to the end of the run's last pod: GPUs are not held for longer by a dead run.
#: Measured on two cores with other work beside it: 7 to 21.
LIMIT_SECONDS = 30
LIMIT_BYTES = 10_000_000_000

VLLM = "vllm.entrypoints.openai.api_server"
#: A watcher that looks when the pod is gone already knows no more.
EVICTED = {"head-evicted", "head-lost"}
HEAD_RESTARTED = {"head-lost", "head-restarted"}
GONE = {"terminating", "deleted"}


@pytest.fixture
def run(request: pytest.FixtureRequest, platform: Path) -> Iterator[Cascade]:
    assert platform.is_file()
    with cascade(request.param) as made:
        yield made


# Stages: as early as the fault makes sense.
def up(run: Cascade) -> None:
    run.await_up()


def vllm_starts(run: Cascade) -> None:
    run.await_up()
    run.until(lambda: run.processes("rl", VLLM), "a process of vLLM", 300)


def gym_serves(run: Cascade) -> None:
    run.await_published("gym_head_server")


def trains(run: Cascade) -> None:
    run.await_log("driver", f'{LINE_PREFIX}{{"step": 2')


@dataclass(frozen=True, slots=True)
class Fault:
    """What dies, when, and what is to be said of it.

    Attributes:
        stage: Waits until the fault makes sense.
        cause: Makes it.
        rules: The verdicts that are right.
        reason: Pattern of what a person must read; `{role}` is the object that holds a role.
        victim: Group of the pod that dies with it, as a JobSet names it.
        full: Whether it is left to `make check-full`.
    """

    stage: Callable[[Cascade], None]
    cause: Callable[[Cascade], Any]
    rules: set[str]
    reason: str
    victim: str = ""
    full: bool = True


FAULTS = {
    "vllm-killed": Fault(
        trains,
        lambda run: run.kill("rl", VLLM),
        {"registry-error"},
        r"vLLM was ended by signal 9|vLLM ended",
        full=False, victim="driver",
    ),
    "environment-killed": Fault(
        gym_serves,
        lambda run: run.kill("gym", "resources_servers/vowels"),
        {"registry-error"},
        r"server vowels\S* was ended by signal 9",
        victim="(gym-head|driver)",
    ),
    "gym-server-killed": Fault(
        gym_serves, lambda run: run.kill("gym", "-m gym_server"), HEAD_RESTARTED,
        "the head of {gym} is lost", victim="gym-head",
    ),
    "rl-ray-head-killed": Fault(
        up, lambda run: run.kill("rl", "gcs_server"), HEAD_RESTARTED, "the head of {rl} is lost",
        victim="rl-head",
    ),
    "gym-ray-head-killed": Fault(
        up, lambda run: run.kill("gym", "gcs_server"), {"registry-error"},
        "Ray's head of the Gym side ended", victim="gym-head",
    ),
    "worker-pod-deleted": Fault(
        vllm_starts,
        lambda run: run.delete(f"pod/{run.pods('rl', run.shape.worker)[0]['metadata']['name']}"),
        {"registry-error"},
        r"the GPU worker is gone", victim="rl-workers",
    ),
    "driver-killed": Fault(
        up, lambda run: run.kill("driver", "-m gym_server driver"), {"ended-failed"},
        "{driver} failed: .*exit code 137", victim="driver",
    ),
    "rl-deleted": Fault(
        up, lambda run: run.delete(run.refs["rl"]), GONE, "{rl}"
    ),
    "gym-deleted": Fault(
        up, lambda run: run.delete(run.refs["gym"]), GONE, "{gym}"
    ),
    "rl-head-evicted": Fault(
        up, lambda run: run.evict(run.head("rl")), EVICTED, "the head of {rl} is lost",
        full=False, victim="rl-head",
    ),
    "gym-head-evicted": Fault(
        up, lambda run: run.evict(run.head("gym")), EVICTED, "the head of {gym} is lost",
        victim="gym-head",
    ),
}  # fmt: skip


def cases() -> Iterator[Any]:
    """Every variant with every fault; in one object, a side cannot be deleted alone."""
    for variant, shape in SHAPES.items():
        for name, fault in FAULTS.items():
            if name == "gym-deleted" and variant not in APART:
                continue
            full = fault.full or name in shape.left_to_full
            yield pytest.param(variant, name, marks=[pytest.mark.full] if full else [])


@pytest.mark.parametrize(("run", "name"), list(cases()), indirect=["run"])
def test_a_death_ends_the_whole_run_and_is_told(
    run: Cascade, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = FAULTS[name]
    run.start()
    fault.stage(run)
    if fault.stage is trains:
        within_memory(run, capsys)
    ending = run.ending_after(lambda: fault.cause(run))
    report(capsys, name, ending)
    judged(ending, fault.rules, fault.reason, run, fault.victim)


def judged(ending: Ending, rules: set[str], reason: str, run: Cascade, victim: str) -> None:
    """Fail unless the verdict is right, told everywhere, and the run has not ended well."""
    reason = reason.format(**run.refs)
    if victim and run.shape.also_reason:
        reason = f"{reason}|{run.shape.also_reason.format(victim=victim)}"
    assert ending.rules, run.story()
    assert ending.rules <= rules | run.shape.also, ending.verdicts
    assert {verdict["outcome"] for verdict in ending.verdicts} <= {"failed"}
    assert re.search(reason, ending.reasons), ending.reasons
    # Lists of Events show the first line alone.
    lines = [event.partition("\n")[0] for event in ending.events]
    assert any(re.search(reason, line) for line in lines), lines
    assert ending.driver, f"the driver's exit code is {ending.driver}"
    assert ending.seconds <= LIMIT_SECONDS, run.story()
    # What a person sees who asks afterwards.
    status = runs_program("status", run.run_id, timeout=60)
    assert status.returncode == 1, status.stdout
    assert re.search(reason, status.stdout), status.stdout


def within_memory(run: Cascade, capsys: pytest.CaptureFixture[str]) -> None:
    """Fail when the run needs more than a small machine has."""
    used = run.memory()
    assert len(used) == len(run.running())
    with capsys.disabled():
        told = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in sorted(used.items()))
        print(f"\nmemory: {sum(used.values()) / 1e9:.2f} GB (MB: {told})")
    assert sum(used.values()) < LIMIT_BYTES


# -- a side that is late, does not come, or is wrong -------------------------------------


def is_gym(obj: Object, run: Cascade) -> bool:
    return f"{obj['kind']}/{obj['metadata']['name']}" == run.refs["gym"]


def without_gym(obj: Object, run: Cascade, seconds: float) -> Object | None:
    """Leave the Gym side out; of a JobSet, let its head take so long to start.

    As with an image that takes its time: an init container that sleeps.
    """
    if not is_gym(obj, run):
        return obj
    if run.variant in APART:
        return None
    changed = copy.deepcopy(obj)
    [head] = [job for job in changed["spec"]["replicatedJobs"] if job["name"] == "gym-head"]
    pod = head["template"]["spec"]["template"]["spec"]
    same = ("image", "imagePullPolicy", "securityContext")
    late = {key: pod["containers"][0][key] for key in same}
    late |= {"name": "late", "command": ["sleep", str(seconds)]}
    pod.setdefault("initContainers", []).append(late)
    return changed


def with_driver_env(obj: Object, name: str, value: str) -> Object:
    """Return an object with a variable more in the driver's container."""
    changed = copy.deepcopy(obj)
    if obj["kind"] == "JobSet":
        jobs = [job for job in changed["spec"]["replicatedJobs"] if job["name"] == "driver"]
        jobs = [job["template"] for job in jobs]
    else:
        role = (obj["metadata"].get("labels") or {}).get(ROLE_LABEL)
        jobs = [changed] if (obj["kind"], role) == ("Job", "driver") else []
    for job in jobs:
        [container] = job["spec"]["template"]["spec"]["containers"]
        container["env"].append({"name": name, "value": value})
    return changed


@pytest.mark.full
@pytest.mark.parametrize("run", SHAPES, indirect=True)
def test_a_gym_side_that_is_late_is_waited_for(run: Cascade) -> None:
    run.start(lambda obj: without_gym(obj, run, 100))
    run.until(lambda: run.pods("rl", run.shape.heads["rl"]), "the RL side", 60)
    time.sleep(90)
    assert "gym_server" not in run.registry()
    assert len(run.pods("driver")) == 1
    assert "gym-announced" in run.log("driver")
    assert "starting vLLM" not in run.log("driver")
    if run.variant in APART:
        run.apply(lambda obj: obj if is_gym(obj, run) else None)
    trains(run)


@pytest.mark.full
@pytest.mark.parametrize("run", SHAPES, indirect=True)
def test_a_gym_side_that_never_comes_is_named_before_any_model_is_loaded(
    run: Cascade, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(obj: Object) -> Object | None:
        left = without_gym(obj, run, 600)
        return left and with_driver_env(left, "DRIVER_GYM_ANNOUNCED_SECONDS", "30")

    run.observe()
    run.start(change)
    run.await_log("driver", '"phase": "gym-announced"', 120)
    logs: list[str] = []

    def over() -> bool:
        log = run.log("driver")
        logs.append(log)
        return not run.running()

    run.until(over, "the end of the run", 120)
    assert not any("starting vLLM" in log for log in logs)
    ending = run.ending()
    report(capsys, "gym-never-comes", ending)
    assert ending.driver == 4
    assert ending.rules <= {"registry-error", "ended-failed"}
    assert "gym-announced: the Gym side: no key `gym_server`" in ending.reasons


@pytest.mark.parametrize("run", SHAPES, indirect=True)
def test_a_wrong_gym_config_is_refused_within_seconds_by_its_path(
    run: Cascade, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(obj: Object) -> Object:
        changed = copy.deepcopy(obj)
        if obj["kind"] == "ConfigMap" and "gym.yaml" in obj.get("data", {}):
            changed["data"]["gym.yaml"] += "  - resources_servers/not-there.yaml\n"
        return changed

    def start() -> None:
        run.start(change)
        run.until(run.running, "a pod of the run", 30)

    # Most of it is the start of pods; what it would take to load a model is not begun.
    ending = run.ending_after(start)
    report(capsys, "wrong-gym-config", ending)
    assert ending.rules == {"registry-error"}
    missing = r"config_paths\[2\]: 'resources_servers/not-there.yaml' was not found"
    assert re.search(missing, ending.reasons), ending.reasons
    assert any(re.search(missing, event) for event in ending.events), ending.events
    assert ending.driver != 0, "it waits in an init container, or has failed"
    assert ending.seconds < 90
