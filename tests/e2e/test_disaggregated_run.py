"""Training, NeMo Gym and driver as one run on the real cluster: real Ray, vLLM and NeMo Gym.

By the commands that people use: `make run`, `status`, `logs`, `stop`, `clean`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import object_name
from support.cli import runs_program
from support.run_state import left_of, wait_for_gym
from tandem.paths import ARTIFACTS
from tandem.process import tool_env
from tandem.run.kube import kubectl
from tandem.run.metrics import first_and_last_reward, read_steps
from tandem.run.remove import remove_all

pytestmark = pytest.mark.cluster

VARIANT = "disagg-rayclusters"
#: Each with the object that bears the verdict, and the pods that end with it.
BEARERS = {
    "disagg-rayclusters": ("job.batch/driver-{}",),
    "disagg-jobset": ("jobset.jobset.x-k8s.io/run-{}", "job.batch/run-{}-driver-0"),
    "disagg-rayclusters-judge": ("job.batch/driver-{}",),
}
JUDGED = "disagg-rayclusters-judge"
NAMESPACE = "tandem"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run_id(platform: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The id of this test's run; nothing of it is left afterwards."""
    assert platform.is_file()
    name = f"e2e-{abs(hash(request.node.nodeid)) % 10**6}"
    yield name
    remove_all(NAMESPACE, name)


@pytest.mark.parametrize(
    "variant",
    [
        VARIANT,
        *(pytest.param(other, marks=pytest.mark.full) for other in BEARERS if other != VARIANT),
    ],
)
def test_it_trains_with_gym_and_leaves_nothing_but_its_verdict(run_id: str, variant: str) -> None:
    done = runs_program(
        "start", "--variant", variant, "--run-id", run_id, "--output", "json", timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["reason"].lower() == "succeeded"
    folder = ARTIFACTS / run_id

    steps = read_steps(folder / "metrics.jsonl")
    assert len(steps) >= 15
    # What vLLM says that it serves, after each step's refit.
    versions = [int(step["weight_version"].removeprefix("step-")) for step in steps]
    assert versions == list(range(1, len(steps) + 1)), "each step trains on weights of its own"
    rewards = first_and_last_reward(steps)
    assert rewards is not None
    assert rewards[1] >= 2 * rewards[0]
    assert (folder / "reward.png").read_bytes().startswith(PNG)
    # The roles' words are kept, though all pods are gone.
    kept = {path.name.partition(".")[0] for path in (folder / "logs").glob(f"*{run_id}*.log")}
    assert {"rl", "gym", "driver", "watcher"} <= kept
    # Gym began when it knew its judge.
    assert ("pool" in kept) == (variant == JUDGED)
    assert "first step" in summary["marks_seconds"]

    # All that is left bears the verdict, with the driver's pod, which has ended.
    left = [name for name in left_of(NAMESPACE, run_id) if not name.startswith("pod/")]
    assert sorted(left) == sorted(name.format(run_id) for name in BEARERS[variant])
    status = runs_program("status", run_id, "--output", "json", timeout=60)
    assert status.returncode == 0
    told = json.loads(status.stdout)
    assert (told["state"], told["verdict"]["reason"].lower()) == ("succeeded", "succeeded")

    # It makes room for the next one of its id; `clean` takes it away, and the logs stay.
    cleaned = runs_program("clean", run_id, timeout=200)
    assert cleaned.returncode == 0, cleaned.stderr
    assert left_of(NAMESPACE, run_id) == []
    logs = runs_program("logs", run_id, timeout=60)
    assert "tandem-metrics" in logs.stdout
    assert json.loads(runs_program("status", run_id, "--output", "json", timeout=60).stdout)[
        "state"
    ] == "succeeded"  # fmt: skip


def test_two_runs_at_once_never_meet(run_id: str) -> None:
    other = f"{run_id}-b"
    words = ("start", "--variant", VARIANT, "--run-id", run_id)
    try:
        beside = runs_program(*words[:3], "--run-id", other, "--detach", timeout=120)
        assert beside.returncode == 0, beside.stderr
        with subprocess.Popen(
            [sys.executable, "-m", "tandem.runs", *words, "--output", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tool_env(),
        ) as first:  # fmt: skip
            try:
                for each in (run_id, other):
                    wait_for_gym(NAMESPACE, each)
                each_has_its_own_gym(run_id, other)
                a_second_start_is_refused(words, run_id)
                kubectl("delete", "raycluster", f"gym-{run_id}", "-n", NAMESPACE, "--wait=false")
                out, told = first.communicate(timeout=240)
            finally:
                if first.poll() is None:
                    first.kill()
        # One side was deleted: all of this run has gone, and says why; the other one goes on.
        assert first.returncode == 1
        summary = json.loads(out)
        assert not summary["succeeded"]
        assert f"RayCluster/gym-{run_id}" in summary["message"], told[-3000:]
        assert left_of(NAMESPACE, run_id) == []
        status = runs_program("status", run_id, timeout=60)
        assert status.returncode == 1, "the verdict is still there for who asks"
        assert f"RayCluster/gym-{run_id}" in status.stdout
        going = json.loads(runs_program("status", other, "--output", "json", timeout=60).stdout)
        assert going["state"] in ("starting", "running"), going

        refused = runs_program("clean", other, timeout=60)
        assert refused.returncode == 3
        assert "is still going" in refused.stderr
        stopped = runs_program("stop", other, timeout=240)
        assert stopped.returncode == 0, stopped.stderr
        assert left_of(NAMESPACE, other) == []
        assert "gym" in runs_program("logs", other, timeout=60).stdout, "its words were kept"
        status = runs_program("status", other, "--output", "json", timeout=60)
        assert status.returncode == 1
        assert json.loads(status.stdout)["state"] == "stopped"
    finally:
        remove_all(NAMESPACE, other)


def each_has_its_own_gym(*run_ids: str) -> None:
    for each in run_ids:
        address = kubectl(
            "get", "configmap", object_name(each), "-n", NAMESPACE,
            "-o", "jsonpath={.data.gym_head_server}",
        )  # fmt: skip
        ip = kubectl(
            "get", "pods", "-n", NAMESPACE, f"--selector=ray.io/cluster=gym-{each}",
            "-o", "jsonpath={.items[0].status.podIP}",
        )  # fmt: skip
        assert f"//{ip}:" in address, each


def a_second_start_is_refused(words: tuple[str, ...], run_id: str) -> None:
    second = runs_program(*words, timeout=60)
    assert second.returncode == 3
    assert f"run {run_id} is still going" in second.stderr
    assert f"make stop RUN_ID={run_id}" in second.stderr
    status = runs_program("status", run_id, timeout=60)
    assert status.returncode == 0
    for said in (run_id, VARIANT, "rl/head", "gym/head", "gym_head_server = http"):
        assert said in status.stdout
