"""Runs of the tests' own: changed copies of a variant's RayJob on the real cluster."""

from __future__ import annotations

import copy
import json
import subprocess
import time
from typing import Any

import pytest

from tandem.process import tool_env
from tandem.render import render_variant
from tandem.run.follow import RunName
from tandem.run.kube import get, kubectl, the_rayjob

VARIANT = "monolithic-rayjob"


class Runs:
    """Applies changed copies of the variant's RayJob and removes them again."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str]] = []

    def start(self, name: str, entrypoint: str, image: str = "") -> RunName:
        rayjob = copy.deepcopy(the_rayjob(render_variant(VARIANT), VARIANT))
        rayjob["metadata"]["name"] = name
        rayjob["spec"]["entrypoint"] = entrypoint
        if image:
            cluster = rayjob["spec"]["rayClusterSpec"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                for container in group["template"]["spec"]["containers"]:
                    container["image"] = image
        namespace = rayjob["metadata"]["namespace"]
        self._names.append((namespace, name))
        self._apply(rayjob)
        applied = get("rayjobs.ray.io", namespace, name=name)
        assert applied is not None
        return RunName(namespace, name, applied["metadata"]["uid"], "/artifacts/run/metrics.jsonl")

    @staticmethod
    def _apply(rayjob: dict[str, Any]) -> None:
        done = subprocess.run(
            ["kubectl", "apply", "-f", "-"],
            check=False, input=json.dumps(rayjob), text=True, capture_output=True,
            env=tool_env(), timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def remove(self) -> None:
        for namespace, name in self._names:
            kubectl(
                "delete", "rayjob", name, "-n", namespace, "--ignore-not-found", "--timeout=90s",
                timeout=100,
            )  # fmt: skip

    @staticmethod
    def await_job_running(run: RunName, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = get("rayjobs.ray.io", run.namespace, name=run.name) or {}
            if (found.get("status") or {}).get("jobStatus") == "RUNNING":
                return
            time.sleep(0.5)
        pytest.fail(f"run {run.name} did not start within {seconds:.0f} s")
