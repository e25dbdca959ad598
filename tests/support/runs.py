"""Runs of the tests' own: changed copies of a variant's RayJob on the real cluster."""

from __future__ import annotations

import copy
import time

import pytest

from peer_watcher.convert import RUN_ID_LABEL
from support import on_cluster
from tandem.errors import UserError
from tandem.render import render_variant
from tandem.run.collect import pods_of
from tandem.run.kube import get, kubectl
from tandem.run.shapes import Run, top_of
from tandem_common.kube.resources import RAYJOBS

VARIANT = "monolithic-rayjob"


class Runs:
    """Applies changed copies of the variant's RayJob and removes them again."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str]] = []

    def start(self, name: str, entrypoint: str, image: str = "") -> Run:
        rayjob = copy.deepcopy(top_of(render_variant(VARIANT), VARIANT))
        rayjob["metadata"]["name"] = name
        rayjob["spec"]["entrypoint"] = entrypoint
        rayjob["metadata"]["labels"][RUN_ID_LABEL] = name
        cluster = rayjob["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            group["template"]["metadata"]["labels"][RUN_ID_LABEL] = name
            if image:
                for container in group["template"]["spec"]["containers"]:
                    container["image"] = image
        namespace = rayjob["metadata"]["namespace"]
        self._names.append((namespace, name))
        on_cluster.apply(rayjob)
        applied = get("rayjobs.ray.io", namespace, name=name)
        assert applied is not None
        return Run(namespace, name, RAYJOBS, name, applied["metadata"]["uid"])

    def remove(self) -> None:
        """Remove the runs with their pods: the next test has the machine for itself."""
        for namespace, name in self._names:
            kubectl(
                "delete", "rayjob", name, "-n", namespace, "--ignore-not-found", "--timeout=240s",
                timeout=250,
            )  # fmt: skip
            deadline = time.monotonic() + 240
            while pods_of(Run(namespace, name, RAYJOBS, name, "")):
                assert time.monotonic() < deadline, f"pods of {name} live on"
                # Nobody waits for what they would still do in their half minute of grace.
                kubectl(
                    "delete", "pods", "-n", namespace, f"--selector={RUN_ID_LABEL}={name}",
                    "--ignore-not-found", "--grace-period=1", "--wait=false",
                )  # fmt: skip
                time.sleep(1)

    @staticmethod
    def job_status(run: Run) -> str:
        """Ray's word for the job's state; "" while there is none or nobody answers."""
        try:
            found = get("rayjobs.ray.io", run.namespace, name=run.name) or {}
        except UserError:
            return ""
        return str((found.get("status") or {}).get("jobStatus") or "")

    # Ray alone needs 20 s on two free cores; only what hangs uses up the rest.
    def await_job_running(self, run: Run, seconds: float = 400.0) -> None:
        deadline = time.monotonic() + seconds
        while (status := self.job_status(run)) != "RUNNING":
            assert status not in {"FAILED", "STOPPED", "SUCCEEDED"}, f"{run.name}: {status}"
            assert time.monotonic() < deadline, f"{run.name} runs nothing after {seconds:.0f} s"
            time.sleep(0.5)


def pod(run: Run, kind: str) -> str:
    """The name of a run's pod of a kind: head or worker."""
    for each in pods_of(run):
        if each["metadata"]["labels"].get("ray.io/node-type") == kind:
            return str(each["metadata"]["name"])
    pytest.fail(f"run {run.name} has no {kind} pod")
