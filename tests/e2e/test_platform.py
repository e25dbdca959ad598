"""The platform on the real cluster: a second sync is a no-op, workloads outlive it all."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.on_cluster import get
from tandem import crds
from tandem.paths import ROOT
from tandem.process import run, stream, tool_env
from tandem.run.kube import kubectl

pytestmark = pytest.mark.cluster

NAMESPACES = ("jobset-system", "kuberay-operator", "tandem-system")
POD: dict[str, Any] = {
    "serviceAccountName": "driver",
    "restartPolicy": "Never",
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "terminationGracePeriodSeconds": 1,
    "containers": [
        {
            "name": "pause",
            "image": "localhost/tandem/pause:dev",
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}
RUN = {"tandem.dev/run-id": "live"}
JOBSET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "live", "namespace": "tandem", "labels": RUN},
    "spec": {
        "replicatedJobs": [
            {
                "name": "head",
                "replicas": 1,
                "template": {
                    "spec": {
                        "backoffLimit": 0,
                        "template": {"metadata": {"labels": RUN}, "spec": POD},
                    }
                },
            }
        ]
    },
}


def platform_pods(*, ending: bool = False) -> set[str]:
    """The uids of the platform's pods; those that are ending only when asked for."""
    return {
        pod["metadata"]["uid"]
        for namespace in NAMESPACES
        for pod in get("pods", "-n", namespace)["items"]
        if ending or "deletionTimestamp" not in pod["metadata"]
    }


def sync() -> str:
    done = subprocess.run(
        ["helmfile", "sync"], check=False, cwd=ROOT, env=tool_env(), timeout=600, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def running_pod() -> str:
    """Return the uid of the JobSet's pod once it runs."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        pods = get("pods", "-n", "tandem", "-l", "jobset.sigs.k8s.io/jobset-name=live")["items"]
        # A pod that is going keeps its phase: it may be that of the test before.
        ready = [
            pod
            for pod in pods
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        if ready:
            return str(ready[0]["metadata"]["uid"])
        time.sleep(0.5)
    pytest.fail("the JobSet's pod does not run")


@pytest.fixture
def live_jobset(platform: Path) -> Iterator[str]:
    """A JobSet whose pod runs; the pod's uid."""
    assert platform.is_file()
    run(["kubectl", "apply", "-f", "-"], timeout=60, stdin=json.dumps(JOBSET))
    yield running_pod()
    kubectl(
        "delete", "jobset", "live", "-n", "tandem", "--ignore-not-found", "--timeout=180s",
        "--cascade=foreground", timeout=190,
    )  # fmt: skip


def test_a_second_sync_is_a_no_op(live_jobset: str) -> None:
    pods = platform_pods()
    assert len(pods) == 2
    secret = get("secret", "jobset-webhook-server-cert", "-n", "jobset-system")
    assert secret["data"]["tls.crt"]
    said = sync()
    assert "CRDs: 0 applied" in said
    assert platform_pods() == pods
    again = get("secret", "jobset-webhook-server-cert", "-n", "jobset-system")
    assert again["data"] == secret["data"], "Helm must not touch the webhook's keys"
    assert running_pod() == live_jobset


def test_destroy_refuses_while_others_have_workloads(live_jobset: str) -> None:
    kubectl("create", "namespace", "somebody")
    other = {**JOBSET, "metadata": {"name": "theirs", "namespace": "somebody"},
             "spec": {**JOBSET["spec"], "suspend": True}}  # fmt: skip
    run(["kubectl", "apply", "-f", "-"], timeout=60, stdin=json.dumps(other))
    try:
        done = subprocess.run(
            [".venv/bin/python", "-m", "tandem.platform", "destroy"],
            check=False, cwd=ROOT, env=tool_env(), timeout=300, text=True, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 3
        assert "somebody/JobSet/theirs" in done.stderr
        assert running_pod() == live_jobset
    finally:
        kubectl("delete", "jobset", "theirs", "-n", "somebody", "--timeout=180s", timeout=190)
        kubectl("delete", "namespace", "somebody", "--timeout=180s", timeout=190)


def test_destroy_ends_runs_first_and_leaves_crds_and_namespace(live_jobset: str) -> None:
    assert live_jobset
    before = set(crds.installed())
    stream("tandem.platform", "destroy")
    try:
        assert set(crds.installed()) == before
        assert get("jobsets", "-n", "tandem")["items"] == []
        # Helm waits for the Deployments; their pods follow within the grace period.
        deadline = time.monotonic() + 180
        while platform_pods(ending=True):
            assert time.monotonic() < deadline, "pods of the platform live on"
            time.sleep(0.5)
        names = {
            ns["metadata"]["name"]
            for ns in get("namespaces")["items"]
            if ns["status"]["phase"] == "Active"
        }
        assert "tandem" in names
    finally:
        sync()
    assert len(platform_pods()) == 2
