"""A demo that cannot come to its end is refused before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images import engine
from tandem.paths import ROOT
from tandem.run import preflight
from tandem.tools.catalogue import all_programs
from tandem_host.preflight import (
    COLD_DISK,
    TOOLS_DISK,
    Facts,
    Holder,
    before_build,
    beside_another,
    problems,
)

FOLDERS = (
    "scripts/lib", "cluster/host", "trainer/src", "sidecars/common/src",
    "sidecars/endpoint-registry/src", "sidecars/peer-watcher/src",
)  # fmt: skip
COPIED = (*FOLDERS, "kustomize")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A bare checkout whose path is too long for sockets: a machine that lacks something."""
    folder = tmp_path / ("long-" * 20)
    for each in COPIED:
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "versions.yaml", folder)
    return folder


def demo(checkout: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(checkout / folder) for folder in FOLDERS)
    return subprocess.run(
        [sys.executable, "-m", "tandem.run.demo", *words],
        check=False, capture_output=True, text=True, timeout=120,
        env={
            **os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "KUBECONFIG": "",
            "PYTHONDONTWRITEBYTECODE": "1", engine.CHOICE: "no-such-builder", **environ,
        },
    )  # fmt: skip


@pytest.mark.parametrize("variant", ["prod-monolithic-rayjob", "prod-disagg-rayclusters"])
def test_everything_is_said_at_once_and_nothing_is_started(checkout: Path, variant: str) -> None:
    before = sorted(checkout.rglob("*"))
    done = demo(checkout, "--variant", variant, "--provider", "host")
    assert done.returncode == ExitCode.PRECONDITION
    assert "sockets below it would have too long names" in done.stderr
    assert "needs the KAI scheduler" in done.stderr
    assert "no-such-builder" in done.stderr
    # What the demo is about to make is not missing yet.
    assert "missing in ./bin" not in done.stderr
    assert "missing images" not in done.stderr
    assert sorted(checkout.rglob("*")) == before


def test_a_wrong_command_is_usage_and_still_says_the_rest(checkout: Path) -> None:
    done = demo(checkout, "--variant", "nope", "--provider", "minikube")
    assert done.returncode == ExitCode.USAGE
    for said in ("unknown variant: nope", "there is no provider 'minikube'", "no-such-builder"):
        assert said in done.stderr
    done = demo(checkout, "--variant", "nope", "--provider", "host")
    assert done.returncode == ExitCode.USAGE
    assert "unknown variant: nope" in done.stderr
    assert "sockets below it would have too long names" in done.stderr


def test_a_variant_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in (("pools", "Deployment"), ("training", "JobSet")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "object.yaml").write_text(f"kind: {kind}\n")
        (folder / "kustomization.yaml").write_text("resources: [object.yaml]\n")
    monkeypatch.setattr(preflight, "OVERLAYS", tmp_path)
    monkeypatch.setattr(preflight, "require_variant", lambda _: None)
    preflight.require_followable("training")
    with pytest.raises(UserError, match="pools holds no RayJob, JobSet or Job") as refused:
        preflight.require_followable("pools")
    assert refused.value.code == ExitCode.USAGE
    assert "make deploy VARIANT=pools" in refused.value.problems[0].fix


def test_an_existing_cluster_that_is_not_there_is_refused_early(checkout: Path) -> None:
    done = demo(checkout, "--provider", "existing", KUBECONFIG="/nowhere")
    assert done.returncode == ExitCode.PRECONDITION
    assert "KUBECONFIG=/nowhere does not answer" in done.stderr
    assert "sockets" not in done.stderr


def test_go_is_asked_for_only_while_a_tool_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(preflight, "BIN", tmp_path)
    assert any("go is missing" in problem.what for problem in preflight._makers())
    for program in all_programs():
        (tmp_path / program.name).touch()
    assert not any("go is missing" in problem.what for problem in preflight._makers())


def test_before_the_build_products_are_not_missing_and_take_room() -> None:
    facts = Facts(
        missing_tools=("etcd",), missing_images=("pause",), free_disk=COLD_DISK, disk_folder="/x"
    )
    [room] = problems(before_build(facts))
    assert "free on the disk of /x" in room.what
    enough = Facts(missing_tools=("etcd",), free_disk=COLD_DISK + TOOLS_DISK)
    assert problems(before_build(enough)) == []
    # Once the tools are there, only the node still grows.
    assert problems(before_build(Facts(free_disk=COLD_DISK))) == []


def test_ports_and_memory_of_another_checkouts_cluster_are_not_told_again() -> None:
    facts = Facts(
        holders=(Holder(6443, 1, "apiserver"),), free_memory=0, missing_programs=("runc",)
    )
    assert [problem.fix for problem in problems(beside_another(facts))] == ["make system"]
