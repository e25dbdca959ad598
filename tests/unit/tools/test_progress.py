"""What `make tools` tells a person: a line when a tool begins, when it ends, and between."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.tools import build, stamps
from tandem.tools.__main__ import _make
from tandem.tools.catalogue import Program

CLOCK = r"\[ *\d+\.\d s\] "


class Bin:
    """A ./bin of the test's own, and groups of tools that are made at once."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.groups: list[build._Group] = []
        self.made: list[str] = []
        patch.setattr(build, "BIN", folder)
        patch.setattr(build, "groups", lambda _: self.groups)
        for name in ("is_current", "write"):
            patch.setattr(stamps, name, partial(getattr(stamps, name), folder=folder))

    def add(self, name: str, work: Callable[[], object] = lambda: None) -> None:
        def make(scratch: Path) -> None:
            self.made.append(name)
            work()
            (scratch / f"{name}-program").write_text(name)

        program = Program(f"{name}-program", "source", "v1.0.0")
        self.groups.append(build._Group(name, "key", (program,), make))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bin:
    return Bin(tmp_path, monkeypatch)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_each_tool_is_named_when_it_begins_and_with_its_seconds_when_it_ends(
    tools: Bin, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.add("one")
    tools.add("two")
    assert _make([]) == ExitCode.OK
    captured = capsys.readouterr()
    said = captured.err.splitlines()
    for name in ("one", "two"):
        [begin] = [n for n, x in enumerate(said) if re.match(rf"{CLOCK}\.\.\. +{name}: {name}-", x)]
        end = rf"{CLOCK}ok +{name}: {name}-program \(\d+\.\d s\)$"
        [ended] = [n for n, x in enumerate(said) if re.match(end, x)]
        assert begin < ended
    assert re.match(rf"{CLOCK}ok +tools: 2 made, 0 current \(\d+\.\d s\)$", said[-1])
    assert [row.split() for row in captured.out.splitlines()] == [
        ["group", "seconds", "programs"],
        ["one", "0", "one-program"],
        ["two", "0", "two-program"],
    ]


def test_a_long_compile_says_how_long_it_has_been_at_work(
    tools: Bin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = Event()
    note = console.note

    def heard(text: str) -> None:
        note(text)
        beat.set()

    monkeypatch.setattr(build, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(console, "note", heard)
    tools.add("slow", lambda: beat.wait(30))
    build.make_tools([])
    assert beat.is_set()
    assert any(re.match(rf"{CLOCK} +slow: \d+ s …$", line) for line in lines(capsys))


def test_a_tool_that_fails_is_marked_and_the_others_are_made(
    tools: Bin, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise UserError(Problem("no such module", "mend it"), ExitCode.FAILURE)

    tools.add("broken", fail)
    tools.add("sound")
    with pytest.raises(UserError, match="no such module"):
        build.make_tools([])
    said = lines(capsys)
    assert any(re.match(rf"{CLOCK}fail +broken: broken-program \(\d+\.\d s\)$", x) for x in said)
    assert (tools.folder / "sound-program").read_text() == "sound"
    assert not (tools.folder / "broken-program").exists()


def test_a_second_call_makes_nothing_and_says_so(
    tools: Bin, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.add("one")
    _make([])
    lines(capsys)
    _make([])
    assert tools.made == ["one"]
    [only] = lines(capsys)
    assert re.match(rf"{CLOCK}ok +tools: 0 made, 1 current \(\d+\.\d s\)$", only)
