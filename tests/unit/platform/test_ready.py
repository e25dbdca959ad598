"""What is refused before helmfile or kubectl is asked, all of it at once, with code 3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import platform
from tandem.bundle.layout import Layout, Manifest, checksums
from tandem.errors import ExitCode, UserError
from tandem.run import kube, start


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A small bundle that is whole."""
    made = Layout(tmp_path / "bundle")
    made.crds.mkdir(parents=True)
    (made.crds / "things.example.test.yaml").write_text("kind: CustomResourceDefinition\n")
    made.environment.write_text("charts: {}\n")
    Manifest("key", checksums(made)).write(made)
    return made


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def refused(layout: Layout, environment: str = "default") -> list[str]:
    with pytest.raises(UserError) as caught:
        platform.require_ready(environment, layout=layout)
    assert caught.value.code == ExitCode.PRECONDITION
    return [f"{problem.what} -> {problem.fix}" for problem in caught.value.problems]


def test_without_a_cluster_that_is_all_that_is_said_of_a_whole_bundle(layout: Layout) -> None:
    [problem] = refused(layout)
    assert "there is no kubeconfig" in problem
    assert "-> make cluster-up, or export KUBECONFIG" in problem


def test_a_bundle_that_is_not_filled_is_named_beside_it(layout: Layout) -> None:
    layout.manifest.unlink()
    bundle, cluster = refused(layout)
    assert "the bundle is not filled" in bundle
    assert bundle.endswith("-> make bundle")
    assert "there is no kubeconfig" in cluster


def test_a_corrupt_file_of_the_bundle_is_named(layout: Layout) -> None:
    (layout.crds / "things.example.test.yaml").write_text("kind: Damaged\n")
    layout.environment.unlink()
    corrupt, missing, _ = refused(layout)
    assert "things.example.test.yaml is corrupt" in corrupt
    assert "environment.yaml is missing" in missing


def test_other_environments_need_no_bundle(layout: Layout) -> None:
    layout.manifest.unlink()
    [problem] = refused(layout, "prod")
    assert "there is no kubeconfig" in problem


def test_a_cluster_that_does_not_answer_is_a_precondition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text("apiVersion: v1\nkind: Config\n")
    monkeypatch.setenv("KUBECONFIG", str(config))
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho connection refused >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("tandem.process.BIN", tmp_path)
    with pytest.raises(UserError, match=r"does not answer:\n.*\n.*connection refused") as caught:
        kube.require_cluster()
    assert caught.value.code == ExitCode.PRECONDITION
    assert "make cluster-up repairs the local one" in caught.value.problems[0].fix


def test_a_run_is_not_begun_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    rayjob = {"kind": "RayJob", "metadata": {"name": "a", "namespace": "tandem"}}
    monkeypatch.setattr(start, "kustomize", lambda _: [rayjob])
    with pytest.raises(UserError, match="there is no kubeconfig") as caught:
        start.start("monolithic-rayjob")
    assert caught.value.code == ExitCode.PRECONDITION


def test_a_sync_that_is_refused_never_reaches_helmfile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(platform, "_helmfile", lambda *words, **_: asked.append(words[0]))
    with pytest.raises(UserError, match="there is no kubeconfig"):
        platform.sync("prod")
    assert asked == []


@pytest.mark.parametrize("words", [["platform", "sync", "--environment", "prod"],
                                   ["platform", "destroy", "--environment", "prod"],
                                   ["deploy", "down"]])  # fmt: skip
def test_programs_end_with_three_without_a_kubeconfig(tmp_path: Path, words: list[str]) -> None:
    module, *rest = words
    done = subprocess.run(
        [sys.executable, "-m", f"tandem.{module}", *rest],
        check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path),
             "KUBECONFIG": str(tmp_path / "none")},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "there is no kubeconfig" in " ".join(done.stderr.split())
    assert "fix: make cluster-up" in done.stderr
