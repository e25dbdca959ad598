"""A record of an image that cannot be read stops nothing that does without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.bundle.__main__ import list_held, verify
from tandem.bundle.fill import fill
from tandem.bundle.kai import kai_of
from tandem.bundle.layout import Layout, Manifest, checksums
from tandem.errors import ExitCode, UserError
from tandem.images.bundle import Record, write


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A bundle with a sound image, a record cut short, and a file of nobody's."""
    layout = Layout(tmp_path / ".bundle")
    (layout.charts / "jobset").mkdir(parents=True)
    layout.crds.mkdir(parents=True)
    layout.environment.write_text("{}")
    Manifest("key", checksums(layout)).write(layout)
    images = layout.root / "images"
    write(Record("pause", "localhost/tandem/pause:dev", "hash"), images)
    (images / "foreign.json").write_text('{"name": "for')
    (images / "alone.tar").write_text("")
    return layout


def test_kai_is_judged_by_the_records_that_can_be_read(layout: Layout) -> None:
    assert "no chart" in kai_of(layout).why


@pytest.mark.parametrize("output", ["text", "json"])
def test_list_tells_what_is_sound_then_refuses_with_all_that_is_not(
    layout: Layout, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        list_held(layout, output)
    assert caught.value.code == ExitCode.PRECONDITION
    said = capsys.readouterr().out
    assert "localhost/tandem/pause:dev" in said
    if output == "json":
        assert json.loads(said)["images"] == ["localhost/tandem/pause:dev"]
    for name in ("foreign.json", "alone.tar"):
        assert name in str(caught.value)
    assert all("delete it: rm " in problem.fix for problem in caught.value.problems)


def test_verify_names_records_and_files_together(layout: Layout) -> None:
    (layout.charts / "jobset" / "Chart.yaml").write_text("")
    write(Record("jobset", "localhost/tandem/jobset:v0", "hash", 7, "sum"), layout.root / "images")
    with pytest.raises(UserError) as caught:
        verify(layout)
    said = str(caught.value)
    for name in ("Chart.yaml", "foreign.json", "alone.tar", "jobset.tar is missing"):
        assert name in said


def test_a_full_disk_is_said_before_anything_is_changed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.bundle.fill.ROOM_GIB", 1 << 30)
    with pytest.raises(UserError, match="the bundle may need") as caught:
        fill(layout, force=True)
    assert "free some space" in caught.value.problems[0].fix
    assert layout.manifest.exists()
