"""A program that runs under this one: its output, its end and the reason for it.

The child leads a process group of its own. Its output passes through byte by byte and the
last lines are kept, since they are what a person needs first when it has failed. Nothing of
the group outlives its leader, and the leader does not outlive this process.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from gym_server.signals import SIGNALLED, thread
from tandem_common.processes import ending_with_us, exit_code, members

#: Lines that are kept, and how much of each.
TAIL_LINES = 40
LINE_LENGTH = 500
#: Seconds that the rest of the group gets when its leader has ended unasked.
REST_SECONDS = 5.0
#: Seconds for which output is still read when the group is gone: a pipe may have been handed on
#: to a process outside of it that never closes it.
_OUTPUT_SECONDS = 1.0
_CHUNK = 65536
#: Of so many last lines one is the cause of an end.
_CAUSE_LINES = 12
_NAMES_AN_ERROR = re.compile(r"(?:error|fatal):|[\w.]*(?:Error|Exception):", re.IGNORECASE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended."""

    name: str
    #: As `subprocess` gives it: the exit code, or the signal's number below zero.
    status: int
    seconds: float
    #: The last lines that it and its group have said.
    tail: tuple[str, ...] = ()
    #: The last lines by the time that the leader had ended: what comes behind them are others of
    #: its group that tell how they end.
    words: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The code as a shell gives it: 128 + number when a signal ended it."""
        return exit_code(self.status)

    @property
    def ok(self) -> bool:
        """Whether it ended with code 0."""
        return self.status == 0

    @property
    def reason(self) -> str:
        """One line: what ended, how, after how long."""
        how = f"ended with code {self.status}"
        if self.status < 0:
            how = f"was ended by signal {-self.status} ({signal.strsignal(-self.status)})"
        elif self.status > SIGNALLED and (word := _signal_name(self.status - SIGNALLED)):
            how += f", which is how a shell tells of {word}"
        return f"{self.name} {how} after {self.seconds:.0f} s"

    @property
    def cause(self) -> str:
        """The reason with the line that says most, since lists show one only.

        It is the leader's last one that names an error: others, such as Ray, may still have
        told of something else behind it.
        """
        words = self.words[-_CAUSE_LINES:]
        named = [line for line in words if _NAMES_AN_ERROR.match(line)]
        last = (named or list(words) or [""])[-1].strip()
        return f"{self.reason}: {last}" if last else self.reason

    def last_lines(self, count: int) -> str:
        """Return the group's last lines as one text."""
        return "\n".join(self.tail[-count:]) if count else ""

    def last_words(self, count: int) -> str:
        """Return the leader's last lines as one text."""
        return "\n".join(self.words[-count:]) if count else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


class Tail:
    """The last lines of several streams, in the order in which their ends were read."""

    def __init__(self, lines: int = TAIL_LINES) -> None:
        """Keep so many lines."""
        self._lines: deque[str] = deque(maxlen=lines)
        self._open: dict[object, bytes] = {}

    def add(self, stream: object, data: bytes) -> None:
        """Take what a stream has said."""
        *whole, rest = (self._open.get(stream, b"") + data).split(b"\n")
        self._lines.extend(filter(None, map(_clean, whole)))
        # What is longer than any line that is shown need not be kept whole.
        self._open[stream] = rest[-4 * LINE_LENGTH :]

    def lines(self) -> tuple[str, ...]:
        """Return the lines, unfinished ones last."""
        unfinished = filter(None, map(_clean, self._open.values()))
        return (*self._lines, *unfinished)[-(self._lines.maxlen or 0) :]


def _clean(raw: bytes) -> str:
    """Return a line as a terminal would show it: a progress bar is its last state."""
    text = _ESCAPES.sub("", raw.decode("utf-8", errors="replace")).rstrip()
    shown = text.rpartition("\r")[2][:LINE_LENGTH]
    return "".join(
        c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in shown
    )


class Child:
    """One child process with its group.

    `start` must be called by the main thread: the kernel ends the child when the *thread* that
    made it ends.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        on_end: Callable[[Any], None],
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        """Take what to run; nothing is started yet.

        Args:
            name: What messages call it.
            argv: The command line.
            env: Its whole environment.
            out: Where its standard output goes.
            err: Where its standard error goes.
            on_end: Called once, in a thread, when it has ended and its output is read.
            rest_seconds: Time that the rest of the group gets when its leader ends unasked.
        """
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._sinks = (out, err)
        self._on_end = on_end
        self._rest = rest_seconds
        self._tail = Tail()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        #: Until when a group that was asked to end has time for it.
        self._until = 0.0
        self._ended: Ended | None = None
        self._over = threading.Event()
        # Held while the process is reaped: a signal must not meet a re-used id.
        self._reaping = threading.Lock()

    @property
    def ended(self) -> Ended | None:
        """How it ended, None while it runs."""
        return self._ended

    @property
    def pid(self) -> int:
        """Its process id, also that of its group; 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: It cannot be started.
        """
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            ending_with_us(self._argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=self._env, start_new_session=True, bufsize=0,
        )  # fmt: skip
        thread(f"child-{self.name}", partial(self._follow, self._process), self._on_end).start()

    def send(self, number: int, *, group: bool = True) -> None:
        """Send a signal to the group, or to the leader alone; no effect after the end."""
        with self._reaping:
            if self._process is None or self._process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                if group:
                    os.killpg(self._process.pid, number)
                else:
                    os.kill(self._process.pid, number)

    def wait(self, seconds: float) -> Ended | None:
        """Return how it ended, None when it still runs after so many seconds."""
        self._over.wait(timeout=max(0.0, seconds))
        return self._ended

    def ask(self, grace: float, *, number: int = signal.SIGTERM, group: bool = True) -> None:
        """Ask it to end; when the leader has, the rest of its group has the time that is left."""
        self._until = time.monotonic() + grace
        self.send(number, group=group)

    def kill(self) -> None:
        """End the whole group at once."""
        self._until = 0.0
        self.send(signal.SIGKILL)

    def stop(self, grace: float, *, number: int = signal.SIGTERM, group: bool = True) -> Ended:
        """End it: ask, and after the grace kill the whole group."""
        self.ask(grace, number=number, group=group)
        while (ended := self.wait(grace)) is None:
            self.kill()
            grace = 1.0
        return ended

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Pass its output on until it has ended, then clear up and tell."""
        with selectors.DefaultSelector() as selector:
            for pipe, sink in zip((process.stdout, process.stderr), self._sinks, strict=True):
                if pipe is not None:
                    selector.register(pipe, selectors.EVENT_READ, sink)
            self._copy(selector, [process.pid], math.inf)
            self._drain(selector)
            words = self._tail.lines()
            # The leader is not reaped yet, so the group's id is still its own.
            self.send(signal.SIGTERM)
            deadline = max(self._until, time.monotonic() + self._rest)
            while (left := members(process.pid)) and time.monotonic() < deadline:
                self._copy(selector, left, deadline)
            self.send(signal.SIGKILL)
            self._copy(selector, [], time.monotonic() + _OUTPUT_SECONDS)
        with self._reaping:
            status = process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        seconds = time.monotonic() - self._started
        self._ended = Ended(self.name, status, seconds, self._tail.lines(), words)
        self._over.set()
        self._on_end(self._ended)

    def _copy(self, selector: selectors.BaseSelector, pids: Sequence[int], until: float) -> None:
        """Copy output until one of some processes has ended, or without any, all of it."""
        fds = []
        try:
            for pid in pids:
                fds.append(os.pidfd_open(pid))
                selector.register(fds[-1], selectors.EVENT_READ)
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(None if left == math.inf else left):
                    if key.fd in fds:
                        return
                    self._take(selector, key)
        except ProcessLookupError:
            return  # one ended before it could be watched
        finally:
            for fd in fds:
                with suppress(KeyError):
                    selector.unregister(fd)
                os.close(fd)

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Copy what has been written by now, and wait for nothing."""
        deadline = time.monotonic() + _OUTPUT_SECONDS
        while time.monotonic() < deadline and (ready := selector.select(0)):
            for key, _ in ready:
                self._take(selector, key)

    def _take(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        data = os.read(key.fd, _CHUNK)
        if data:
            self._tail.add(key.fd, data)
            self._pass_on(key.data, data)
        else:
            selector.unregister(key.fileobj)

    @staticmethod
    def _pass_on(sink: IO[bytes], data: bytes) -> None:
        # Whoever read our output has gone: that must not stop the child, which would block.
        with suppress(OSError, ValueError):
            sink.write(data)
            sink.flush()
