"""Which program builds images, and that nothing outlives a build that fails."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tandem.errors import SPACE_FIX, ExitCode, UserError
from tandem.images import engine
from tandem.images.engine import CHOICE, Engine, detect, prefer, run_watched


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(CHOICE, raising=False)
    return tmp_path


def _put(folder: Path, name: str, code: int = 0) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)


def test_the_first_engine_that_answers_is_taken(programs: Path) -> None:
    _put(programs, "buildah")
    assert detect().name == "buildah"
    _put(programs, "podman")
    assert detect().name == "podman"
    _put(programs, "docker")
    assert detect().name == "docker"


DOCKER, BUILDAH = Engine("docker"), Engine("buildah")


@pytest.mark.parametrize(
    ("working", "bootstraps", "with_base", "taken"),
    [
        # Debootstrap makes a base for any of them: no registry is needed, the first is taken.
        ([DOCKER, BUILDAH], True, [], DOCKER),
        ([DOCKER, BUILDAH], True, [BUILDAH], DOCKER),
        ([BUILDAH], True, [], BUILDAH),
        # Without it, a base that is there is worth more than one that has to be pulled.
        ([DOCKER, BUILDAH], False, [BUILDAH], BUILDAH),
        ([DOCKER, BUILDAH], False, [DOCKER, BUILDAH], DOCKER),
        # All that is left is to try the registry.
        ([DOCKER, BUILDAH], False, [], DOCKER),
        ([], True, [], None),
        ([], False, [], None),
    ],
)
def test_the_engine_that_needs_the_least_from_outside_is_taken(
    working: list[Engine], with_base: list[Engine], taken: Engine | None, *, bootstraps: bool
) -> None:
    found = prefer(working, bootstraps=bootstraps, has_base=lambda engine: engine in with_base)
    assert found == taken


def test_podman_that_does_not_work_does_not_count(programs: Path) -> None:
    _put(programs, "podman", code=125)
    _put(programs, "buildah")
    assert detect().name == "buildah"


def test_a_daemon_that_never_answers_does_not_count(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ANSWER_SECONDS", 0.2)
    (programs / "docker").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (programs / "docker").chmod(0o755)
    _put(programs, "buildah")
    assert detect().name == "buildah"


def test_docker_without_a_daemon_does_not_count(programs: Path) -> None:
    _put(programs, "docker", code=1)
    _put(programs, "buildah")
    assert detect().name == "buildah"


def test_the_choice_of_the_user_wins(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(programs, "docker")
    _put(programs, "buildah")
    monkeypatch.setenv(CHOICE, "buildah")
    assert detect().name == "buildah"


@pytest.mark.parametrize(("choice", "what"), [("kaniko", "kaniko"), ("podman", "does not answer")])
def test_a_choice_that_cannot_be_met_is_refused(
    programs: Path, monkeypatch: pytest.MonkeyPatch, choice: str, what: str
) -> None:
    _put(programs, "buildah")
    monkeypatch.setenv(CHOICE, choice)
    with pytest.raises(UserError, match=what) as caught:
        detect()
    assert caught.value.code == ExitCode.PRECONDITION


def test_without_any_engine_the_fix_is_named(programs: Path) -> None:
    assert not list(programs.iterdir())
    with pytest.raises(UserError, match="make system") as caught:
        detect()
    assert caught.value.code == ExitCode.PRECONDITION


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Ended, and only not yet collected by its new parent.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_build_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    log = tmp_path / "log"
    with pytest.raises(UserError, match="did not end within"):
        run_watched(
            ["sh", "-c", f"sleep 60 & echo $! > {pid}; echo said; wait"], log=log, timeout=0.5
        )
    assert log.read_text() == "said\n"
    deadline = time.monotonic() + 5
    while not _gone(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failed_build_repeats_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such package") as caught:
        run_watched(["sh", "-c", "echo no such package; exit 4"], log=tmp_path / "log", timeout=10)
    assert caught.value.code == ExitCode.FAILURE
    assert "code 4" in str(caught.value)


def test_a_build_that_meets_a_full_disk_names_the_disks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MiB free") as caught:
        run_watched(
            ["sh", "-c", "echo write /layer: no space left on device; exit 1"],
            log=tmp_path / "log", timeout=10,
        )  # fmt: skip
    assert caught.value.code == ExitCode.PRECONDITION
    assert caught.value.problems[0].fix == SPACE_FIX
