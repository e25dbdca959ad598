"""Keeps the two processes of a balancer alive, and ends them in order.

It does nothing else, so that there is little that could end it. Envoy serves without the manager,
and the manager waits for Envoy: each is started again by itself. Both end with this process,
however it goes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tandem_common import logs
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.processes import ending_with_us, exit_code
from vllm_pool.dataplane import config
from vllm_pool.dataplane.stats import Admin
from vllm_pool.serve.backoff import Backoff

LOCK_FILE: Final = "lock"
_GRACE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.1
_START_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 3.0
_ACTIVE: Final = "http.pool.downstream_rq_active"
#: Codes of a program that says itself that another try is of no use.
_HOPELESS: Final = frozenset({ExitCode.USAGE, ExitCode.PRECONDITION})


class GivenUpError(Exception):
    """A child cannot be kept alive; carries the exit code to end with."""

    def __init__(self, code: int) -> None:
        """Take the exit code."""
        self.code = code
        super().__init__(code)


@dataclass(slots=True)
class _Child:
    """A process that is kept alive."""

    name: str
    argv: Sequence[str]
    backoff: Backoff = field(default_factory=Backoff)
    process: asyncio.subprocess.Process | None = None


class Supervisor:
    """The supervisor; `run` is its life."""

    def __init__(
        self,
        run_dir: Path,
        commands: Mapping[str, Sequence[str]],
        *,
        address: str,
        notice_seconds: float,
        drain_seconds: float,
    ) -> None:
        """Take what to keep alive.

        Args:
            run_dir: Folder that the children share.
            commands: Command lines by name.
            address: Where the pool listens, to be told.
            notice_seconds: How long new requests are still taken when the end is asked for.
            drain_seconds: How long requests under way may take then.
        """
        self._run_dir = run_dir
        self._children = [_Child(name, argv) for name, argv in commands.items()]
        self._address = address
        self._notice = notice_seconds
        self._drain = drain_seconds
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._log = logs.get_logger()

    async def run(self) -> int:
        """Keep the children alive until the end is asked for; return the exit code.

        Raises:
            UserError: The run directory is another one's.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked, signal.Signals(number).name)
        lock = _locked(self._run_dir)
        try:
            return await self._live()
        finally:
            os.close(lock)

    def _asked(self, name: str) -> None:
        """Take a request to end; the second one ends the waiting."""
        self._log.info("end_asked", signal=name, again=self._stop.is_set())
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _live(self) -> int:
        kept = [asyncio.create_task(self._keep(child)) for child in self._children]
        began = asyncio.create_task(self._begin())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((*kept, stop), return_when=asyncio.FIRST_COMPLETED)
            for task in kept:
                if task.done():
                    task.result()
            await self._leave()
        except GivenUpError as error:
            return error.code
        finally:
            for each in (*kept, began, stop):
                each.cancel()
            await asyncio.gather(*kept, began, stop, return_exceptions=True)
            await asyncio.gather(*(self._end(child) for child in self._children))
        self._log.info("ended")
        return ExitCode.OK

    async def _keep(self, child: _Child) -> None:
        """Start a child, and again whenever it ends.

        Raises:
            GivenUpError: It ends at once every time, or says that it is of no use.
        """
        while True:
            began = time.monotonic()
            child.process = await asyncio.create_subprocess_exec(
                *ending_with_us(child.argv), stdin=asyncio.subprocess.DEVNULL,
                # A signal to our group is for us to pass on, in the right order.
                start_new_session=True,
            )  # fmt: skip
            self._log.info("child_started", child=child.name, pid=child.process.pid)
            code = exit_code(await child.process.wait())
            lived = time.monotonic() - began
            wait = child.backoff.ended(lived)
            self._log.warning(
                "child_ended", child=child.name, code=code, seconds=round(lived, 1), wait=wait
            )
            if wait is None or (code in _HOPELESS and child.backoff.never_lived):
                raise GivenUpError(code if code in _HOPELESS else ExitCode.FAILURE)
            await asyncio.sleep(wait)

    async def _begin(self) -> None:
        """Tell when both are there."""
        deadline = Deadline(_START_SECONDS)
        async with Admin(self._run_dir / config.ADMIN_SOCKET) as admin:
            while not deadline.passed:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    if await admin.ready() and await self._ask("GET", "/health"):
                        self._log.info("serving", address=self._address)
                        return
                await asyncio.sleep(_LOOK_SECONDS)
        self._log.warning("not_serving_yet", seconds=_START_SECONDS)

    async def _ask(self, method: str, path: str) -> bool:
        """Ask the manager; return whether it has answered."""
        connector = aiohttp.UnixConnector(path=str(self._run_dir / config.MANAGER_SOCKET))
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, f"http://manager{path}") as answer,
            ):
                await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True

    # The end.

    async def _leave(self) -> None:
        """Let everybody know, then wait for what is under way."""
        if not await self._ask("POST", "/pool/drain"):
            self._log.warning("manager_untold")
        await self._pause(self._notice)
        deadline = Deadline(self._drain)
        async with Admin(self._run_dir / config.ADMIN_SOCKET) as admin:
            try:
                await admin.drain()
                active = await self._active(admin)
                while active and not deadline.passed and not self._hurry.is_set():
                    await self._pause(deadline.within(_LOOK_SECONDS))
                    active = await self._active(admin)
                await admin.close_listener()
                # One may have come between the last look and the closing.
                last = Deadline(deadline.within(_GRACE_SECONDS))
                while await self._active(admin) and not last.passed and not self._hurry.is_set():
                    await self._pause(last.within(_LOOK_SECONDS))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._log.warning("not_drained", reason=f"{type(error).__name__}: {error}")
                return
        say = self._log.warning if active else self._log.info
        say("drained" if not active else "drain_cut_short", active=active,
            seconds=round(deadline.elapsed, 1))  # fmt: skip

    async def _active(self, admin: Admin) -> int:
        counters = await admin.counters(f"^{_ACTIVE}$")
        return counters.get(_ACTIVE, 0)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)

    async def _end(self, child: _Child) -> None:
        """End a child: ask it, and kill it when it does not."""
        process = child.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def _locked(run_dir: Path) -> int:
    """Make the run directory ours; return the descriptor that holds it.

    Raises:
        UserError: Another balancer has it.
    """
    descriptor = os.open(run_dir / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UserError(
            Problem(
                f"{run_dir} is the run directory of a balancer that runs",
                "end that one, or give each its own VLLM_POOL_RUN_DIR",
            ),
            ExitCode.PRECONDITION,
        ) from None
    return descriptor
