"""A sidecar's program run as its image runs it, to be measured."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from types import TracebackType
from typing import Self

import psutil

from tandem.figures import Figure

_IDLE_SECONDS = 20.0
_READY_SECONDS = 30.0
_READY = 200
#: `rich` is there only for our own scripts, and structlog would load it.
_AS_IN_THE_IMAGE = """
import runpy, sys
sys.modules["rich"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SidecarProcess:
    """The program, from its start to the end of the block.

    Attributes:
        ready_seconds: From its start to 200 from /readyz.
    """

    def __init__(self, module: str, *words: str, port: int, environment: Mapping[str, str]) -> None:
        """Start it and wait until it is ready.

        Args:
            module: Run as `python -m`.
            words: Its arguments.
            port: Where its /readyz is, on loopback.
            environment: Variables on top of ours.

        Raises:
            RuntimeError: It ended, or was not ready in time.
        """
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AS_IN_THE_IMAGE, module, *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )  # fmt: skip
        while not _answers(port):
            if time.monotonic() - begun > _READY_SECONDS or self._process.poll() is not None:
                self.end()
                raise RuntimeError(f"{module} did not become ready")
            time.sleep(0.01)
        self.ready_seconds = time.monotonic() - begun

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.end()

    def end(self) -> None:
        """End it; no effect when it has ended."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def figures(self, name: str) -> list[Figure]:
        """Leave it alone for a while; return start, memory and CPU beside what is promised."""
        watched = psutil.Process(self._process.pid)
        before = watched.cpu_times()
        time.sleep(_IDLE_SECONDS)
        after = watched.cpu_times()
        used = after.user + after.system - before.user - before.system
        return [
            Figure(f"{name}, start to ready", self.ready_seconds, 2),
            # 60 MB.
            Figure(f"{name}, resident", watched.memory_info().rss / 2**20, 57, "MiB"),
            Figure(f"{name}, idle, of a core", 100 * used / _IDLE_SECONDS, None, "%"),
        ]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == _READY)
    except OSError:
        return False
