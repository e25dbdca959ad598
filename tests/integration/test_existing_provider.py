"""Provider `existing`, against a real API server, from a checkout of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.paths import BIN, ROOT
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

FOLDERS = ("scripts/lib", "cluster/host")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "versions.yaml", tmp_path)
    (tmp_path / "bin").symlink_to(BIN)
    return tmp_path


def tandem(checkout: Path, kubeconfig: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(checkout / folder) for folder in FOLDERS)
    return subprocess.run(
        [sys.executable, "-m", "tandem.cluster", *words],
        check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": path, "KUBECONFIG": kubeconfig, "NO_COLOR": "1"},
    )  # fmt: skip


def test_auto_takes_the_cluster_of_kubeconfig_and_says_why(
    api_server: ControlPlane, checkout: Path
) -> None:
    source = str(api_server.kubeconfig)
    done = tandem(checkout, source, "up")
    assert done.returncode == 0, done.stderr
    assert f"provider existing: KUBECONFIG={source} answers" in " ".join(done.stderr.split())
    ours = checkout / ".cluster/kubeconfig"
    assert ours.stat().st_mode & 0o077 == 0
    assert api_server.server in ours.read_text()
    assert api_server.kubeconfig.read_text() != ""

    # Without KUBECONFIG it is still this checkout's cluster.
    looked = tandem(checkout, "", "status", "--output", "json")
    assert looked.returncode == 1  # It has no nodes, so it is not healthy.
    found = json.loads(looked.stdout)
    assert (found["provider"], found["running"], found["nodes"]) == ("existing", True, 0)

    assert "it goes on running" in tandem(checkout, "", "down").stderr
    assert not ours.exists()
    assert api_server.api.get("/api/v1/namespaces/default") is not None


def test_another_providers_cluster_is_neither_forgotten_nor_taken_over(
    api_server: ControlPlane, checkout: Path
) -> None:
    folder = checkout / ".cluster"
    folder.mkdir()
    ours = folder / "kubeconfig"
    shutil.copy(api_server.kubeconfig, ours)
    (folder / "provider").write_text("host")

    done = tandem(checkout, "", "down", "--provider", "existing")
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stderr
    for source in (ours, api_server.kubeconfig):
        done = tandem(checkout, str(source), "up", "--provider", "existing")
        assert done.returncode == 3
        assert "host cluster is up" in done.stderr
    assert ours.read_text() == api_server.kubeconfig.read_text()
    assert (folder / "provider").read_text() == "host"


def test_a_cluster_that_does_not_answer_is_refused(checkout: Path) -> None:
    done = tandem(checkout, "/nowhere", "up", "--provider", "existing")
    assert done.returncode == 3
    assert "does not answer" in done.stderr
    assert not (checkout / ".cluster").exists()
