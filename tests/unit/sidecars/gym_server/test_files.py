from __future__ import annotations

import json
import queue
import threading
from pathlib import Path

import pytest

from gym_server import files
from gym_server.files import Watch, Written, read_urls

SECONDS = 20.0


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ('["http://10.0.0.1:1/v1"]', ("http://10.0.0.1:1/v1",)),
        ('["http://a:1", null, "http://b:2"]\n', ("http://a:1", "http://b:2")),
    ],
)
def test_a_json_list_of_addresses_is_read(text: str, urls: tuple[str, ...]) -> None:
    assert read_urls(text) == Written(urls)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("http://a:1", "it is no JSON"),
        ("[]", "no list of addresses"),
        ('"http://a:1"', "no list of addresses"),
        ('{"a": 1}', "no list of addresses"),
        ("[null, null]", "every address in it is null"),
        ('["http://a:1", "ftp://b"]', "neither http nor https"),
        ("[1]", "1"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, problem: str) -> None:
    read = read_urls(text)
    assert read.urls == () or text == "[1]"
    assert problem in (read.problem or str(read.urls))


@pytest.fixture(params=["the kernel tells", "only looking helps"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> queue.Queue[Written]:
    if request.param == "only looking helps":
        monkeypatch.setattr(files, "_inotify", lambda _folder: -1)
        monkeypatch.setattr(files, "PERIOD_SECONDS", 0.02)
    return queue.Queue()


def write(file: Path, text: str) -> None:
    draft = file.with_name(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.rename(file)


def test_a_file_that_is_there_already_is_told(tmp_path: Path, told: queue.Queue[Written]) -> None:
    file = tmp_path / "urls.json"
    write(file, json.dumps(["http://a:1"]))
    watch = Watch(file, told.put).start()
    assert told.get(timeout=SECONDS) == Written(("http://a:1",))
    watch.stop()


def test_a_file_is_told_once_it_has_been_renamed_into_place(
    tmp_path: Path, told: queue.Queue[Written]
) -> None:
    file = tmp_path / "urls.json"
    watch = Watch(file, told.put).start()
    write(tmp_path / "other.json", "[]")
    file.touch()
    write(file, json.dumps(["http://a:1"]))
    assert told.get(timeout=SECONDS) == Written(("http://a:1",))
    watch.stop()


def test_a_stopped_watch_tells_nothing_and_leaves_nothing(
    tmp_path: Path, told: queue.Queue[Written]
) -> None:
    file = tmp_path / "urls.json"
    watch = Watch(file, told.put).start()
    watch.stop()
    write(file, json.dumps(["http://a:1"]))
    assert told.empty()
    assert "urls-file" not in {thread.name for thread in threading.enumerate()}


def test_a_folder_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Watch(tmp_path / "not" / "there.json", print).start()
