"""Kill -9 of each of the cluster's processes while a RayJob runs: the run finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from support.runs import Runs, pod
from tandem.errors import UserError
from tandem.process import tool_env
from tandem.run.follow import follow
from tandem.run.kube import kubectl
from tandem.run.shapes import Run

pytestmark = pytest.mark.cluster

COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
)
#: Made in the worker when every component has been killed: until then the run must go on.
MAY_END = "/dev/shm/may-end"  # noqa: S108 - in a pod
WORK = f"""python -c "
import os, ray, time
ray.init()
@ray.remote(num_gpus=1)
def work():
    for second in range(800):
        if os.path.exists('{MAY_END}'): return 'worked to the end'
        time.sleep(1)
    raise TimeoutError('nobody let it end')
print(ray.get(work.remote()))
" """


def status() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host",
         "--output", "json"],
        check=False, capture_output=True, text=True, env=tool_env(), timeout=60,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    # The exit code says what the document says.
    assert (done.returncode == 0) is found["healthy"]
    return found


def await_healthy(but: int | None = None) -> dict[str, int]:
    """Wait until all is healthy, GPUs too, without one process; return the processes."""
    # A component that is killed may take others with it, and its kubelet forgets the GPUs.
    # The deadline is far beyond what a free machine needs: only a hang may use it up.
    deadline = time.monotonic() + 180
    while True:
        now = status()
        pids = {c["name"]: c["pid"] for c in now["components"]}
        if now["healthy"] and but not in pids.values():
            assert now["gpus"] == now["gpus_wanted"] > 0
            return pids
        assert time.monotonic() < deadline, f"process {but} was not replaced by a sound one: {now}"
        time.sleep(0.5)


def let_end(run: Run, worker: str) -> None:
    """Let the worker's work end; the kubelet is a new one, and may still look for its pods."""
    deadline = time.monotonic() + 180
    while True:
        try:
            kubectl("exec", "-n", run.namespace, worker, "-c", "ray-worker", "--", "touch", MAY_END)
        except UserError:
            assert time.monotonic() < deadline, "the worker cannot be reached"
            time.sleep(1)
        else:
            return


def test_the_run_finishes_though_every_component_is_killed_once(
    runs: Runs,
) -> None:
    run = runs.start("survivor", WORK)
    runs.await_job_running(run)
    head, worker = pod(run, "head"), pod(run, "worker")
    for name in COMPONENTS:
        old = await_healthy()[name]
        os.kill(old, signal.SIGKILL)
        await_healthy(but=old)
    let_end(run, worker)
    # The same pods: nothing was started anew behind the run's back.
    assert (pod(run, "head"), pod(run, "worker")) == (head, worker)
    verdict = follow(run, timeout=600)
    assert verdict.succeeded, verdict
