"""What each task of a replica's step is: it runs the agent, and ends with the launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from slurm_launcher.allocation import lease
from tandem_common import logs
from tandem_common.processes import ending_with_us, exit_code, members

_GRACE_SECONDS: Final = 30.0
_SCANCEL_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.05


class Task:
    """One task; `run` is its life."""

    def __init__(
        self, argv: Sequence[str], *, host: str, port: int, name: str, seconds: float, job: str
    ) -> None:
        """Take what to run and whose it is.

        Args:
            argv: Command line to run.
            host: The launcher's host.
            port: Port of its leases.
            name: The replica.
            seconds: Longest silence of the launcher.
            job: Id of the job, which ends when the launcher is gone.
        """
        self._where = (host, port)
        self._name, self._seconds, self._argv, self._job = name, seconds, argv, job
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._log = logs.get_logger(replica=name)

    async def run(self) -> int:
        """Run it; return its exit code."""
        loop = asyncio.get_running_loop()
        # The kernel ends it with the thread that made it: this one, which lives as long as we.
        self._process = process = subprocess.Popen(  # noqa: ASYNC220
            ending_with_us(self._argv), stdin=subprocess.DEVNULL, start_new_session=True
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, self._drain, signal.Signals(number).name)
        over = asyncio.create_task(asyncio.to_thread(process.wait))
        held = asyncio.create_task(lease.hold(*self._where, self._name, self._seconds, self._drain))
        try:
            await asyncio.wait({over, held}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                self._log.error("launcher_gone", seconds=self._seconds, job=self._job)
                self._drain("no launcher")
                await asyncio.wait({over}, timeout=_GRACE_SECONDS)
                await asyncio.to_thread(self._end_job)
        finally:
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            self._kill(process)
        return exit_code(await over)

    def _drain(self, why: str = "asked") -> None:
        """Ask what runs to end: an agent has its server drained first."""
        if self._asked or self._process is None:
            return
        self._asked = True
        self._log.info("draining", why=why)
        self._process.send_signal(signal.SIGTERM)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Leave nothing of the group."""
        if process.poll() is None or members(process.pid):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _end_job(self) -> None:
        """End the job: nobody else is there to do it."""
        ran = subprocess.run(
            ["scancel", self._job], check=False, capture_output=True, text=True,
            timeout=_SCANCEL_SECONDS,
        )  # fmt: skip
        if ran.returncode != 0:
            self._log.error("scancel_failed", reason=ran.stderr.strip())
