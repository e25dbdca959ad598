"""The vLLM server as a child of the agent.

It leads a process group of its own and writes to the agent's own output. Nothing of the group
outlives its leader, and the leader does not outlive the agent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tandem_common.errors import Problem, UserError
from tandem_common.processes import ending_with_us, members

#: Seconds that the rest of the group gets when its leader has ended.
REST_SECONDS = 5.0
_LOOK_SECONDS = 0.05


class Child:
    """One child process with its group. Made, started and waited for in the event loop's thread.

    The kernel ends the child when the *thread* that made it ends: that must be the main one.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Take the command line and the whole environment; nothing is started yet."""
        self._argv = list(argv)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._over: asyncio.Future[int] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Its process id, also that of its group; 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it.

        Raises:
            UserError: It cannot be started.
        """
        if not shutil.which(self._argv[0], path=self._env.get("PATH")):
            raise UserError(
                Problem(f"there is no program {self._argv[0]!r}", "name one that is on PATH")
            )
        try:
            self._process = subprocess.Popen(
                ending_with_us(self._argv),
                stdin=subprocess.DEVNULL, env=self._env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                Problem(f"cannot start {self._argv[0]!r}: {error}", "mend what the message says")
            ) from None
        self._over = asyncio.get_running_loop().create_future()
        self._following = asyncio.create_task(self._follow(self._process, self._over))

    async def wait(self) -> int:
        """Return its status when it and its whole group have ended.

        Raises:
            RuntimeError: It was never started.
        """
        if self._over is None:
            raise RuntimeError("not started")
        return await asyncio.shield(self._over)

    def send(self, number: int) -> None:
        """Send a signal to the whole group; no effect after the end."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def stop(self, grace: float) -> int:
        """End it: ask the group, and kill it after so many seconds; return its status."""
        self.send(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await self.wait()

    async def _follow(self, process: subprocess.Popen[bytes], over: asyncio.Future[int]) -> None:
        """Wait for the leader, clear up its group, then reap it."""
        loop = asyncio.get_running_loop()
        # Not reaped by us, it cannot be gone before it is watched.
        descriptor = os.pidfd_open(process.pid)
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        # The leader is a zombie still, so the group's id is its own.
        self.send(signal.SIGTERM)
        for _ in range(round(REST_SECONDS / _LOOK_SECONDS)):
            if not members(process.pid):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        self.send(signal.SIGKILL)
        over.set_result(process.wait())
