"""What the run says when the serving half of a colocated worker dies under it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.runs import Runs
from tandem.errors import UserError
from tandem.run.collect import pods_of
from tandem.run.follow import RunName, follow
from tandem.run.kube import get, kubectl

pytestmark = pytest.mark.cluster

LONG = "python -m tandem_trainer.colocated --output /artifacts/run --steps 1000"


def _pod(run: RunName, kind: str) -> str:
    rayjob: dict[str, Any] = get("rayjobs.ray.io", run.namespace, name=run.name) or {}
    for pod in pods_of(run.namespace, rayjob["status"]["rayClusterName"]):
        if pod["metadata"]["labels"].get("ray.io/node-type") == kind:
            return str(pod["metadata"]["name"])
    pytest.fail(f"run {run.name} has no {kind} pod")


def _steps(run: RunName, head: str) -> int:
    try:
        said = kubectl("exec", "-n", run.namespace, head, "--", "cat", run.metrics_path)
    except UserError:
        return 0  # not written yet
    return len(said.splitlines())


def test_a_dead_engine_ends_the_run_within_seconds_and_is_named(runs: Runs) -> None:
    run = runs.start("engine-dead", LONG)
    runs.await_job_running(run)
    head, worker = _pod(run, "head"), _pod(run, "worker")
    deadline = time.monotonic() + 180
    while _steps(run, head) < 2:
        assert time.monotonic() < deadline, "the run trains nothing"
        time.sleep(1)

    # The HTTP server in front of the engine lives on, and would let callers wait for ever.
    kubectl(
        "exec", "-n", run.namespace, worker, "-c", "ray-worker", "--",
        # The brackets keep the pattern from matching this very shell.
        "bash", "-c", "kill -9 $(pgrep -f '[V]LLM::EngineCore')",
    )  # fmt: skip
    verdict = follow(run, timeout=120)
    assert not verdict.succeeded
    assert verdict.exit_code == 1
    rayjob = get("rayjobs.ray.io", run.namespace, name=run.name)
    assert rayjob is not None
    assert "engine is dead" in rayjob["status"]["message"]
