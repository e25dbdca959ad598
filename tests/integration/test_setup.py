"""SETUP.md's commands for a GPU cluster, as they stand there, at a real API server (dry run)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kai_crds import FAKE_PODGROUPS, served
from tandem import crds
from tandem.paths import ROOT
from tandem.policy import pods_of
from tandem.process import run, tool_env
from tandem.render import kustomize

pytestmark = pytest.mark.api_server

_QUEUE = "kai.scheduler/queue"
#: Nothing is written: what changes the cluster is asked for only.
_DRY = """set -euo pipefail
kubectl() {
  case $1 in
    apply | create) command kubectl "$@" --dry-run=server ;;
    *) echo "not run: kubectl $*" ;;
  esac
}
"""


@pytest.fixture(scope="module", autouse=True)
def platform(kubeconfig: Path) -> Iterator[None]:
    assert kubeconfig.is_file()
    crds.apply(crds.sources("default"))
    run(["helmfile", "--selector", "name=rl-platform", "sync"], timeout=120, cwd=ROOT)
    with served(FAKE_PODGROUPS):
        yield


def blocks() -> list[str]:
    """The shell of section 8, block by block."""
    text = (ROOT / "SETUP.md").read_text(encoding="utf-8")
    section = text.partition("## 8. A GPU cluster")[2].partition("\n## ")[0]
    return [b for b in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
            if not b.startswith("FROM ")]  # fmt: skip


def shell(script: str, folder: Path) -> str:
    # What makes or follows a run is other tests' business.
    lines = [ln for ln in script.splitlines() if not ln.startswith(("make ", "helmfile "))]
    done = subprocess.run(
        ["bash", "-c", _DRY + "\n".join(lines)],
        check=False, cwd=folder, capture_output=True, text=True, timeout=120,
        env=tool_env({"NGC_API_KEY": "key"}),
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


def test_the_commands_for_a_gpu_cluster_are_taken(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kustomize", tmp_path / "kustomize")
    said = [shell(block, tmp_path) for block in blocks()]
    told = "".join(said)
    for made in ("secret/nvcr-secret", "persistentvolumeclaim/artifacts", "job.batch/driver"):
        assert f"{made} created (server dry run)" in told

    objects = kustomize(tmp_path / "kustomize" / "overlays" / "site-disagg")
    [driver] = [o for o in objects if o["kind"] == "Job" and o["metadata"]["name"] == "driver"]
    volumes: list[dict[str, Any]] = driver["spec"]["template"]["spec"]["volumes"]
    assert {"name": "artifacts", "persistentVolumeClaim": {"claimName": "artifacts"}} in volumes
    kinds = [obj["kind"] for obj in objects]
    group = objects[kinds.index("PodGroup")]
    assert group["spec"]["queue"] == "high-prio"
    assert kinds.index("PodGroup") < min(kinds.index("RayCluster"), kinds.index("Job"))
    sides = [obj for obj in objects if obj["kind"] == "RayCluster"]
    assert len(sides) == 2
    for side in sides:
        assert side["metadata"]["labels"][_QUEUE] == "high-prio"
        for pod in pods_of(side):
            assert pod.metadata["labels"][_QUEUE] == "high-prio", pod.where
