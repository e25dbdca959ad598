"""Members from a file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from vllm_pool.core.membership import Registration
from vllm_pool.sources import file


def test_a_list_of_objects_and_urls() -> None:
    text = json.dumps(
        {
            "replicas": [
                {"id": "judge-0", "url": "http://10.0.0.7:8100", "epoch": 3, "draining": True},
                "http://10.0.0.8:8100",
                "http://[fd00::1]:8100",
            ]
        }
    )
    assert file.parse(text) == [
        Registration("judge-0", "http://10.0.0.7:8100", epoch=3, draining=True),
        Registration("10.0.0.8-8100", "http://10.0.0.8:8100"),
        Registration("fd00..1-8100", "http://[fd00::1]:8100"),
    ]


def test_a_bare_list_will_do() -> None:
    assert [each.id for each in file.parse("- http://judge:1\n")] == ["judge-1"]
    assert file.parse("[]") == []


@pytest.mark.parametrize("text", ["", "3", "replicas: 3", "{", "other: []"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"replicas|YAML"):
        file.parse(text)


def test_all_that_is_wrong_is_told_at_once() -> None:
    rows = [
        {"id": "-", "url": "http://a:1"}, {"id": "b"}, {"id": "c", "url": "https://c:1"},
        {"id": "d", "url": "http://d:1", "epoch": "1", "port": 3}, 7,
        {"id": "e", "url": "http://e:1", "draining": "no"},
        {"id": "twice", "url": "http://f:1"}, {"id": "twice", "url": "http://g:1"},
    ]  # fmt: skip
    with pytest.raises(ValueError, match="replica 0") as told:
        file.parse(json.dumps(rows))
    for part in (
        "replica 0: '-' is no id", "replica 1: ''", "replica 2: 'https://c:1'",
        "replica 3: no such field: port", "replica 3: epoch '1'", "replica 4: 7",
        "replica 5: draining 'no'", "twice: listed twice",
    ):  # fmt: skip
        assert part in str(told.value)


def test_a_missing_or_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    heard: list[list[str]] = []

    async def follow() -> None:
        news = asyncio.Event()

        def synced(_source: str, listed: list[Registration]) -> None:
            heard.append([each.id for each in listed])
            news.set()

        work = asyncio.create_task(file.follow(path, synced))
        for text in ('["http://a:1"]', '["http://a:1", "http://b:1"]'):
            new = tmp_path / "new"
            new.write_text(text)
            new.rename(path)
            await asyncio.wait_for(news.wait(), 20)
            news.clear()
        for broken in ("{", None):
            path.write_text(broken) if broken else path.unlink()
            await asyncio.sleep(0.7)
        assert not work.done()
        path.write_text('["http://c:1"]')
        await asyncio.wait_for(news.wait(), 20)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(follow())
    assert heard == [["a-1"], ["a-1", "b-1"], ["c-1"]]
