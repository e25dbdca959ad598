"""Building with the real engine: only what changed, and nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tandem.errors import UserError
from tandem.images import build as building
from tandem.images import bundle, specs
from tandem.images.engine import Engine, store
from tandem.paths import BIN, ROOT


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Buildah with a store of this test's own."""
    if shutil.which("buildah") is None:
        pytest.skip("this machine builds with another engine, whose store is the user's")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Engine("buildah")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that holds one image's inputs, to be changed at will."""
    root = tmp_path / "checkout"
    image = specs.Image("pause", "dev")
    (root / image.dockerfile).parent.mkdir(parents=True)
    shutil.copy(ROOT / image.dockerfile, root / image.dockerfile)
    (root / "bin").mkdir()
    shutil.copy(BIN / "pause", root / "bin/pause")
    monkeypatch.setattr(building, "LOGS", tmp_path / "logs")
    return root


def _mounts() -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(store()) in line]


def test_an_image_is_built_once_and_again_only_after_a_change(
    engine: Engine, checkout: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    (first,) = building.build(engine, ["pause"], folder=folder, root=checkout)
    file = first.file(folder)
    assert bundle.problem_of_file(first, folder) is None
    written = file.stat().st_mtime_ns
    assert building.build(engine, ["pause"], folder=folder, root=checkout) == [first]
    assert file.stat().st_mtime_ns == written

    with (checkout / "bin/pause").open("ab") as program:
        program.write(b"changed")
    (second,) = building.build(engine, ["pause"], folder=folder, root=checkout)
    assert second.hash != first.hash
    assert second.sha256 != first.sha256
    assert bundle.read_all(folder) == [second]
    # The tag of the old content would keep its layers for ever.
    assert engine.tags("localhost/tandem/pause") == {"dev", second.hash}
    assert _mounts() == []


def test_a_damaged_file_of_the_bundle_is_mended_by_building_again(
    engine: Engine, checkout: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    (record,) = building.build(engine, ["pause"], folder=folder, root=checkout)
    record.file(folder).write_bytes(b"half")
    (mended,) = building.build(engine, ["pause"], folder=folder, root=checkout)
    assert mended.hash == record.hash
    assert bundle.problem_of_file(mended, folder) is None


def test_a_build_that_fails_leaves_no_image_no_container_and_no_mount(
    engine: Engine, checkout: Path, tmp_path: Path
) -> None:
    dockerfile = checkout / specs.DOCKERFILES / "pause/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + 'RUN ["/no-such-program"]\n')
    folder = tmp_path / "bundle"
    with pytest.raises(UserError, match="no-such-program"):
        building.build(engine, ["pause"], folder=folder, root=checkout)
    assert not folder.exists()
    assert engine.tags("localhost/tandem/pause") == set()
    assert engine.query("containers", "--quiet").strip() == ""
    assert _mounts() == []
