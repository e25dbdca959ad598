"""The dead-man's line between the launcher and each replica's tasks.

Slurm goes on with an allocation whose batch host is gone: nobody is in charge, and its nodes are
lost to everybody. So each task holds a connection to the launcher, which says each moment that it
lives, and may ask the task to drain. A task that hears nothing for long ends itself, and the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Seconds between two signs of life.
BEAT_SECONDS: Final = 1.0
_BEAT: Final = b"alive\n"
_DRAIN: Final = b"drain\n"
_CONNECT_SECONDS: Final = 3.0


class Leases:
    """The launcher's side: one connection for each task."""

    def __init__(self) -> None:
        """Begin without any."""
        self._server: asyncio.Server | None = None
        self._held: dict[str, set[asyncio.StreamWriter]] = {}
        self._draining: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str) -> int:
        """Listen on a port that is free; return it."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Let all go."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def held(self, name: str) -> bool:
        """Return whether a task of a replica holds a connection."""
        return bool(self._held.get(name))

    def drain(self, name: str) -> None:
        """Ask the tasks of a replica to drain, now and whenever they come."""
        self._draining.add(name)
        for writer in self._held.get(name, ()):
            writer.write(_DRAIN)

    def renewed(self, name: str) -> None:
        """Forget that a replica was to drain: it is started again."""
        self._draining.discard(name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        name = ""
        try:
            name = (await asyncio.wait_for(reader.readline(), _CONNECT_SECONDS)).decode().strip()
            self._held.setdefault(name, set()).add(writer)
            if name in self._draining:
                writer.write(_DRAIN)
            gone = asyncio.create_task(reader.read())
            try:
                while not gone.done():
                    writer.write(_BEAT)
                    await writer.drain()
                    await asyncio.wait({gone}, timeout=BEAT_SECONDS)
            finally:
                gone.cancel()
        except (OSError, TimeoutError, ValueError):
            pass  # a task that went away; its step's end tells the rest
        finally:
            self._held.get(name, set()).discard(writer)
            writer.close()
            if task is not None:
                self._tasks.discard(task)


async def hold(host: str, port: int, name: str, seconds: float, drain: Callable[[], None]) -> None:
    """Hold the task's side; return when nothing was heard for so many seconds.

    Args:
        host: The launcher's host.
        port: Its port.
        name: The replica.
        seconds: Longest silence.
        drain: Called when the launcher wants the replica drained; maybe more than once.
    """
    loop = asyncio.get_running_loop()
    heard = loop.time()
    while (left := heard + seconds - loop.time()) > 0:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(min(_CONNECT_SECONDS, left)):
                reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"{name}\n".encode())
                while True:
                    async with asyncio.timeout(heard + seconds - loop.time()):
                        line = await reader.readline()
                    if not line:
                        break
                    heard = loop.time()
                    if line == _DRAIN:
                        drain()
            finally:
                writer.close()
        await asyncio.sleep(min(0.2, seconds / 10))
