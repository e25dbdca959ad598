"""The baseline that the pool's data plane is measured against: a plain aiohttp reverse proxy.

It is what a competent engineer writes in an afternoon, and nothing of Tandem uses it: one
process, one pool of connections without a limit, the replica with the least under way, another
one when a connection cannot be made, answers passed on as they come, no access log. It has no
health checks, no affinity, no retry of answers, and cannot change its members.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from dataclasses import dataclass

from aiohttp import ClientConnectorError, ClientSession, ClientTimeout, TCPConnector, web
from multidict import CIMultiDict, CIMultiDictProxy

HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Replica:
    """One replica and how many requests it has under way."""

    url: str
    active: int = 0


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers that go beyond this hop."""
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP
    )


class Proxy:
    """The handler of every path."""

    def __init__(self, replicas: list[Replica]) -> None:
        """Take the replicas; they stay the same."""
        self.replicas = replicas
        self.session: ClientSession | None = None

    async def open(self, _app: web.Application) -> None:
        """Open the pool of connections."""
        self.session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None, sock_connect=2),
            auto_decompress=False,
        )

    async def close(self, _app: web.Application) -> None:
        """Close it."""
        if self.session is not None:
            await self.session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on; the next replica is asked when one cannot be reached."""
        body = await request.read()
        headers = passed_on(request.headers)
        tried: set[str] = set()
        while left := [one for one in self.replicas if one.url not in tried]:
            replica = min(left, key=lambda one: one.active)
            tried.add(replica.url)
            replica.active += 1
            try:
                return await self._ask(request, replica, headers, body)
            except ClientConnectorError:
                continue
            finally:
                replica.active -= 1
        raise web.HTTPBadGateway(text='{"error": {"message": "no replica can be reached"}}')

    async def _ask(
        self, request: web.Request, replica: Replica, headers: CIMultiDict[str], body: bytes
    ) -> web.StreamResponse:
        if self.session is None:
            raise RuntimeError("the application has not been started")
        async with self.session.request(
            request.method, replica.url + request.raw_path, headers=headers, data=body,
            allow_redirects=False,
        ) as answer:  # fmt: skip
            response = web.StreamResponse(status=answer.status, headers=passed_on(answer.headers))
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


async def serve(port: int, replicas: list[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    proxy = Proxy([Replica(url) for url in replicas])
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.on_startup.append(proxy.open)
    app.on_cleanup.append(proxy.close)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    print(runner.addresses[0][1], flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await runner.cleanup()


def main() -> None:
    """Read the arguments and serve; the first line on standard output is the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("replicas", nargs="+", metavar="URL")
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(args.port, args.replicas))


if __name__ == "__main__":
    main()
