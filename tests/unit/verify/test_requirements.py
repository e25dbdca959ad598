"""Whether a lock belongs to what is asked for is known without the package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.requirements import (
    FOLDER,
    RECORD,
    compile_locks,
    names_in,
    problems_of,
    sums_of,
    write_record,
)

LOCK = """\
one==1.0 \\
    --hash=sha256:aa
    # via -r requirements/thing.in
two-words==2.5 ; sys_platform == 'linux' \\
    --hash=sha256:bb
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lock, as it was compiled."""
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "thing.in").write_text("# Why.\none==1.0\nTwo_Words[extra]>=2  # because\n")
    (folder / "thing.overrides").write_text("three==3\n")
    (folder / "thing.txt").write_text(LOCK)
    write_record({"thing": sums_of("thing", folder)}, folder)
    return folder


def said(folder: Path) -> list[str]:
    problems = problems_of(folder)
    assert {problem.fix for problem in problems} <= {"make update-requirements"}
    return [problem.what.removeprefix("requirements/") for problem in problems]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_our_locks_belong_to_what_is_asked_for() -> None:
    assert problems_of(FOLDER) == []
    assert {"dev", "ray-vllm-cpu"} <= set(names_in(FOLDER))


def test_a_lock_as_compiled_belongs(folder: Path) -> None:
    assert said(folder) == []


def test_a_comment_changes_nothing(folder: Path) -> None:
    edit(folder / "thing.in", "# Why.", "# Why not.\n")
    assert said(folder) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("thing.in", "one==1.0", "one==1.1", "thing.txt pins one==1.0, thing.in asks for one==1.1"),
        ("thing.in", "one==1.0", "one==1.0\nnew", "thing.txt does not pin new"),
        ("thing.in", "one==1.0", "=1", "thing.in: '=1' is no requirement"),
        ("thing.in", ">=2", ">=2.1", "thing.in, or how it is compiled, has changed"),
        ("thing.overrides", "three==3", "three==4", "thing.in, or how it is compiled, has changed"),
        ("thing.txt", "two-words==2.5", "two-words==2.6", "thing.txt was changed by hand"),
        ("thing.txt", "sha256:aa", "sha256:ab", "thing.txt was changed by hand"),
        ("thing.txt", " \\\n    --hash=sha256:aa", "", "thing.txt has no hashes of one"),
        (RECORD, "thing", "other", f"{RECORD} does not tell what thing.txt was compiled from"),
        (RECORD, "{", "[", f"{RECORD} does not tell what thing.txt was compiled from"),
        (RECORD, "thing", "other", f"{RECORD} tells of other.in, which is gone"),
    ],
)
def test_a_change_on_either_side_is_named(
    folder: Path, file: str, old: str, new: str, expected: str
) -> None:
    edit(folder / file, old, new)
    assert any(each.startswith(expected) for each in said(folder)), said(folder)


def test_what_a_line_names_is_part_of_it(folder: Path) -> None:
    edit(folder / "thing.in", "one==1.0", "one==1.0\n-c limits.txt")
    (folder / "limits.in").write_text("")
    (folder / "limits.txt").write_text("four==4\n")
    write_record({name: sums_of(name, folder) for name in ("limits", "thing")}, folder)
    (folder / "limits.txt").write_text("four==5\n")
    assert any(each.startswith("thing.in, or how") for each in said(folder))


def test_how_it_is_compiled_is_part_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.requirements.pinned", lambda _: "9.9")
    assert any("how it is compiled, has changed" in each for each in said(folder))


def test_files_without_their_other_half_are_named_together(folder: Path) -> None:
    (folder / "new.in").write_text("one\n")
    (folder / "left.txt").write_text("")
    assert said(folder) == ["new.txt is missing", "left.txt has no left.in"]


def test_an_unknown_name_is_refused_before_anything_is_compiled(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no requirements/none\.in") as caught:
        compile_locks(["thing", "none"], folder)
    assert caught.value.code == ExitCode.USAGE
    assert "thing" in caught.value.problems[0].fix
    assert said(folder) == []
