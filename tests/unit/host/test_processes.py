"""Processes are known by more than their id; ends are awaited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem_host import processes
from tandem_host.processes import Identity

MARKS = {processes.TEST_MARK: "unit"}
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(60)
""",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def started(log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()
    assert log.exists()


def spawn(started: list[subprocess.Popen[bytes]], log: Path, argv: list[str] = SLEEP) -> Identity:
    environ = processes.environment(Path("/nowhere"), MARKS)
    process = processes.spawn(argv, log=log, environ=environ)
    started.append(process)
    ticks = processes.start_ticks(process.pid)
    assert ticks is not None
    return Identity(process.pid, ticks)


def test_a_process_is_alive_until_it_ends(
    started: list[subprocess.Popen[bytes]], log: Path
) -> None:
    identity = spawn(started, log)
    assert identity.alive()
    assert processes.uptime(identity) < 30
    assert processes.resident_bytes(identity.pid) > 0
    processes.kill([identity])
    assert not identity.alive()
    assert processes.resident_bytes(identity.pid) == 0


def test_another_process_with_the_same_id_is_not_taken_for_it(
    started: list[subprocess.Popen[bytes]], log: Path
) -> None:
    identity = spawn(started, log)
    earlier = Identity(identity.pid, identity.ticks - 1)
    assert not earlier.alive()
    processes.send(earlier, signal.SIGKILL)
    processes.stop([earlier], seconds=0.1)
    assert identity.alive()


def test_a_zombie_is_not_alive(started: list[subprocess.Popen[bytes]], log: Path) -> None:
    identity = spawn(started, log, ["sleep", "0.3"])
    deadline = time.monotonic() + 10
    while identity.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.path.exists(f"/proc/{identity.pid}")  # noqa: PTH110 - not reaped: only dead


def test_a_process_that_ignores_being_asked_is_killed(
    started: list[subprocess.Popen[bytes]], log: Path
) -> None:
    identity = spawn(started, log, STUBBORN)
    deadline = time.monotonic() + 20
    while "ready" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begun = time.monotonic()
    processes.stop([identity], seconds=0.3)
    assert not identity.alive()
    assert time.monotonic() - begun >= 0.3


def test_a_marked_process_is_found_by_its_mark_only(
    started: list[subprocess.Popen[bytes]], log: Path
) -> None:
    identity = spawn(started, log)
    found = [p for p in processes.marked(processes.TEST_MARK) if p.identity == identity]
    assert [p.environ[processes.TEST_MARK] for p in found] == ["unit"]
    assert found[0].argv[0] == sys.executable
    assert identity.pid not in {p.pid for p in processes.marked()}


def process(program: str, component: str, pid: int) -> processes.Process:
    return processes.Process(
        Identity(pid, pid), (f"/x/{program}",), {processes.COMPONENT: component}
    )


def test_a_component_is_told_from_its_children() -> None:
    running = [
        process("containerd-shim-runc-v2", "containerd", 1),
        process("containerd", "containerd", 2),
        process("containerd", "containerd", 3),
        process("python", processes.SUPERVISOR, 4),
    ]
    names = ("containerd", processes.SUPERVISOR, "etcd")
    found = [processes.main_process(running, name) for name in names]
    assert [p.pid if p else None for p in found] == [2, 4, None]


@pytest.mark.parametrize(
    ("home", "given"), [("/home/somebody", "/home/somebody"), ("", "/root"), (None, "/root")]
)
def test_the_home_is_the_callers(
    monkeypatch: pytest.MonkeyPatch, home: str | None, given: str
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert processes.environment(Path("/b"), {})["HOME"] == given


def test_children_get_a_small_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    environ = processes.environment(Path("/b"), {"A": "1"})
    assert environ["PATH"].startswith("/b:")
    assert "/usr/sbin" in environ["PATH"]
    assert environ["A"] == "1"
    assert "SECRET" not in environ
