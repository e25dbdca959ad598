"""The product's job in its simplest form, on the real cluster with real Ray and real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import runs_program
from support.run_state import left_of
from support.runs import VARIANT, Runs
from tandem.process import tool_env
from tandem.run.collect import pods_of
from tandem.run.end import end_lingering
from tandem.run.follow import follow
from tandem.run.kube import kubectl
from tandem.run.metrics import first_and_last_reward, read_steps
from tandem.run.remove import remove_all, things_of
from tandem.run.shapes import run_of
from tandem.run.status import top_in

pytestmark = pytest.mark.cluster

PNG = b"\x89PNG\r\n\x1a\n"


def demo(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandem.run.demo", "--variant", VARIANT, "--only-run",
         "--output", "json", *args],
        check=False, stdout=subprocess.PIPE, text=True, timeout=1200, env=tool_env(),
    )  # fmt: skip


def test_the_demo_trains_and_keeps_its_results(platform: Path) -> None:
    assert platform.is_file()
    done = demo()
    assert done.returncode == 0
    summary = json.loads(done.stdout)
    assert summary["succeeded"]
    folder = Path(summary["artifacts"])

    steps = read_steps(folder / "metrics.jsonl")
    assert len(steps) >= 15
    versions = [step["weight_version"] for step in steps]
    assert len(set(versions)) == len(versions), "each step trains on weights of its own"
    rewards = first_and_last_reward(steps)
    assert rewards is not None
    assert rewards[1] >= 2 * rewards[0]
    assert (folder / "reward.png").read_bytes().startswith(PNG)
    assert "tandem-metrics" in (folder / "logs" / "driver.log").read_text()
    top = top_in(things_of("tandem", summary["run_id"]))
    assert top is not None, "the RayJob bears the verdict"
    # A minute of them is the ttl.
    deadline = time.monotonic() + 400
    while pods_of(run_of(top)):
        assert time.monotonic() < deadline, "the finished run still holds pods"
        time.sleep(2)


@pytest.mark.full
def test_the_same_as_one_jobset(platform: Path) -> None:
    assert platform.is_file()
    run_id = "e2e-mono"
    try:
        done = runs_program(
            "start", "--variant", "monolithic-jobset", "--run-id", run_id, "--output", "json",
            timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        summary = json.loads(done.stdout)
        first, last = summary["reward_first_last"]
        assert last >= 2 * first
        left = [name for name in left_of("tandem", run_id) if not name.startswith("pod/")]
        assert left == [
            f"jobset.jobset.x-k8s.io/mono-{run_id}",
            f"job.batch/mono-{run_id}-driver-0",
        ]
    finally:
        remove_all("tandem", run_id)


def test_the_exit_code_of_the_training_command_is_the_runs(runs: Runs) -> None:
    run = runs.start("exit-seven", 'python -c "raise SystemExit(7)"')
    verdict = follow(run, timeout=600)
    assert not verdict.succeeded
    assert verdict.exit_code == 7


def test_a_wrong_image_ends_the_wait_and_the_run_and_is_named(runs: Runs) -> None:
    run = runs.start("wrong-image", "true", image="localhost/tandem/no-such-image:dev")
    verdict = follow(run, timeout=400)
    assert not verdict.succeeded
    assert "localhost/tandem/no-such-image:dev" in verdict.message
    assert "images-load" in verdict.fix
    assert end_lingering(run, verdict)
    # The operator lets it go although no job was ever submitted.
    kubectl("wait", "--for=delete", f"rayjob/{run.name}", "-n", run.namespace, "--timeout=60s",
            timeout=70)  # fmt: skip
