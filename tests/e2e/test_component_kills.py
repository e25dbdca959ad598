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

from support.runs import Runs
from tandem.process import tool_env
from tandem.run.follow import follow

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
WORK = """python -c "
import ray, time
ray.init()
@ray.remote(num_gpus=1)
def work():
    for second in range(90): time.sleep(1)
    return 'worked to the end'
print(ray.get(work.remote()))
" """


def status() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host",
         "--output", "json"],
        check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    # The exit code says what the document says.
    assert (done.returncode == 0) is found["healthy"]
    return found


def components() -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in status()["components"]}


def await_new_pid(name: str, old: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = components()[name]
        if now["pid"] not in (None, old) and now["healthy"]:
            return
        time.sleep(0.5)
    pytest.fail(f"{name} was not brought back within 60 s")


def await_gpus(wanted: int) -> None:
    """Wait until the node offers every GPU: a kubelet that starts has forgotten them."""
    deadline = time.monotonic() + 60
    while (found := status())["gpus"] != wanted or not found["healthy"]:
        assert time.monotonic() < deadline, f"{found['gpus']} GPUs after 60 s, not {wanted}"
        time.sleep(0.5)


def test_the_run_finishes_though_every_component_is_killed_once(
    runs: Runs,
) -> None:
    run = runs.start("survivor", WORK)
    runs.await_job_running(run)
    wanted = status()["gpus_wanted"]
    assert wanted > 0
    for name in COMPONENTS:
        pid = int(components()[name]["pid"])
        os.kill(pid, signal.SIGKILL)
        await_new_pid(name, pid)
        if name == "kubelet":
            await_gpus(wanted)
    verdict = follow(run, timeout=400)
    assert verdict.succeeded, verdict
