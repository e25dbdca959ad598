"""Fixtures that all suites share: a real API server, a namespace on it, the real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.paths import BIN, KUBECONFIG, ROOT
from tandem.process import run, stream
from tandem_host.control_plane import ControlPlane

# Programs that tests start find our modules, also when pytest was not started by make.
os.environ["PYTHONPATH"] = os.pathsep.join(
    str(ROOT / folder)
    for folder in (
        "scripts/lib", "cluster/host", "trainer/src", "sidecars/common/src",
        "sidecars/endpoint-registry/src", "sidecars/peer-watcher/src",
    )
)  # fmt: skip


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager: RBAC on, no node; one a session."""
    with ControlPlane(tmp_path_factory.mktemp("api-server")) as plane:
        yield plane


@pytest.fixture
def namespace(api_server: ControlPlane) -> Iterator[str]:
    """A namespace of this test's own on the API server."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl = [str(BIN / "kubectl"), f"--kubeconfig={api_server.kubeconfig}"]
    run([*kubectl, "create", "namespace", name], timeout=30)
    # The controller manager puts these two into it; a test counts and watches ConfigMaps.
    for made in ("configmap/kube-root-ca.crt", "serviceaccount/default"):
        run([*kubectl, "wait", "-n", name, "--for=create", made, "--timeout=30s"], timeout=35)
    yield name
    run([*kubectl, "delete", "namespace", name, "--wait=false", "--ignore-not-found"], timeout=30)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """The full one-node cluster, yielding its kubeconfig.

    One that is up already is used and left alone; else it is brought up and, at the end of
    the session, taken down.
    """
    status = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host"],
        check=False, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    stream("tandem.cluster", "up", "--provider", "host")
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    yield KUBECONFIG
    if before is None:
        del os.environ["KUBECONFIG"]
    else:
        os.environ["KUBECONFIG"] = before
    if status.returncode != 0:
        stream("tandem.cluster", "down", "--provider", "host")


@pytest.fixture(scope="session")
def platform(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster with the platform's releases on it, yielding the kubeconfig."""
    log = tmp_path_factory.mktemp("platform") / "helmfile-sync.log"
    run(["helmfile", "sync"], cwd=ROOT, timeout=600, log=log)
    return cluster
