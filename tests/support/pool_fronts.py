"""Broken proxies to stand between a client and the pool, for what Envoy cannot be told to do wrong.

Each relays bytes and does one thing as some proxy in the world does it. None is part of the
product: they prove that a test which should fail on them does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator

_SETUP = 20.0
_END_OF_CHUNKS = b"0\r\n\r\n"


class Front:
    """A relay that does nothing wrong; the broken ones are its children."""

    def __init__(self, port: int) -> None:
        """Take the pool's port."""
        self.port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, data: bytes) -> bytes:
        """Return what is sent on of some bytes of the client's."""
        return data

    def answer(self, data: bytes) -> bytes:
        """Return what is sent back of some bytes of the pool's."""
        return data

    def last_words(self) -> bytes:
        """Return what is said to the client when the pool has closed."""
        return b""

    def tells_of_its_leave(self) -> bool:
        """Whether the pool hears that the client has gone."""
        return True

    async def listen(self) -> int:
        """Listen on a port of 127.0.0.1 and return it."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_pool: asyncio.StreamWriter | None = None
        try:
            pool, to_pool = await asyncio.open_connection("127.0.0.1", self.port)
            async with asyncio.TaskGroup() as both:
                forth = both.create_task(self._forth(client, to_pool))
                await self._back(pool, to_client)
                forth.cancel()
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            self._tasks.discard(task)
            to_client.close()
            if to_pool is not None:
                to_pool.transport.abort()

    async def _forth(self, client: asyncio.StreamReader, pool: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await client.read(65536):
                pool.write(self.request(data))
                await pool.drain()
        if self.tells_of_its_leave():
            pool.close()

    async def _back(self, pool: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await pool.read(65536):
                client.write(self.answer(data))
                await client.drain()
        client.write(self.last_words())
        await client.drain()


class EndsCutStreams(Front):
    """Ends a chunked answer well that was cut."""

    def last_words(self) -> bytes:
        """Return the last chunk."""
        return _END_OF_CHUNKS


class EndsByClosing(Front):
    """Takes the length from an answer: it ends when the connection does."""

    def answer(self, data: bytes) -> bytes:
        """Return the answer without its length."""
        return re.sub(rb"(?i)content-length: \d+\r\n", b"connection: close\r\n", data, count=1)


class CutsLongAnswers(Front):
    """Passes a part of an answer only."""

    async def _back(self, pool: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        for _ in range(8):
            client.write(await pool.read(65536))
            await client.drain()


class WorksForNobody(Front):
    """Lets the pool work on when the client has gone."""

    def tells_of_its_leave(self) -> bool:
        """Never."""
        return False


class FirstLengthCounts(Front):
    """Passes the first of two lengths."""

    def request(self, data: bytes) -> bytes:
        """Return the request with one length."""
        first, length, rest = re.split(rb"(?i)(content-length: *\d+)", data, maxsplit=1)
        return first + length + re.sub(rb"(?i)\r\ncontent-length:[^\r]*|, *\d+", b"", rest, count=1)


class ForgivesBlanks(Front):
    """Passes a header's name without the blanks behind it."""

    def request(self, data: bytes) -> bytes:
        """Return the request without such blanks."""
        return re.sub(rb"\r\n([\w-]+) +:", rb"\r\n\1:", data)


class Unfolds(Front):
    """Makes headers of the lines that a header goes on with."""

    def request(self, data: bytes) -> bytes:
        """Return the request with a header for each line."""
        return re.sub(rb"\r\n[ \t]+", b"\r\n", data)


class NamesAHost(Front):
    """Gives a host to a request that names none."""

    def request(self, data: bytes) -> bytes:
        """Return the request with a host."""
        return data.replace(b"\r\n", b"\r\nhost: pool\r\n", 1)


class DropsNul(Front):
    """Passes a request without its NUL bytes."""

    def request(self, data: bytes) -> bytes:
        """Return it without them."""
        return data.replace(b"\0", b"")


class ReadsChunksLoosely(Front):
    """Takes what is no number for the end of the chunks."""

    def request(self, data: bytes) -> bytes:
        """Return the request with an end in place of it."""
        return re.sub(rb"\r\nzz\r\nabcd", b"", data)


@contextlib.contextmanager
def fronts(kind: type[Front], loop: asyncio.AbstractEventLoop, port: int) -> Iterator[int]:
    """Yield the port of a proxy before the pool's; it ends with the block."""
    front = kind(port)
    yield asyncio.run_coroutine_threadsafe(front.listen(), loop).result(_SETUP)
    asyncio.run_coroutine_threadsafe(front.close(), loop).result(_SETUP)
