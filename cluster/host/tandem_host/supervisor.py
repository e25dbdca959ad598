"""The supervisor: one process that starts the components and brings back what dies.

It waits on pidfds, so it notices an exit at once, also of processes that it did not start
itself: a new supervisor adopts what a killed one left behind. It decides nothing about
health: a component that is alive but slow is never killed. Signals:

- TERM, INT: stop every component in order and end.
- HUP: end and leave the components running (the next supervisor adopts them).
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tandem_host import probes, processes
from tandem_host.components import Component, full_cluster
from tandem_host.layout import Layout
from tandem_host.node import GpuKeeper
from tandem_host.processes import Identity
from tandem_host.settings import Settings

FIRST_DELAY = 0.2
LONGEST_DELAY = 10.0
#: A component that ran this long is sound: its next restart is immediate again.
SOUND_SECONDS = 60.0
_POLL_SECONDS = 0.05
_SLOW_POLL_SECONDS = 1.0
_IMPATIENT_SECONDS = 30.0
_ROTATE_EVERY = 10.0
#: Each log may reach this size; one older generation is kept beside it.
LOG_BYTES = 20 * 1024 * 1024

_log = logging.getLogger("tandem.host.supervisor")


def next_delay(delay: float, ran_seconds: float) -> float:
    """Return how long to wait before a restart, from the last wait and the time it ran."""
    if ran_seconds >= SOUND_SECONDS:
        return FIRST_DELAY
    return min(LONGEST_DELAY, delay * 2)


@dataclass(slots=True)
class Charge:
    """A component and what the supervisor knows about its process."""

    component: Component
    identity: Identity | None = None
    pidfd: int | None = None
    ready: bool = False
    restarts: int = 0
    last_exit: str = ""
    started: float = field(default_factory=time.monotonic)
    due: float = 0.0
    delay: float = FIRST_DELAY / 2

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name


class Supervisor:
    """Keeps a list of components running until it is told to stop."""

    def __init__(
        self, settings: Settings, components: Iterable[Component], *, mark: str = processes.MARK
    ) -> None:
        """Take the settings and the components in the order to start them.

        Args:
            settings: The cluster.
            components: What to supervise.
            mark: Variable that marks the processes; another one keeps a test's stand-ins
                from being taken for a cluster.
        """
        self._settings = settings
        self._mark = mark
        self._layout = Layout(settings.state)
        self._charges = {c.name: Charge(c) for c in components}
        self._told: signal.Signals | None = None
        self._wake, self._woken = socket.socketpair()
        self._next_rotation = time.monotonic() + _ROTATE_EVERY
        self._saved = ""

    def run(self) -> None:
        """Adopt, start and restart until a signal ends it."""
        self._listen()
        self._adopt()
        while self._told is None:
            self._start_due()
            self._look_for_ready()
            self._save()
            self._rotate()
            self._wait()
        if self._told != signal.SIGHUP:
            parts = [c.component for c in self._charges.values()]
            stop_components(self._settings, parts, mark=self._mark)

    def _listen(self) -> None:
        for end in (self._wake, self._woken):
            end.settimeout(0)
        signal.set_wakeup_fd(self._woken.fileno())

        def tell(number: int, _frame: FrameType | None) -> None:
            self._told = signal.Signals(number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, tell)

    def _adopt(self) -> None:
        """Take over running components that are as they should be; end those that are not."""
        known: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            known = json.loads(self._layout.status.read_text(encoding="utf-8"))["components"]
        running = processes.of_cluster(self._settings.state, self._mark)
        outdated = []
        for charge in self._charges.values():
            charge.restarts = known.get(charge.name, {}).get("restarts", 0)
            charge.last_exit = known.get(charge.name, {}).get("last_exit", "")
            found = processes.main_process(running, charge.name)
            if found is None:
                continue
            if found.digest == charge.component.digest():
                self._take(charge, found.identity)
                _log.info("adopted component=%s pid=%s", charge.name, found.pid)
            else:
                outdated.append(found.identity)
                _log.info("outdated component=%s pid=%s", charge.name, found.pid)
        processes.stop(outdated, max(c.component.stop_seconds for c in self._charges.values()))

    def _take(self, charge: Charge, identity: Identity) -> None:
        try:
            charge.pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return  # It ended a moment ago: started anew as any other.
        charge.identity = identity
        charge.started = time.monotonic() - processes.uptime(identity)

    def _start_due(self) -> None:
        now = time.monotonic()
        for charge in self._charges.values():
            if charge.identity or charge.due > now:
                continue
            if all(self._charges[name].ready for name in charge.component.needs):
                self._start(charge)

    def _start(self, charge: Charge) -> None:
        component = charge.component
        marks = {
            self._mark: str(self._settings.state),
            processes.COMPONENT: component.name,
            processes.DIGEST: component.digest(),
        }
        try:
            process = processes.spawn(
                component.argv,
                log=self._layout.log(component.name),
                environ=processes.environment(self._settings.bin, {**marks, **dict(component.env)}),
            )
        except OSError as error:
            self._postpone(charge, 0.0, f"cannot start: {error}")
            return
        # We reap by process id: Popen must not try it too when it is collected.
        process.returncode = 0
        ticks = processes.start_ticks(process.pid)
        charge.started = time.monotonic()
        if ticks is None:
            self._postpone(charge, 0.0, self._reap(process.pid))
            return
        self._take(charge, Identity(process.pid, ticks))
        _log.info("started component=%s pid=%s", component.name, process.pid)

    def _look_for_ready(self) -> None:
        for charge in self._charges.values():
            if charge.identity and not charge.ready:
                charge.ready = probes.healthy(charge.component.probe, self._layout, timeout=0.5)
                if charge.ready:
                    took = time.monotonic() - charge.started
                    _log.info("ready component=%s seconds=%.1f", charge.name, took)

    def _wait(self) -> None:
        """Sleep until a process ends, a signal comes, or something is due."""
        now = time.monotonic()
        pending = [c for c in self._charges.values() if not c.ready]
        if not pending:
            timeout = max(0.0, self._next_rotation - now)
        elif any(now - c.started < _IMPATIENT_SECONDS for c in pending):
            timeout = _POLL_SECONDS
        else:
            timeout = _SLOW_POLL_SECONDS
        watched = {c.pidfd: c for c in self._charges.values() if c.pidfd is not None}
        readable, _, _ = select.select([*watched, self._wake.fileno()], [], [], timeout)
        for descriptor in readable:
            if descriptor == self._wake.fileno():
                self._wake.recv(64)
            else:
                self._ended(watched[descriptor])

    def _ended(self, charge: Charge) -> None:
        ran = time.monotonic() - charge.started
        reason = self._reap(charge.identity.pid) if charge.identity else ""
        if charge.pidfd is not None:
            os.close(charge.pidfd)
        charge.restarts += 1
        self._postpone(charge, ran, reason)
        _log.warning(
            "ended component=%s reason=%r ran=%.1f restart_in=%.1f",
            charge.name, reason, ran, charge.delay,
        )  # fmt: skip

    @staticmethod
    def _postpone(charge: Charge, ran: float, reason: str) -> None:
        charge.identity, charge.pidfd, charge.ready = None, None, False
        charge.last_exit = reason
        charge.delay = next_delay(charge.delay, ran)
        charge.started = time.monotonic()
        charge.due = charge.started + charge.delay

    @staticmethod
    def _reap(pid: int) -> str:
        try:
            _, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return "ended"  # Adopted: its parent was told how it ended, not we.
        code = os.waitstatus_to_exitcode(status)
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _save(self) -> None:
        facts = {
            c.name: {
                "pid": c.identity.pid if c.identity else None,
                "restarts": c.restarts,
                "last_exit": c.last_exit,
                "ready": c.ready,
            }
            for c in self._charges.values()
        }
        text = json.dumps({"pid": os.getpid(), "components": facts}, indent=1)
        if text == self._saved and self._layout.status.exists():
            return
        # Without a state folder there is nothing to tell: supervision goes on all the same.
        with suppress(OSError):
            draft = self._layout.status.with_suffix(".draft")
            draft.write_text(text, encoding="utf-8")
            draft.replace(self._layout.status)
            self._saved = text

    def _rotate(self) -> None:
        if time.monotonic() < self._next_rotation:
            return
        self._next_rotation = time.monotonic() + _ROTATE_EVERY
        for path in self._layout.logs.glob("*.log"):
            rotate(path, LOG_BYTES)


def rotate(path: Path, limit: int) -> None:
    """Copy a log that has grown over its limit to `.1` and empty it.

    The writers append, so they go on at its new beginning; lines that they write during
    the copy may be lost.
    """
    with suppress(OSError):
        if path.stat().st_size > limit:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


def stop_components(
    settings: Settings, components: Iterable[Component], *, mark: str = processes.MARK
) -> None:
    """End components in the reverse order of their start, each before those that it needs.

    Components that no living one needs end together; every exit is awaited, because a new
    etcd or API server on a port still held would die.
    """
    left = {component.name: component for component in components}
    while left:
        needed = {name for component in left.values() for name in component.needs}
        wave = [c for c in left.values() if c.name not in needed]
        running = processes.of_cluster(settings.state, mark)
        found = [processes.main_process(running, c.name) for c in wave]
        processes.stop([p.identity for p in found if p], max(c.stop_seconds for c in wave))
        for component in wave:
            del left[component.name]


def launch(settings: Settings) -> subprocess.Popen[bytes]:
    """Start a supervisor in the background for the settings on disk."""
    layout = Layout(settings.state)
    python_path = os.pathsep.join(
        str(settings.checkout / folder) for folder in ("cluster/host", "scripts/lib")
    )
    marks = {processes.MARK: str(settings.state), processes.COMPONENT: processes.SUPERVISOR}
    return processes.spawn(
        [sys.executable, "-m", "tandem_host.supervisor", str(layout.settings)],
        log=layout.log(processes.SUPERVISOR),
        environ=processes.environment(
            settings.bin,
            {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", **marks},
        ),
    )


def main() -> None:
    """Run the supervisor for the settings file named on the command line."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    settings = Settings.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _log.info("supervisor_started pid=%s", os.getpid())
    GpuKeeper(settings).start()
    Supervisor(settings, full_cluster(settings)).run()
    _log.info("supervisor_stopped")


if __name__ == "__main__":
    main()
