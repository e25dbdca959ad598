"""Twenty runs that die, one after the other: nothing of them is left in the cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.run_state import left_of, namespace_holds, wait_until_up
from tandem.process import tool_env
from tandem.run.kube import kubectl
from tandem.run.remove import remove_all

pytestmark = [pytest.mark.cluster, pytest.mark.full]

NAMESPACE = "tandem"
ROUNDS = 20
#: What dies in turn: a selector of pods, beside the run's own label.
VICTIMS = ("tandem.dev/role=gym", "tandem.dev/role=driver", "tandem.dev/role=rl")
#: What stays until its time is over, to bear the verdict: a JobSet with those of its Jobs that
#: have ended. Two RayClusters are gone; Events tell why.
BEARERS: dict[str, set[str]] = {
    "disagg-rayclusters": set(),
    "disagg-jobset": {"jobset.jobset.x-k8s.io", "job.batch"},
}


@pytest.mark.parametrize("variant", BEARERS)
def test_twenty_cascades_leave_nothing(platform: Path, variant: str) -> None:
    assert platform.is_file()
    before = namespace_holds(NAMESPACE)
    for number in range(ROUNDS // 2):
        run_id = f"leak-{number}"
        try:
            die(variant, run_id, VICTIMS[number % len(VICTIMS)])
            left = namespace_holds(NAMESPACE) - before
            assert set(left) <= BEARERS[variant], f"{run_id} left {left_of(NAMESPACE, run_id)}"
        finally:
            remove_all(NAMESPACE, run_id)
    # Of every kind, bearing our labels or not.
    assert namespace_holds(NAMESPACE) == before


def die(variant: str, run_id: str, victim: str) -> None:
    """Start a run as a person does, end one of its parts once all of it is up, see it fail."""
    with subprocess.Popen(
        [sys.executable, "-m", "tandem.runs", "start", "--variant", variant, "--run-id", run_id,
         "--output", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tool_env(),
    ) as follower:  # fmt: skip
        try:
            wait_until_up(NAMESPACE, run_id)
            kubectl(
                "delete", "pods", "-n", NAMESPACE, "--grace-period=0", "--force",
                f"--selector=tandem.dev/run-id={run_id},{victim}",
            )  # fmt: skip
            out, told = follower.communicate(timeout=240)
        finally:
            if follower.poll() is None:
                follower.kill()
    assert follower.returncode != 0, told[-3000:]
    assert not json.loads(out)["succeeded"]
