"""A helm that was killed in the middle of an install, on the real API server."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tandem import platform
from tandem.errors import ExitCode, UserError
from tandem.process import run, tool_env
from tandem.releases import half_way, require_settled
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: never-ready}
spec:
  selector: {matchLabels: {app: never-ready}}
  template:
    metadata: {labels: {app: never-ready}}
    spec: {containers: [{name: c, image: none:v1}]}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """A chart whose install waits for ever: there is no node here."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: half\nversion: 0.1.0\n")
    (tmp_path / "templates" / "deployment.yaml").write_text(DEPLOYMENT)
    return tmp_path


def cut_off(name: str, namespace: str, chart: Path) -> None:
    """Kill helm in the middle of an install."""
    helm = subprocess.Popen(
        ["helm", "install", name, chart, "-n", namespace, "--wait", "--timeout", "120s"],
        env=tool_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not run(["kubectl", "get", "deployments", "-n", namespace, "-o", "name"], timeout=30):
        assert time.monotonic() < deadline, "helm did not begin"
        time.sleep(0.2)
    os.kill(helm.pid, signal.SIGKILL)
    helm.wait(timeout=10)


def test_a_killed_install_is_named_with_the_command_that_settles_it(
    api_server: ControlPlane, namespace: str, chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    require_settled(["half"])
    cut_off("half", namespace, chart)

    with pytest.raises(UserError, match="release half is pending-install since") as refused:
        require_settled(["half", "other"])
    assert refused.value.code == ExitCode.PRECONDITION
    fix = refused.value.problems[0].fix
    assert fix.endswith(f"helm uninstall half -n {namespace}")

    require_settled(["other"])  # somebody else's release is not our business
    run(fix.partition(": ")[2].split(), timeout=60)
    require_settled(["half"])


def test_a_sync_is_refused_while_a_release_of_the_platform_is_half_way(
    api_server: ControlPlane, namespace: str, chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    platform.require_ready("default")
    cut_off("jobset", namespace, chart)
    try:
        with pytest.raises(UserError, match="release jobset is pending-install") as refused:
            platform.require_ready("default")
        assert refused.value.code == ExitCode.PRECONDITION
    finally:
        run(["helm", "uninstall", "jobset", "-n", namespace], timeout=60)


def test_a_cut_off_upgrade_is_rolled_back() -> None:
    [problem] = half_way(
        [
            {"name": "a", "namespace": "x", "status": "deployed", "updated": "2026-01-01"},
            {"name": "b", "namespace": "x", "status": "pending-upgrade", "updated": "2026-01-01"},
        ]
    )
    assert problem.fix.endswith("helm rollback b -n x")
