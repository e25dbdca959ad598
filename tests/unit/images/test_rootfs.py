"""Where the base of all images comes from, by what is on the machine.

No docker daemon, no podman and no registry can be had in a test: the programs here are
scripts that write down how they were called.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images import rootfs
from tandem.images.engine import Engine

NAME = "localhost/tandem/debian:trixie"
UPSTREAM = "docker.io/library/debian:trixie-slim"
RECORD = 'echo "$(basename "$0") $*" >> "$(dirname "$0")/calls"\n'
#: The last word is the folder to fill.
BOOTSTRAP = (
    f'{RECORD}for last; do :; done\nmkdir -p "$last/var/cache/apt/archives" "$last/usr/share/doc"'
    '\necho trixie > "$last/release"\n'
)


class Machine:
    """A PATH with programs of the test's own before the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, body: str) -> None:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{body}")
        program.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        path = self.folder / "calls"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [each[1:] for each in words if each[0] == name]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(rootfs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Machine(folder)


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_with_debootstrap_no_registry_is_asked(machine: Machine, tmp_path: Path, name: str) -> None:
    machine.put("debootstrap", BOOTSTRAP)
    machine.put(
        name, f'{RECORD}for each; do case $each in *.tar) cp "$each" {tmp_path};; esac; done'
    )
    rootfs.provide(Engine(name), "trixie", tmp_path / "log")
    [bootstrapped] = machine.calls("debootstrap")
    assert bootstrapped[:-1] == ["--variant=minbase", "--include=ca-certificates", "trixie"]
    [words] = machine.calls(name)
    assert words[:4] == ["import", "--change", "CMD", '["bash"]']
    assert words[-1] == NAME
    with tarfile.open(tmp_path / "debian.tar") as archive:
        names = archive.getnames()
    assert "./release" in names
    assert "./var/cache/apt/archives/partial" in names
    assert "./usr/share/doc" not in names
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_root_the_registrys_image_gets_our_name(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine.put("debootstrap", BOOTSTRAP)
    machine.put("docker", RECORD)
    rootfs.provide(Engine("docker"), "trixie", tmp_path / "log")
    assert machine.calls("debootstrap") == []
    assert machine.calls("docker") == [["pull", UPSTREAM], ["tag", UPSTREAM, NAME]]


def test_with_neither_the_way_out_is_named(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine.put("debootstrap", BOOTSTRAP)
    machine.put("docker", "echo dial tcp: lookup registry: no such host >&2; exit 1")
    with pytest.raises(UserError, match="no such host") as caught:
        rootfs.provide(Engine("docker"), "trixie", tmp_path / "log")
    assert caught.value.code == ExitCode.PRECONDITION
    [problem] = caught.value.problems
    assert f"debootstrap needs root, this is user 1000, and docker cannot pull {UPSTREAM}" in (
        problem.what
    )
    assert "make system" in problem.fix
    assert f"docker tag IMAGE {NAME}" in problem.fix
