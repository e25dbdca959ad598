"""Lines of containers: their stamps sort, and each container is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.run_objects import pod
from tandem.run import collect, logs, pod_logs
from tandem.run.pod_logs import Folder, Line, Readers, Source, begun, parse


def test_stamps_are_of_one_length_and_sort() -> None:
    lines = [b"2026-12-02T10:00:00.1Z first\n", b"2026-12-02T10:00:00.12Z second\r\n",
             b"2026-12-02T10:00:01Z third"]  # fmt: skip
    parsed = [parse(line) for line in lines]
    assert [text for _, text in parsed] == ["first", "second", "third"]
    stamps = [stamp for stamp, _ in parsed]
    assert stamps == sorted(stamps)
    assert {len(stamp) for stamp in stamps} == {30}
    assert parse(b"no stamp \xff") == ("", "no stamp \ufffd")
    assert parse(b"2026-12-02T10:00:00.1Z   indented") == (stamps[0], "  indented")


def test_only_what_has_begun_has_a_log_and_a_restart_has_another() -> None:
    assert begun(pod("rl", "head", waiting="PodInitializing")) == []
    [source] = begun(pod("rl", "head"))
    assert (source.role, source.container, source.restarts) == ("rl", "ray", 0)
    again = pod("rl", "head")
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    assert begun(again) != [source]


def test_a_container_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Source] = []

    class FakeReader:
        def __init__(self, source: Source, *_: object) -> None:
            self._source = source

        def start(self) -> None:
            started.append(self._source)

    monkeypatch.setattr(pod_logs, "Reader", FakeReader)
    readers = Readers(lambda _: None)
    for _ in range(3):
        readers.see(pod("rl", "head"))
    assert len(started) == 1
    readers.see(pod("gym", "head"))
    assert [each.role for each in started] == ["rl", "gym"]


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    keeper = Folder(tmp_path)
    driver = Source("tandem", "driver-a7-x2", "u", "driver", "driver")
    head = Source("tandem", "rl-a7-head-x1", "u", "ray-head", "rl")
    watcher = Source("tandem", "peer-watcher-rl-a7-q", "u", "peer-watcher", "watcher")
    for second, source in enumerate((driver, head, watcher, driver)):
        keeper.write(Line(source, f"2026-12-02T10:00:0{second}.000000000Z", f"line {second}"))
    assert collect.driver_lines(tmp_path) == ["line 0", "line 3"]
    kept = [line for stream in logs._kept(tmp_path, 0) for line in stream]
    assert {(line.source.role, line.text) for line in kept} == {
        ("driver", "line 0"), ("rl", "line 1"), ("watcher", "line 2"), ("driver", "line 3"),
    }  # fmt: skip


def test_what_somebody_has_kept_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = "2026-12-02T10:00:00.000000000Z"
    asked: list[tuple[str, object]] = []

    def lines(_: object, source: Source, **how: object) -> list[Line]:
        asked.append((source.role, how["since"]))
        return [] if how["since"] else [Line(source, stamp, "once")]

    monkeypatch.setattr(collect, "api_client", lambda: None)
    monkeypatch.setattr(collect, "lines_of", lines)
    for pods in ([pod("rl", "head")], [pod("rl", "head"), pod("gym", "head")]):
        collect.keep_output(tmp_path, pods)
    assert asked == [("rl", ""), ("rl", stamp), ("gym", "")]
    assert [path.read_text().count("once") for path in sorted(tmp_path.iterdir())] == [1, 1]
