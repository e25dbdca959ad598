from pathlib import Path

import pytest

from tandem.tools import stamps


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "etcd").write_bytes(b"program")
    stamps.write("etcd", "key", ["etcd"], tmp_path)
    return tmp_path


def test_unchanged_programs_of_the_same_key_are_current(made: Path) -> None:
    assert stamps.is_current("etcd", "key", ["etcd"], made)


def test_another_key_is_not_current(made: Path) -> None:
    assert not stamps.is_current("etcd", "other", ["etcd"], made)


def test_a_deleted_program_is_not_current(made: Path) -> None:
    (made / "etcd").unlink()
    assert not stamps.is_current("etcd", "key", ["etcd"], made)


def test_a_replaced_program_is_not_current(made: Path) -> None:
    (made / "etcd").write_bytes(b"something else")
    assert not stamps.is_current("etcd", "key", ["etcd"], made)


def test_a_program_added_to_the_group_is_not_current(made: Path) -> None:
    assert not stamps.is_current("etcd", "key", ["etcd", "etcdctl"], made)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": "key"}'])
def test_a_damaged_stamp_is_not_current(made: Path, content: str) -> None:
    (made / ".stamps" / "etcd.json").write_text(content)
    assert not stamps.is_current("etcd", "key", ["etcd"], made)


def test_the_key_follows_content_name_and_words(tmp_path: Path) -> None:
    file = tmp_path / "go.mod"
    file.write_text("one")
    first = stamps.key_of([file], ["flag"])
    assert stamps.key_of([file], ["flag"]) == first
    assert stamps.key_of([file], ["other flag"]) != first
    file.write_text("two")
    assert stamps.key_of([file], ["flag"]) != first
