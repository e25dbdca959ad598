"""The supervisor on tiny real processes: restarts, adoption, order of the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.paths import ROOT
from tandem_host import processes, supervisor
from tandem_host.settings import Settings

#: A supervisor over two stand-ins: `upper` needs `lower`; each opens its socket when it is up.
PROGRAM = """
import sys
from pathlib import Path
from tandem_host.components import Component, SocketProbe
from tandem_host.settings import Settings
from tandem_host.supervisor import Supervisor

state = Path(sys.argv[1])
def part(name, needs=()):
    return Component(name, (str(state / name), str(state / (name + ".sock")), *sys.argv[2:]),
                     SocketProbe(state / (name + ".sock")), needs, stop_seconds=5)
settings = Settings(state=state, bin=state, checkout=state)
Supervisor(settings, [part("lower"), part("upper", ("lower",))], mark="TANDEM_UNIT_TEST").run()
"""
STAND_IN = """#!{python}
import os, signal, socket, sys
path = sys.argv[1]
if os.path.exists(path): os.unlink(path)
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()
def end(*_):
    open(path + ".ended", "w").write(str(__import__("time").monotonic())); os._exit(0)
signal.signal(signal.SIGTERM, end)
while True: server.accept()[0].close()
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="marks are only believed of root")


class Fixture:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.process: subprocess.Popen[bytes] | None = None
        (state / "program.py").write_text(PROGRAM)
        for name in ("lower", "upper"):
            # A name of its own on the command line, as a component's binary has.
            script = state / f"{name}.py"
            script.write_text(STAND_IN.format(python=sys.executable))
            (state / name).write_text(f'#!/bin/bash\nexec -a "$0" {sys.executable} {script} "$@"\n')
            (state / name).chmod(0o755)

    def start(self, *flags: str) -> None:
        paths = os.pathsep.join(str(ROOT / p) for p in ("cluster/host", "scripts/lib"))
        self.process = subprocess.Popen(
            [sys.executable, self.state / "program.py", self.state, *flags],
            env={**os.environ, "PYTHONPATH": paths},
        )

    def end(self, signum: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(signum)
        self.process.wait(timeout=20)

    def known(self) -> dict[str, Any]:
        """What this supervisor wrote; what an earlier one wrote does not count."""
        assert self.process
        try:
            found: dict[str, Any] = json.loads((self.state / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return dict(found["components"]) if found["pid"] == self.process.pid else {}

    def await_ready(self) -> dict[str, int]:
        def ready() -> bool:
            known = self.known()
            return bool(known) and all(c["ready"] and c["pid"] for c in known.values())

        until(ready)
        return {name: c["pid"] for name, c in self.known().items()}


def until(done: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path)
    yield fixture
    if fixture.process and fixture.process.poll() is None:
        fixture.end(signal.SIGKILL)
    processes.kill([p.identity for p in processes.of_cluster(tmp_path, "TANDEM_UNIT_TEST")])


def test_a_killed_component_comes_back_and_is_counted(two: Fixture) -> None:
    two.start()
    before = two.await_ready()
    os.kill(before["lower"], signal.SIGKILL)
    until(lambda: two.known()["lower"]["restarts"] == 1)
    after = two.await_ready()
    assert after["lower"] != before["lower"]
    assert after["upper"] == before["upper"]
    assert two.known()["lower"]["last_exit"] == "signal SIGKILL"


def test_a_component_waits_for_what_it_needs(two: Fixture) -> None:
    (two.state / "lower").rename(two.state / "away")
    two.start()
    until(lambda: two.known().get("lower", {}).get("restarts") is not None)
    time.sleep(0.5)
    assert two.known()["upper"]["pid"] is None
    (two.state / "away").rename(two.state / "lower")
    two.await_ready()


def test_a_new_supervisor_adopts_and_goes_on_counting(two: Fixture) -> None:
    two.start()
    before = two.await_ready()
    os.kill(before["upper"], signal.SIGKILL)
    until(lambda: two.known()["upper"]["restarts"] == 1)
    before = two.await_ready()
    two.end(signal.SIGKILL)
    two.start()
    assert two.await_ready() == before
    # It notices the end of processes that are not its children.
    os.kill(before["upper"], signal.SIGKILL)
    until(lambda: two.known()["upper"]["restarts"] == 2)
    assert two.await_ready()["upper"] != before["upper"]


def test_what_was_started_with_other_flags_is_started_anew(two: Fixture) -> None:
    two.start()
    before = two.await_ready()
    two.end(signal.SIGHUP)
    assert all(processes.start_ticks(pid) for pid in before.values())
    two.start("--new-flag")
    until(lambda: not any(processes.start_ticks(pid) for pid in before.values()))
    assert not set(two.await_ready().values()) & set(before.values())


def test_the_end_goes_against_the_order_of_the_start(two: Fixture) -> None:
    two.start()
    pids = two.await_ready()
    two.end(signal.SIGTERM)
    assert not any(processes.start_ticks(pid) for pid in pids.values())
    upper = float((two.state / "upper.sock.ended").read_text())
    lower = float((two.state / "lower.sock.ended").read_text())
    assert upper < lower


def test_delays_grow_to_a_bound_and_are_forgotten_after_a_sound_time() -> None:
    delay, seen = supervisor.FIRST_DELAY / 2, []
    for _ in range(9):
        delay = supervisor.next_delay(delay, ran_seconds=1)
        seen.append(delay)
    assert seen[:3] == [0.2, 0.4, 0.8]
    assert seen[-1] == supervisor.LONGEST_DELAY
    assert supervisor.next_delay(delay, supervisor.SOUND_SECONDS) == supervisor.FIRST_DELAY


def test_a_large_log_is_cut_and_one_older_part_kept(tmp_path: Path) -> None:
    log = tmp_path / "etcd.log"
    with log.open("a") as writer:
        writer.write("old" * 10)
        writer.flush()
        supervisor.rotate(log, limit=100)
        assert not (tmp_path / "etcd.log.1").exists()
        supervisor.rotate(log, limit=10)
        writer.write("new")
    assert log.read_text() == "new"
    assert (tmp_path / "etcd.log.1").read_text() == "old" * 10


def test_a_supervisor_without_its_folder_goes_on(two: Fixture) -> None:
    two.start()
    before = two.await_ready()
    (two.state / "status.json").unlink()
    os.kill(before["lower"], signal.SIGKILL)
    assert two.await_ready()["lower"] != before["lower"]


def test_settings_reach_another_process(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, bin=tmp_path, checkout=tmp_path, gpus=5)
    assert Settings.from_json(settings.to_json()).gpus == 5
