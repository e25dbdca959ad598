"""Compiling is refused before it fills a disk, and asks for no more than a warm cache needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tandem.errors import GIB, SPACE_FIX, ExitCode, UserError
from tandem.tools.build import cached_gib, check_disk, needed_gib
from tandem.tools.catalogue import go_modules


class Usage(NamedTuple):
    """As shutil.disk_usage returns it."""

    total: int
    used: int
    free: int


def test_a_cold_cache_needs_everything_and_a_warm_one_little() -> None:
    modules = go_modules()
    cold = needed_gib(modules, cached=0.0)
    assert cold == pytest.approx(sum(module.disk_gib for module in modules))
    assert 8 < cold < 14  # README: some 9 GB of caches and 0.8 of programs
    assert needed_gib(modules, cached=6.0) == pytest.approx(cold - 6)
    assert needed_gib(modules, cached=50.0) == 1.5


def test_the_size_of_the_cache_is_told_from_some_of_its_folders(tmp_path: Path) -> None:
    assert cached_gib(tmp_path / "none") == 0
    for number in range(256):
        folder = tmp_path / f"{number:02x}"
        folder.mkdir()
        (folder / "entry-a").write_bytes(b"x" * 1000)
    assert cached_gib(tmp_path) == pytest.approx(256_000 / GIB)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A full disk cannot be had in a test; the figure is what is pretended, nothing else.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - 2**31, 2**31))
    monkeypatch.setenv("GOCACHE", str(tmp_path))
    etcd = [module for module in go_modules() if module.name == "etcd"]
    check_disk(etcd)
    with pytest.raises(UserError, match=r"2\.0 GiB are free .* kube.* may need 1\d\.") as caught:
        check_disk(go_modules())
    assert caught.value.code == ExitCode.PRECONDITION
    assert caught.value.problems[0].fix == SPACE_FIX
