"""What every program behind the Makefile offers on its command line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.paths import ROOT

WRAPPER = ROOT / "scripts" / "tandem"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WRAPPER, *words], check=False, capture_output=True, text=True, timeout=60, cwd="/"
    )


def programs() -> list[str]:
    return re.findall(r"(?m)^  ([a-z._]+)$", call().stdout)


def shell_programs() -> list[str]:
    """Every program of scripts/ that is no Python, found as a person would."""
    return sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file())


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout with the shell programs alone: none of them finds anything to change."""
    checkout = tmp_path / "checkout"
    # The wrapper knows its programs by their files.
    library = checkout / "scripts" / "lib" / "tandem"
    (library / "verify").mkdir(parents=True)
    for name in ("cluster.py", "verify/__main__.py"):
        (library / name).write_text('if __name__ == "__main__":')
    for name in shell_programs():
        shutil.copy(ROOT / "scripts" / name, checkout / "scripts" / name)
    return checkout


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """A PATH on which everything is missing, with a fake apt-get that notes its calls."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    for name in ("bash", "cat", "dirname", "mktemp", "rm"):
        (folder / name).symlink_to(shutil.which(name) or name)
    fake_program(folder / "apt-get", f"echo apt-get $* >> {folder}/calls; exit ${{FAKE_APT:-0}}")
    for name in ("dpkg-deb", "tar"):
        fake_program(folder / name, f"echo {name} $* >> {folder}/calls")
    return folder


def fake_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/bash\n{line}\n")
    path.chmod(0o755)


def shell(
    checkout: Path, program: str, *words: str, path: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", checkout / "scripts" / program, *words],
        check=False, capture_output=True, text=True, timeout=60, cwd="/",
        env={**os.environ, "PATH": path or os.environ["PATH"], **env},
    )  # fmt: skip


@pytest.mark.parametrize("program", programs())
def test_help_has_examples_and_exit_codes(program: str) -> None:
    done = call(program, "--help")
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout


def test_a_program_finds_the_packages_of_every_sidecar() -> None:
    done = call("tables", "verify")
    assert done.returncode == 0, done.stderr


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    done = call("clutser", "up")
    assert done.returncode == 2
    assert "there is no program clutser" in done.stderr
    assert "cluster" in done.stderr.partition("fix:")[2]


@pytest.mark.parametrize("program", programs())
def test_an_unknown_option_is_usage_and_has_a_fix(program: str) -> None:
    done = call(program, "--no-such-option")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "fix: " in done.stderr


def test_the_shell_programs_are_found() -> None:
    assert {"check", "helmfile-crds", "lint", "system-packages", "tandem", "venv"} <= set(
        shell_programs()
    )


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("program", shell_programs())
def test_help_of_a_shell_program_says_how_and_changes_nothing(
    program: str, option: str, bare: Path, fakes: Path
) -> None:
    before = sorted(bare.rglob("*"))
    path = None if program == "tandem" else str(fakes)
    done = shell(bare, program, option, path=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: scripts/{program}")
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert sorted(bare.rglob("*")) == before
    assert not (fakes / "calls").exists()


@pytest.mark.parametrize("words", [("--no-such-option",), ("--no-such-option", "--help")])
@pytest.mark.parametrize("program", shell_programs())
def test_a_shell_program_refuses_what_it_does_not_know(
    program: str, words: tuple[str, ...], bare: Path, fakes: Path
) -> None:
    before = sorted(bare.rglob("*"))
    done = shell(bare, program, *words, path=None if program == "tandem" else str(fakes))
    assert done.returncode == 2
    assert words[0] in done.stderr
    assert "fix: " in done.stderr
    assert sorted(bare.rglob("*")) == before
    assert not (fakes / "calls").exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [("lint", ()), ("lint", ("--fix",)), ("helmfile-crds", ("default", "sync")),
     ("tandem", ("cluster", "status"))],
)  # fmt: skip
def test_without_the_python_environment_the_fix_is_named(
    program: str, words: tuple[str, ...], bare: Path
) -> None:
    done = shell(bare, program, *words)
    assert done.returncode == 3
    assert f"{bare}/.venv is missing" in done.stderr
    assert "fix: make venv" in done.stderr


def test_helmfiles_hook_wants_both_its_words(bare: Path) -> None:
    assert shell(bare, "helmfile-crds", "default").returncode == 2


def test_system_packages_installs_what_is_missing(bare: Path, fakes: Path) -> None:
    done = shell(bare, "system-packages", path=str(fakes))
    if os.geteuid() != 0:
        assert done.returncode == 3
        assert "fix: sudo scripts/system-packages" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    _, installed, taken, *unpacked = (fakes / "calls").read_text().splitlines()
    assert "buildah" in installed
    # Installed whole, it would start a server.
    assert "prometheus" not in installed
    assert taken.endswith("download -qq prometheus")
    assert any(line.endswith("./usr/bin/promtool") for line in unpacked)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are refused before apt-get is called")
def test_a_failed_installation_is_told_with_its_fix(bare: Path, fakes: Path) -> None:
    done = shell(bare, "system-packages", path=str(fakes), FAKE_APT="100")
    assert done.returncode == 1
    assert "could not be installed: " in done.stderr
    assert "df -h /var" in done.stderr


def test_the_environment_needs_room_and_python_and_says_both(bare: Path, tmp_path: Path) -> None:
    old = bare / ".venv" / "old"
    old.mkdir(parents=True)
    full = tmp_path / "fake-full-disk"
    full.mkdir()
    fake_program(full / "df", "echo head; echo disk 9 9 7 9% /")
    done = shell(
        bare, "venv", path=f"{full}:{os.environ['PATH']}", PYTHON=str(tmp_path / "no-python")
    )
    assert done.returncode == 3
    assert "no-python is missing" in done.stderr
    assert f"7 MiB free on the disk of {bare}" in done.stderr
    assert done.stderr.count("fix: ") == 2
    assert old.exists()


def test_packages_that_cannot_be_installed_leave_no_ready_environment(
    bare: Path, tmp_path: Path
) -> None:
    fake = tmp_path / "fake-python"
    fake_program(
        fake, f'[[ $2 != venv ]] || {{ mkdir -p .venv/bin; cp {fake} .venv/bin/python; exit 0; }}\n'
        '[[ $2 != pip ]] || { echo "No space left on device" >&2; exit 1; }',
    )  # fmt: skip
    done = shell(bare, "venv", PYTHON=str(fake))
    assert done.returncode == 1
    assert "could not be installed" in done.stderr
    assert "df -h" in done.stderr
    assert not (bare / ".venv" / ".ready").exists()


def test_a_check_ends_with_the_reasons_of_what_failed_and_runs_the_rest(bare: Path) -> None:
    fakes = bare / "fakes"
    fakes.mkdir()
    fake_program(fakes / "make", '[[ $1 != lint ]] || { echo "a.py:1: too long"; exit 1; }')
    python = bare / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    fake_program(
        python,
        "echo noise; case $* in *tests/integration*)"
        ' echo "FAILED t.py::test_a - late"; exit 1 ;; *) echo passed ;; esac',
    )
    for suite in ("unit", "integration", "slurm", "e2e"):
        (bare / "tests" / suite).mkdir(parents=True)
        (bare / "tests" / suite / "test_it.py").touch()

    done = shell(bare, "check", path=f"{fakes}:{os.environ['PATH']}")

    assert done.returncode == 1
    table, _, reasons = done.stderr.rpartition("\nall ")
    assert [line.split()[-2] for line in table.splitlines() if line.startswith("e2e ")] == ["ok"]
    assert "lint: artifacts/check/lint.log\na.py:1: too long" in reasons
    assert "integration: artifacts/check/integration.log\nFAILED t.py::test_a - late" in reasons
    assert "noise" not in reasons
    assert "noise" in (bare / "artifacts" / "check" / "integration.log").read_text()
