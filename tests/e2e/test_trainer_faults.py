"""What the run says when the serving half of a colocated worker dies under it."""

from __future__ import annotations

import time

import pytest

from support.runs import Runs, pod
from tandem.errors import UserError
from tandem.run.follow import follow
from tandem.run.kube import kubectl
from tandem.run.metrics import HEAD_FILE
from tandem.run.shapes import Run

pytestmark = pytest.mark.cluster

LONG = "python -m tandem_trainer.colocated --output /artifacts/run --steps 1000"


def _steps(run: Run, head: str) -> int:
    try:
        said = kubectl("exec", "-n", run.namespace, head, "--", "cat", HEAD_FILE)
    except UserError:
        return 0  # not written yet
    return len(said.splitlines())


# What it says of an engine is tested with a fake vLLM too (tests/unit/trainer), and a real one is
# killed in test_cascades.
@pytest.mark.full
def test_a_dead_engine_ends_the_run_within_seconds_and_is_named(runs: Runs) -> None:
    run = runs.start("engine-dead", LONG)
    runs.await_job_running(run)
    head, worker = pod(run, "head"), pod(run, "worker")
    # vLLM loads within 20 s on two free cores.
    deadline = time.monotonic() + 400
    while _steps(run, head) < 2:
        assert time.monotonic() < deadline, "the run trains nothing"
        time.sleep(1)

    # The HTTP server in front of the engine lives on, and would let callers wait for ever.
    kubectl(
        "exec", "-n", run.namespace, worker, "-c", "ray-worker", "--",
        # The brackets keep the pattern from matching this very shell.
        "bash", "-c", "kill -9 $(pgrep -f '[V]LLM::EngineCore')",
    )  # fmt: skip
    # Without the check of the engine's health the run would go on to the RayJob's own deadline,
    # 900 s, which says other words.
    verdict = follow(run, timeout=300)
    assert not verdict.succeeded
    assert verdict.exit_code == 1
    assert "engine is dead" in verdict.message
