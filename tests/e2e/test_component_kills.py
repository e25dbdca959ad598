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


def components() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host",
         "--output", "json"],
        check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
    )  # fmt: skip
    return {c["name"]: c for c in json.loads(done.stdout)["components"]}


def await_new_pid(name: str, old: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = components()[name]
        if now["pid"] not in (None, old) and now["healthy"]:
            return
        time.sleep(0.5)
    pytest.fail(f"{name} was not brought back within 60 s")


def test_the_run_finishes_though_every_component_is_killed_once(
    runs: Runs,
) -> None:
    run = runs.start("survivor", WORK)
    runs.await_job_running(run)
    for name in COMPONENTS:
        pid = int(components()[name]["pid"])
        os.kill(pid, signal.SIGKILL)
        await_new_pid(name, pid)
    verdict = follow(run, timeout=400)
    assert verdict.succeeded, verdict
