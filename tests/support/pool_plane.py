"""The pool's data plane as it runs: a real Envoy over replicas that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tandem_common.clock import Deadline
from vllm_pool.dataplane import config, files, process
from vllm_pool.dataplane.config import Backend, PlaneSettings

#: What anything that should be there in a moment may take.
SOON = 20.0
#: What the harness itself may take, also where a test has little patience.
_SETUP = 20.0


class HarnessError(Exception):
    """Something that a test stands on has failed, and not what it tests."""


def until(holds: Callable[[], Any], what: str, seconds: float | None = None) -> None:
    """Wait until something holds, as a rule `SOON`; fail with its name when it does not."""
    patience = SOON if seconds is None else seconds
    deadline = Deadline(patience)
    while not holds():
        if deadline.passed:
            raise AssertionError(f"not within {patience:g} s: {what}")
        time.sleep(0.01)


def _given(holds: Callable[[], Any], what: str) -> None:
    """Wait for what a test takes for granted.

    Raises:
        HarnessError: it does not come.
    """
    try:
        until(holds, what, _SETUP)
    except AssertionError as error:
        raise HarnessError(str(error)) from error


@dataclass(frozen=True)
class Asked:
    """A request as a replica has got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    head: bytes

    def header(self, name: str) -> str | None:
        """Return the last header of that name, or None."""
        return dict(self.headers).get(name.lower())


class Exchange:
    """One request under way at a replica: what was asked, and the bytes of the answer."""

    def __init__(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.asked = asked
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes and wait until they are taken."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, status: int = 200, body: bytes = b"{}", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole answer with a length."""
        lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def begin(self) -> None:
        """Begin an event stream."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        """Send one chunk; an empty one ends the stream."""
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def gone(self) -> None:
        """Wait until the other side has closed."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close with a reset."""
        self.writer.transport.abort()


Answer = Callable[["Replica", Exchange], Awaitable[None]]


async def friendly(replica: Replica, exchange: Exchange) -> None:
    """Answer with the replica's name."""
    body = json.dumps({"id": replica.id}).encode()
    await exchange.answer(200, body, {"content-type": "application/json"})


def failing(status: int, body: bytes = b'{"error": "sick"}') -> Answer:
    """Return an answer that fails."""

    async def answer(_replica: Replica, exchange: Exchange) -> None:
        await exchange.answer(status, body)

    return answer


async def resetting(_replica: Replica, exchange: Exchange) -> None:
    """Reset the connection instead of answering."""
    exchange.reset()


class Replica:
    """A server that answers as it is told and remembers what it was asked."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.id = name
        self.loop = loop
        self.answer: Answer = friendly
        self.asked: list[Asked] = []
        #: Why it could not read what it was sent.
        self.puzzled: list[str] = []
        self.active = 0
        self.most_active = 0
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int = 0, path: Path | None = None) -> None:
        """Listen on a port of 127.0.0.1, or on a socket's path."""
        if path is not None:
            self._server = await asyncio.start_unix_server(self._serve, path=path, backlog=1024)
            return
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, backlog=2048, limit=2**20
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and reset what is open, as a killed process does."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The transports close their sockets in the loop's next round.
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                self.active += 1
                self.most_active = max(self.most_active, self.active)
                try:
                    await self.answer(self, Exchange(asked, reader, writer))
                finally:
                    self.active -= 1
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except ValueError as error:
            self.puzzled.append(str(error))
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def backend(self, **changes: Any) -> Backend:
        """Return this replica as a member of the pool."""
        return replace(Backend(self.id, "127.0.0.1", self.port), **changes)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = [
        (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
    ]
    method, target, _ = first.split(" ")
    length = dict(headers).get("content-length")
    body = b""
    if length is not None:
        body = await reader.readexactly(int(length))
    elif "chunked" in dict(headers).get("transfer-encoding", ""):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return Asked(method, target, headers, body, head)


@dataclass(frozen=True)
class Reply:
    """An answer as a client has got it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The name of the replica that has answered; it fails when none has."""
        try:
            return str(json.loads(self.body)["id"])
        except (ValueError, LookupError, TypeError):
            raise AssertionError(f"no replica has answered: {self}") from None


@dataclass
class Plane:
    """Envoy over a set of replicas, in a run directory of its own."""

    settings: PlaneSettings
    loop: asyncio.AbstractEventLoop
    port: int = 0
    replicas: list[Replica] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def run_dir(self) -> Path:
        """Where Envoy's files are."""
        return self.settings.run_dir

    def wait(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something of the replicas' to its end."""
        try:
            asyncio.run_coroutine_threadsafe(work, self.loop).result(_SETUP)
        except TimeoutError as error:
            raise HarnessError("the replicas' loop is stuck") from error

    def replica(self, name: str, answer: Answer = friendly, port: int = 0) -> Replica:
        """Start a replica; it is no member yet."""
        made = Replica(name, self.loop)
        made.answer = answer
        self.wait(made.listen(port))
        self.replicas.append(made)
        return made

    def manager(self, answer: Answer = friendly) -> Replica:
        """Start what stands for the manager, on its socket."""
        made = Replica("manager", self.loop)
        made.answer = answer
        self.wait(made.listen(path=self.run_dir / config.MANAGER_SOCKET))
        self.replicas.append(made)
        return made

    def members(self, backends: Iterable[Backend | Replica]) -> None:
        """Tell Envoy its members and wait until it has read them."""
        wanted = [one.backend() if isinstance(one, Replica) else one for one in backends]
        files.write_endpoints(self.run_dir, wanted)
        # What was written decides, and not what should have been: of a balancer that writes
        # something wrong, the tests have to tell.
        (written,) = _resources(self.run_dir / config.ENDPOINTS_FILE)
        names = {
            _told(one["endpoint"], one["health_status"])
            for group in written["endpoints"]
            for one in group["lb_endpoints"]
        }

        def known() -> bool:
            return all(
                {_told(host, _health(host)) for host in hosts} == names for hosts in self._hosts()
            )

        _given(known, f"Envoy knows {sorted(names)}")
        versions = self._versions_of_routes()
        _given(lambda: self._routes() in versions, f"Envoy has the routes {versions}")

    def pool(self, count: int) -> list[Replica]:
        """Start so many replicas and make them the members."""
        made = [self.replica(f"b{number}") for number in range(count)]
        self.members(made)
        return made

    def _hosts(self) -> list[list[dict[str, Any]]]:
        report = json.loads(self.admin("/clusters?format=json"))
        return [
            cluster.get("host_statuses", [])
            for cluster in report["cluster_statuses"]
            if cluster["name"] in (config.KEYED, config.UNKEYED)
        ]

    def _versions_of_routes(self) -> set[str]:
        """Return the versions of all routes that are as those which count now.

        Envoy keeps what it has, its version too, when another one says the same.
        """
        files = [json.loads(path.read_bytes()) for path in self.run_dir.glob("routes*.json")]
        chosen = json.loads((self.run_dir / config.ROUTES_FILE).read_bytes())
        return {
            each["version_info"] for each in files if each["resources"] == chosen["resources"]
        }  # fmt: skip

    def _routes(self) -> str:
        """Return the version of the routes that Envoy has."""
        for line in self.admin("/config_dump?resource=dynamic_route_configs").splitlines():
            name, _, value = line.partition(":")
            if "version_info" in name:
                return value.strip(' ",')
        return ""

    def admin(self, path: str, method: str = "GET") -> str:
        """Ask Envoy's admin interface."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SETUP)
            connection.connect(str(self.run_dir / config.ADMIN_SOCKET))
            connection.sendall(
                f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode()
            )
            response = http.client.HTTPResponse(connection, method=method)
            response.begin()
            return response.read().decode()

    def counter(self, name: str) -> int:
        """Return one of Envoy's counters."""
        for line in self.admin("/stats").splitlines():
            found, _, value = line.partition(": ")
            if found == name:
                return int(value)
        raise AssertionError(f"Envoy has no counter {name}")

    def rss(self) -> int:
        """Bytes of memory that Envoy holds."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def start(self) -> None:
        """Start Envoy and wait until it serves."""
        files.write_plane(self.settings)
        with (self.run_dir / "envoy.log").open("ab") as log:
            self.process = subprocess.Popen(
                process.command(self.run_dir, self.settings),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        _given(self._serves, "Envoy serves")
        listeners = json.loads(self.admin("/listeners?format=json"))["listener_statuses"]
        self.port = listeners[0]["local_address"]["socket_address"]["port_value"]

    def _serves(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise HarnessError((self.run_dir / "envoy.log").read_text())
        try:
            return self.admin("/ready").strip() == "LIVE"
        except OSError:
            return False

    def stop(self) -> None:
        """End Envoy at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def connect(self) -> socket.socket:
        """Open a connection of one's own to the pool."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SOON)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(
        self, method: str, path: str, body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:  # fmt: skip
        """Ask the pool on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3 * SOON)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, fields, response.read())
        finally:
            connection.close()

    def chat(
        self, messages: Sequence[Mapping[str, Any]], headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Reply:  # fmt: skip
        """Ask for a chat completion."""
        body = json.dumps({"model": "m", **fields, "messages": messages}).encode()
        return self.ask("POST", "/v1/chat/completions", body, headers)

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are; return all that comes until the connection closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def __enter__(self) -> Self:
        """Start Envoy."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """End Envoy and every replica."""
        self.stop()
        for replica in self.replicas:
            self.wait(replica.close())


def _resources(path: Path) -> list[dict[str, Any]]:
    """Return what a file of Envoy's holds."""
    found: list[dict[str, Any]] = json.loads(path.read_bytes())["resources"]
    return found


def _told(host: Mapping[str, Any], health: str) -> tuple[str, int, bool]:
    """Return what Envoy was told of a member: its name, its port and whether it drains."""
    port = int(host["address"]["socket_address"]["port_value"])
    return str(host["hostname"]), port, health == "DRAINING"


def _health(host: Mapping[str, Any]) -> str:
    return str(host["health_status"].get("eds_health_status"))


def read_all(connection: socket.socket) -> bytes:
    """Return everything until the other side closes; a reset raises `ConnectionResetError`."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return everything up to and with some bytes, and what came in one piece with them."""
    found = b""
    while end not in found:
        part = connection.recv(65536)
        if not part:
            raise AssertionError(f"closed before {end!r}: {found!r}")
        found += part
    return found


@contextlib.contextmanager
def replicas_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread; all that is left in it ends with the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="replicas")
    thread.start()

    async def end() -> None:
        # A connection that was being made while its server closed begins a task of its own.
        for _ in range(3):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.sleep(0.01)

    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(_SETUP)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def planes() -> Iterator[Callable[..., Plane]]:
    """Yield a function that starts a data plane with some settings; all end with the block."""
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(replicas_loop())

        def make(**settings: Any) -> Plane:
            # Paths of sockets are short by nature: 107 bytes.
            run_dir = Path(tempfile.mkdtemp(prefix="pool-"))
            stack.callback(shutil.rmtree, run_dir)
            wanted = PlaneSettings(run_dir=run_dir, listen_port=0, **settings)
            return stack.enter_context(Plane(wanted, loop))

        yield make
