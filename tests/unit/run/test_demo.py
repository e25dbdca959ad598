"""The demo's phases, and what it keeps when one of them fails.

The long phases are replaced by fakes: they stand for programs that end with some code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.errors import ExitCode, Problem, UserError
from tandem.run import collect, demo, preflight

PHASES = ["tools", "bundle", "images", "cluster", "sync"]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's folders, all in one of the test's own."""
    monkeypatch.setattr(demo, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(demo, "KUBECONFIG", tmp_path / "kubeconfig")
    monkeypatch.setattr(collect, "COMPONENT_LOGS", tmp_path / "component-logs")
    monkeypatch.setattr(collect, "BUILD_LOGS", tmp_path / "build-logs")
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    monkeypatch.setenv("KUBECONFIG", "/of/the/user")
    for name in ("component-logs/kubelet.log", "build-logs/image.log", "build-logs/old.log"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"last words of {path.stem}\n")
    os.utime(tmp_path / "build-logs" / "old.log", (1, 1))
    return tmp_path


def fakes(
    monkeypatch: pytest.MonkeyPatch, failing: str, code: ExitCode, during: Callable[[], None]
) -> list[str]:
    """Replace the phases' programs by fakes, of which one fails; return what was called."""
    called: list[str] = []

    def fake(name: str) -> None:
        called.append(name)
        if name == failing:
            during()
            raise UserError(Problem(f"{name} says no", "mend it"), code)

    monkeypatch.setattr(demo, "stream", lambda module, *_: fake(module.rpartition(".")[2]))
    monkeypatch.setattr("tandem.platform.sync", lambda *_, **__: fake("sync"))
    return called


def run_demo(monkeypatch: pytest.MonkeyPatch, *words: str) -> UserError:
    monkeypatch.setattr("sys.argv", ["demo", *words])
    with pytest.raises(UserError) as caught:
        demo.main()
    return caught.value


def summary_of(folders: Path) -> tuple[Path, dict[str, object]]:
    [path] = (folders / "artifacts").glob("*/summary.json")
    loaded: dict[str, object] = json.loads(path.read_text())
    return path.parent, loaded


@pytest.mark.parametrize("code", [ExitCode.FAILURE, ExitCode.PRECONDITION])
@pytest.mark.parametrize("failing", PHASES)
def test_a_phase_that_fails_ends_the_demo_with_its_own_code(
    failing: str, code: ExitCode, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = fakes(monkeypatch, failing, code, lambda: None)
    error = run_demo(monkeypatch)
    assert error.code == code
    assert called == PHASES[: PHASES.index(failing) + 1]
    folder, summary = summary_of(folders)
    assert summary["exit_code"] == code
    assert summary["reason"] == f"phase {failing} failed"
    assert summary["problems"] == [{"what": f"{failing} says no", "fix": "mend it"}]
    assert list(summary["phases_seconds"]) == called  # type: ignore[call-overload]
    # The last line names the folder, and the fix of the phase itself is still there.
    assert error.problems[-1].fix.startswith("mend it; look at ")
    assert folder.name in error.problems[-1].fix


@pytest.mark.parametrize("failing", PHASES)
def test_the_logs_that_tell_about_the_phase_are_kept_and_named(
    failing: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes(monkeypatch, failing, ExitCode.FAILURE, lambda: None)
    os.utime(folders / "build-logs" / "image.log", (2**33, 2**33))
    error = run_demo(monkeypatch)
    folder, _ = summary_of(folders)
    logs = folder / "logs"
    assert (logs / "build" / "image.log").read_text() == "last words of image\n"
    assert not (logs / "build" / "old.log").exists(), "a log of an earlier demo misleads"
    assert "logs/build/image.log" in error.problems[-1].fix
    # Logs of the cluster's components would mislead before there is one.
    about_cluster = failing in ("cluster", "sync")
    assert (logs / "cluster" / "kubelet.log").exists() is about_cluster
    assert ("logs/cluster/kubelet.log" in error.problems[-1].fix) is about_cluster


def test_without_an_api_server_that_is_written_down(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes(monkeypatch, "sync", ExitCode.FAILURE, lambda: None)
    (folders / "kubeconfig").write_text("{}")
    run_demo(monkeypatch)
    folder, _ = summary_of(folders)
    assert "does not answer" in (folder / "logs" / "api-server.txt").read_text()


def test_a_run_that_is_refused_leaves_its_reasons(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError([Problem("no queue", "make one"), Problem("no Secret", "make it")])

    monkeypatch.setattr(demo, "carry_out", refuse)
    error = run_demo(monkeypatch, "--only-run")
    assert error.code == ExitCode.PRECONDITION
    assert [problem.what for problem in error.problems] == ["no queue", "no Secret"]
    _, summary = summary_of(folders)
    assert summary["reason"] == "phase run failed"
    assert len(summary["problems"]) == 2  # type: ignore[arg-type]


def test_what_the_preflight_refuses_leaves_nothing(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise UserError(Problem("no root", "sudo"))

    called = fakes(monkeypatch, "", ExitCode.OK, lambda: None)
    monkeypatch.setattr(preflight, "check", refuse)
    assert run_demo(monkeypatch).code == ExitCode.PRECONDITION
    assert called == []
    assert not (folders / "artifacts").exists()


def test_the_end_of_a_huge_log_is_kept(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_TAIL_BYTES", 10)
    source = folders / "component-logs"
    (source / "etcd.log").write_bytes(b"x" * 100 + b"the reason")
    collect.copy_logs(source, folders / "kept")
    assert (folders / "kept" / "etcd.log").read_bytes() == b"the reason"
