"""Which provider is chosen, and what a user reads who asks for a wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import cluster
from tandem.errors import ExitCode, UserError
from tandem_host import cluster as host
from tandem_host import settings


@pytest.mark.parametrize(
    ("asked", "remembered", "kubeconfig", "answers", "provider", "why"),
    [
        ("auto", None, "", False, "host", "KUBECONFIG is not set"),
        ("auto", None, "/k", True, "existing", "/k answers"),
        ("auto", None, "/k", False, "host", "/k does not answer"),
        ("auto", "host", "/k", True, "host", "present cluster"),
        ("auto", "existing", "", False, "existing", "present cluster"),
        ("auto", "gone", "", False, "host", "not set"),
        ("host", "existing", "/k", True, "host", "as asked"),
        ("existing", None, "", False, "existing", "as asked"),
    ],
)
def test_choices(  # noqa: PLR0917 - a row of the table
    asked: str, remembered: str | None, kubeconfig: str, answers: bool, provider: str, why: str  # noqa: FBT001
) -> None:  # fmt: skip
    found, reason = cluster.choose(
        asked, remembered=remembered, kubeconfig=kubeconfig, answers=answers
    )
    assert found == provider
    assert why in reason


def test_an_unknown_provider_names_those_that_exist() -> None:
    with pytest.raises(UserError) as caught:
        cluster.choose("minikube", remembered=None, kubeconfig="", answers=False)
    assert caught.value.code == ExitCode.USAGE
    assert "minikube" in caught.value.problems[0].what
    assert caught.value.problems[0].fix == "choose one of: auto, existing, host"


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tandem.cluster", *words],
        check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environ},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--provider", "minikube"], "there is no provider 'minikube'"),
        (["up", "--gpus", "-1"], "'-1' is not a whole number between 0 and 1024"),
        (["up", "--gpus", "many"], "fix: write one of them, such as 8"),
        (["sideways"], "invalid choice"),
        (["up", "--provider", "existing", "--gpus", "2"], "leave out --gpus"),
    ],
)
def test_wrong_usage_ends_with_two(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kubeconfig", "said"),
    [("", "KUBECONFIG is not set"), ("/nowhere", "KUBECONFIG=/nowhere does not answer")],
)
def test_an_existing_cluster_has_to_be_there(kubeconfig: str, said: str) -> None:
    done = run("up", "--provider", "existing", KUBECONFIG=kubeconfig)
    assert done.returncode == ExitCode.PRECONDITION
    assert said in done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's `.cluster`, with the kubeconfig of a cluster in it."""
    monkeypatch.setattr(cluster, "PROVIDER_FILE", tmp_path / "provider")
    monkeypatch.setattr(cluster, "KUBECONFIG", tmp_path / "kubeconfig")
    (tmp_path / "kubeconfig").write_text("server: https://198.18.0.1:6443\n")
    return tmp_path


@pytest.mark.parametrize(
    ("present", "said"),
    [("host", "the present one is provider host's"), ("", "there is none")],
)
def test_forgetting_an_existing_cluster_leaves_what_another_provider_made(
    folder: Path, capsys: pytest.CaptureFixture[str], present: str, said: str
) -> None:
    (folder / "provider").write_text(present)
    assert cluster.main(["down", "--provider", "existing"]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert (folder / "kubeconfig").is_file()
    assert (folder / "provider").read_text() == present


def test_an_existing_cluster_that_was_taken_up_is_forgotten(folder: Path) -> None:
    (folder / "provider").write_text("existing")
    assert cluster.main(["down"]) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("own", [True, False])
def test_an_existing_cluster_is_not_taken_up_over_the_host_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    (folder / "provider").write_text("host")
    monkeypatch.setattr(cluster, "_answers", lambda _: True)
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig") if own else "/another")
    with pytest.raises(UserError, match="host cluster is up") as caught:
        cluster.main(["up", "--provider", "existing"])
    assert caught.value.code == ExitCode.PRECONDITION
    assert (folder / "provider").read_text() == "host"


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        ("clusters:\n- cluster:\n    server: https://198.18.0.1:6443\n", False),
        ("clusters:\n- cluster:\n    server: https://gpu.example:6443\n", True),
        ("cut sh", False),
        (None, False),
    ],
)
def test_the_host_provider_tells_its_kubeconfig_from_an_existing_clusters(
    tmp_path: Path, text: str | None, *, elsewhere: bool
) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    assert host.leads_elsewhere(settings.default(), path) is elsewhere


def test_help_shows_examples_and_exit_codes() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout
