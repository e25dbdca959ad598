"""The run directory: whole files, private, written only when they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_pool.dataplane import config, files
from vllm_pool.dataplane.config import Backend, PlaneSettings

A, B, C = (Backend(name, "10.0.0.1", port) for port, name in enumerate("abc", 8000))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory that has been written."""
    run = tmp_path / "deep" / "run"
    files.write_plane(PlaneSettings(run_dir=run, token="a-secret"))  # noqa: S106 - of a test
    return run


def _retries(run_dir: Path) -> str:
    return str(json.loads((run_dir / config.ROUTES_FILE).read_text())["version_info"])


def test_everything_is_private(run_dir: Path) -> None:
    assert oct(run_dir.stat().st_mode & 0o777) == "0o700"
    assert {oct(path.stat().st_mode & 0o777) for path in run_dir.iterdir()} == {"0o600"}


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    files.write_plane(PlaneSettings(run_dir=tmp_path))
    assert oct(tmp_path.stat().st_mode & 0o777) == "0o700"


def test_it_begins_with_an_empty_pool(run_dir: Path) -> None:
    (assignment,) = json.loads((run_dir / config.ENDPOINTS_FILE).read_text())["resources"]
    assert assignment["endpoints"] == [{"lb_endpoints": []}]
    assert _retries(run_dir) == "retries-0"


def test_members_are_written_only_when_they_change(run_dir: Path) -> None:
    path = run_dir / config.ENDPOINTS_FILE
    assert files.write_endpoints(run_dir, [A, B])
    before = path.stat().st_ino
    assert not files.write_endpoints(run_dir, [B, A])
    assert path.stat().st_ino == before
    assert files.write_endpoints(run_dir, [A])
    assert path.stat().st_ino != before


def test_members_of_another_kind_have_another_version(run_dir: Path) -> None:
    versions = set()
    for members in ([A], [B], [A, B], []):
        files.write_endpoints(run_dir, members)
        versions.add(json.loads((run_dir / config.ENDPOINTS_FILE).read_text())["version_info"])
    assert len(versions) == 4


def test_tries_follow_the_members_that_take_requests(run_dir: Path) -> None:
    seen = []
    draining = Backend("c", C.host, C.port, draining=True)
    for members in ([A, B, C], [A, B, draining], [A], []):
        files.write_endpoints(run_dir, members)
        seen.append(_retries(run_dir))
    assert seen == ["retries-2", "retries-1", "retries-0", "retries-0"]


def test_tries_are_taken_back_before_the_members_and_given_after(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    write = files.write_atomically

    def noting(path: Path, content: bytes) -> bool:
        order.append(path.name)
        return write(path, content)

    monkeypatch.setattr(files, "write_atomically", noting)
    files.write_endpoints(run_dir, [A, B, C])
    files.write_endpoints(run_dir, [A])
    assert order == [
        config.ENDPOINTS_FILE, config.ROUTES_FILE, config.ROUTES_FILE, config.ENDPOINTS_FILE,
    ]  # fmt: skip


def test_a_restart_keeps_the_members(run_dir: Path) -> None:
    files.write_endpoints(run_dir, [A, B])
    before = (run_dir / config.ENDPOINTS_FILE).read_bytes()
    files.write_plane(PlaneSettings(run_dir=run_dir, retries=1))
    assert (run_dir / config.ENDPOINTS_FILE).read_bytes() == before
    assert _retries(run_dir) == "retries-1"
    files.write_endpoints(run_dir, [A, B, C])
    assert _retries(run_dir) == "retries-1"


def test_a_members_file_that_is_broken_begins_again(run_dir: Path) -> None:
    (run_dir / config.ENDPOINTS_FILE).write_text('{"resources": [')
    files.write_plane(PlaneSettings(run_dir=run_dir))
    assert files.write_endpoints(run_dir, [A])


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_dir / config.ENDPOINTS_FILE
    before, names = path.read_bytes(), sorted(run_dir.iterdir())

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == before
    assert sorted(run_dir.iterdir()) == names
