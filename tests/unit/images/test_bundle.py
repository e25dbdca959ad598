"""Image files of the bundle: what is wrong with one is said before it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images import bundle
from tandem.images.bundle import Record


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A sound image in a bundle folder."""
    (tmp_path / "thing.tar").write_bytes(b"content")
    made = Record(
        "thing", "localhost/tandem/thing:dev", "abc123abc123", 7,
        bundle.sha256_of(tmp_path / "thing.tar"),
    )  # fmt: skip
    bundle.write(made, tmp_path)
    return made


def test_what_is_written_is_read_back_and_sound(record: Record, tmp_path: Path) -> None:
    assert bundle.read_all(tmp_path) == [record]
    assert bundle.problem_of_file(record, tmp_path) is None
    assert record.by_hash == "localhost/tandem/thing:abc123abc123"


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"conten", "cut short"), (b"cXntent", "is corrupt"), (None, "is missing")],
)
def test_a_file_that_is_not_what_was_recorded_is_named(
    record: Record, tmp_path: Path, content: bytes | None, what: str
) -> None:
    file = record.file(tmp_path)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    problem = bundle.problem_of_file(record, tmp_path)
    assert problem is not None
    assert what in problem.what
    assert str(file) in problem.what
    assert "make images" in problem.fix


def test_every_unreadable_record_and_every_lone_file_is_named_at_once(
    record: Record, tmp_path: Path
) -> None:
    (tmp_path / "half.json").write_text('{"name": "half"')
    (tmp_path / "fields.json").write_text('{"name": "fields", "surprise": 1}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "alone.tar").write_bytes(b"")
    bundle.write(record, tmp_path)
    (tmp_path / "other.json").write_text((tmp_path / "thing.json").read_text())
    with pytest.raises(UserError) as caught:
        bundle.read_all(tmp_path)
    assert caught.value.code == ExitCode.PRECONDITION
    said = str(caught.value)
    for name in ("half.json", "fields.json", "list.json", "alone.tar", "other.json"):
        assert name in said
    assert "thing.json cannot" not in said


def test_an_image_without_a_tag_is_no_record(record: Record, tmp_path: Path) -> None:
    bundle.write(replace(record, image="localhost:5000/thing"), tmp_path)
    with pytest.raises(UserError, match="does not describe"):
        bundle.read_all(tmp_path)


def test_an_empty_bundle_holds_nothing(tmp_path: Path) -> None:
    assert bundle.read_all(tmp_path / "none") == []


def test_what_is_sound_is_had_beside_what_is_not(record: Record, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text("{")
    records, problems = bundle.survey(tmp_path)
    assert records == [record]
    assert len(problems) == 1


def test_the_fix_mends_images_of_ours_and_deletes_those_of_others(tmp_path: Path) -> None:
    for name in ("pause.json", "other.json", "other.tar"):
        (tmp_path / name).write_text("{")
    fixes = {problem.what.split()[1]: problem.fix for problem in bundle.survey(tmp_path)[1]}
    assert fixes[f"{tmp_path}/pause.json"] == "make images"
    assert f"rm {tmp_path}/other.json {tmp_path}/other.tar" in fixes[f"{tmp_path}/other.json"]
