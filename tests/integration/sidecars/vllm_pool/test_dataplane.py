"""The data plane with a real Envoy, in front of small replicas on loopback."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem_common.errors import UserError
from vllm_pool.dataplane import config, files, process
from vllm_pool.dataplane.config import Backend, PlaneSettings
from vllm_pool.dataplane.stats import Admin

SECONDS = 20.0
TOKEN = "of-this-run"  # noqa: S105 - of the test


class Replica:
    """Answers with its own name, keeps what it was sent, and fails when told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append((self.path, headers, body))
                data = outer.name.encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def backend(self, **more: Any) -> Backend:
        return Backend(self.name, "127.0.0.1", self.port, **more)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Plane:
    """An Envoy on its files, and a client of it."""

    def __init__(self, folder: Path, replicas: list[Replica]) -> None:
        self.settings = PlaneSettings(folder / "run", listen_port=free_port(), token=TOKEN)
        self.run = self.settings.run_dir
        files.write_plane(self.settings)
        process.validate(self.run)
        files.write_endpoints(self.run, [each.backend() for each in replicas])
        self._log = (folder / "envoy.log").open("wb")
        self._envoy = subprocess.Popen(
            process.command(self.run, self.settings), stdout=self._log, stderr=self._log
        )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.settings.listen_port}",
            headers={"Authorization": f"Bearer {TOKEN}"}, timeout=SECONDS,
        )  # fmt: skip
        until(lambda: self.served("/up") == 200 or not replicas)

    def served(self, path: str) -> int:
        try:
            return self.client.get(path).status_code
        except httpx.TransportError:
            return 0

    def who(self, session: str) -> str:
        return self.client.get("/x", headers={"x-session-id": session}).text

    def chat(self, *turns: tuple[str, str], **more: Any) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return self.client.post(
            "/v1/chat/completions", json={"model": "m", "messages": messages, **more}
        ).text

    def close(self) -> None:
        self.client.close()
        self._envoy.terminate()
        self._envoy.wait(timeout=SECONDS)
        self._log.close()


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    every = [Replica(name) for name in "abc"]
    yield every
    for each in every:
        each.close()


@pytest.fixture
def plane(tmp_path: Path, replicas: list[Replica]) -> Iterator[Plane]:
    made = Plane(tmp_path, replicas)
    yield made
    made.close()


def all_seen(replicas: list[Replica]) -> list[tuple[str, dict[str, str], bytes]]:
    return [each for replica in replicas for each in replica.seen if each[0] != "/up"]


def test_a_request_passes_as_it_is_and_without_the_token(
    plane: Plane, replicas: list[Replica]
) -> None:
    body = b'{ "messages":[{"role":"user","content":"\\u00e9 "}],  "odd": 1.50 }\n'
    plane.client.post("/v1/chat/completions?a=1&a=2", content=body, headers={"X-Own": "kept"})
    [(path, headers, got)] = all_seen(replicas)
    assert (path, got, headers["x-own"]) == ("/v1/chat/completions?a=1&a=2", body, "kept")
    assert "authorization" not in headers
    assert [name for name in headers if "envoy" in name or "pool-key" in name] == []


def test_without_the_token_nothing_reaches_a_replica(plane: Plane, replicas: list[Replica]) -> None:
    for wrong in ("", "Bearer other"):
        answer = plane.client.get("/v1/models", headers={"Authorization": wrong})
        assert answer.status_code == 401
        assert answer.json()
    assert all_seen(replicas) == []


def test_sessions_and_growing_conversations_stay_and_others_spread(
    plane: Plane, replicas: list[Replica]
) -> None:
    for number in range(12):
        assert plane.who(f"s{number}") == plane.who(f"s{number}")
        start = ("user", f"question {number}")
        favourite = plane.chat(start, seed=1)
        grown = plane.chat(start, ("assistant", "answer"), ("user", "more"), seed=2)
        assert grown == favourite
    assert len({plane.who(f"t{number}") for number in range(40)}) == len(replicas)


def test_a_sick_replica_is_made_up_for_and_never_asked_twice(
    plane: Plane, replicas: list[Replica]
) -> None:
    sick = replicas[0]
    session = next(f"s{n}" for n in range(100) if plane.who(f"s{n}") == sick.name)
    sick.status = 503
    before = len(sick.seen)
    assert plane.who(session) in "bc"
    assert len(sick.seen) == before + 1
    for each in replicas:
        each.status = 500
    before = len(all_seen(replicas))
    answer = plane.client.get("/x", headers={"x-session-id": session})
    assert (answer.status_code, answer.text in "abc") == (500, True)
    assert len(all_seen(replicas)) == before + len(replicas)


def test_what_is_the_clients_fault_is_asked_once(plane: Plane, replicas: list[Replica]) -> None:
    for each in replicas:
        each.status = 422
    assert plane.client.get("/x").status_code == 422
    assert len(all_seen(replicas)) == 1


def test_members_come_drain_and_go_by_file(plane: Plane, replicas: list[Replica]) -> None:
    first, second, third = replicas
    files.write_endpoints(
        plane.run, [first.backend(), second.backend(draining=True), third.backend(draining=True)]
    )
    until(lambda: {plane.who(f"s{n}") for n in range(20)} == {first.name})
    files.write_endpoints(plane.run, [second.backend()])
    until(lambda: {plane.who(f"s{n}") for n in range(20)} == {second.name})
    files.write_endpoints(plane.run, [])
    until(lambda: plane.served("/x") == 503)
    answer = plane.client.get("/x")
    assert answer.json()
    assert not files.write_endpoints(plane.run, [])


def test_what_a_dead_replica_had_goes_to_others(plane: Plane, replicas: list[Replica]) -> None:
    replicas[0].close()
    assert {plane.who(f"s{n}") for n in range(40)} <= {"b", "c"}
    replicas[0] = Replica("a")


def test_a_member_that_moves_keeps_its_sessions(plane: Plane, replicas: list[Replica]) -> None:
    before = {f"s{n}": plane.who(f"s{n}") for n in range(40)}
    moved = Replica("a")
    files.write_endpoints(plane.run, [moved.backend(), *(each.backend() for each in replicas[1:])])
    until(lambda: [plane.who(name) for name in before] and moved.seen)
    assert {name: plane.who(name) for name in before} == before
    moved.close()


def test_counters_are_told_by_replica(plane: Plane) -> None:
    for number in range(10):
        plane.who(f"s{number}")

    async def ask() -> dict[str, int]:
        async with Admin(plane.run / config.ADMIN_SOCKET) as admin:
            assert await admin.ready()
            return {name: stats.total for name, stats in (await admin.backends()).items()}

    found = asyncio.run(ask())
    assert sorted(found) == ["a", "b", "c"]
    assert sum(found.values()) >= 10


def test_secrets_are_private_and_a_port_is_not_shared(plane: Plane) -> None:
    assert plane.run.stat().st_mode & 0o777 == 0o700
    for path in plane.run.glob("*.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert TOKEN not in " ".join(process.command(plane.run, plane.settings))
    with pytest.raises(UserError, match="is taken"):
        process.check_port(plane.settings)
