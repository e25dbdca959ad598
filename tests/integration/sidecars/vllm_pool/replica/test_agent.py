"""The agent as a process, with a fake manager and a fake vLLM: faults at will, on loopback."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.fake_vllm import FakeVllm
from support.gym_run import free_port, until
from tandem.paths import ROOT

SECONDS = 30.0
#: A vLLM server that can be a child: it listens on --port, and ends with 0 at SIGTERM.
CHILD = """
import http.server, json, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = {"/v1/models": {"data": [{"id": "m"}]}}.get(self.path, {"choices": [{"text": "x"}]})
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[3])))
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing: agents are killed here."""


class FakeManager:
    """The part of a manager's API that an agent uses; it forgets, refuses and goes away at will."""

    def __init__(self, port: int = 0) -> None:
        self.members: dict[str, dict[str, Any]] = {}
        self.known: dict[str, int] = {}
        self.seen: list[tuple[str, str, Any, str]] = []
        self.broken = False
        self.drains_at_once = True
        self._serve(port)

    def _serve(self, port: int) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(raw) if raw else None
                token = self.headers.get("Authorization", "")
                outer.seen.append((self.command, self.path, body, token))
                status, said = outer.answer(self.command, self.path, body)
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:  # noqa: PLR0911 - a case each
        if self.broken:
            return 503, "no healthy upstream"
        if path == "/health":
            backends = [{"id": name, **member} for name, member in self.members.items()]
            return 503, {"status": "unhealthy", "backends": backends}
        name = path.removeprefix("/pool/replicas/").partition("?")[0].partition("/")[0]
        if method == "PUT":
            known = self.known.get(name, 0)
            if body["epoch"] < known:
                return 409, {"error": "older", "epoch": known}
            self.known[name] = body["epoch"]
            state = self.members.get(name, {}).get("state", "joining")
            if state not in ("draining", "drained"):
                state = "ready" if body["ready"] else "unhealthy"
            self.members[name] = {"state": state, **body}
            return 200, {"id": name, "state": state}
        if name not in self.members:
            return 404, {"error": "unknown"}
        if method == "POST":
            self.members[name]["state"] = "drained" if self.drains_at_once else "draining"
            return 200, {"id": name, "state": self.members[name]["state"]}
        self.members.pop(name)
        return 200, {}

    def state(self, name: str = "judge-0") -> str:
        return str(self.members.get(name, {}).get("state", ""))

    def methods(self) -> list[str]:
        return [f"{method} {path.partition('?')[0]}" for method, path, _, _ in self.seen]

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def come_back(self) -> None:
        self._serve(self.port)


class Agents:
    """Starts agents and makes sure that none is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.log = folder / "agent.log"

    def start(self, *managers: str, target: str = "", command: tuple[str, ...] = (), **more: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        flags = {
            "id": "judge-0", "manager": ",".join(managers), "lease_seconds": "1.5",
            "request_seconds": "1", "probe_seconds": "0.1", "startup_probe_seconds": "0.05",
            "canary_seconds": "2", "startup_seconds": "25", "health_host": "127.0.0.1",
            "health_port": "0", "drain_seconds": "20", "grace_seconds": "10",
            "resolve_seconds": "0.2",
        } | more  # fmt: skip
        if target:
            flags["target"] = target
        code = (
            "import sys; from tandem_common.errors import run_main; "
            "from vllm_pool.replica.program import main; run_main(lambda: main(sys.argv[1:]))"
        )
        argv = [sys.executable, "-c", code]
        argv += [word for k, v in flags.items() for word in (f"--{k.replace('_', '-')}", v)]
        if command:
            argv += ["--", *command]
        path = os.pathsep.join(
            str(ROOT / each) for each in ("sidecars/common/src", "sidecars/vllm-pool/src")
        )
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv, stderr=log, stdout=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self.running.append(process)
        return process

    def events(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [str(json.loads(line)["event"]) for line in lines if line.startswith("{")]

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=SECONDS)


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    server = FakeVllm()
    server.answers["GET", "/health"] = (200, "")
    yield server
    server.close()


@pytest.fixture
def manager() -> Iterator[FakeManager]:
    server = FakeManager()
    yield server
    server.close()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    every = Agents(tmp_path)
    yield every
    every.close()


def test_it_is_registered_once_a_token_passes_and_not_before(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    vllm.answers["POST", "/v1/completions"] = (500, {})
    agents.start(manager.url, target=vllm.url)
    until(lambda: len([each for each in vllm.seen if each[1] == "/v1/completions"]) > 3)
    assert manager.seen == []
    vllm.answers["POST", "/v1/completions"] = (200, {"choices": [{"text": "x"}]})
    until(lambda: manager.state() == "ready")
    body = manager.members["judge-0"]
    assert body["url"] == vllm.url
    assert body["lease_seconds"] == 1.5
    assert abs(body["epoch"] / 1000 - time.time()) < 2 * SECONDS


def test_a_registration_is_renewed_with_the_token_of_the_file(
    vllm: FakeVllm, manager: FakeManager, agents: Agents, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n", encoding="utf-8")
    agents.start(manager.url, target=vllm.url, token_file=str(token))
    until(lambda: len(manager.seen) > 2)
    assert {each[3] for each in manager.seen} == {"Bearer first"}
    token.write_text("second\n", encoding="utf-8")
    until(lambda: manager.seen[-1][3] == "Bearer second")


def test_every_manager_gets_it_and_one_that_is_away_hinders_no_other(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    away = FakeManager()
    away.close()
    agents.start(away.url, manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    away.come_back()
    try:
        until(lambda: away.state() == "ready")
    finally:
        away.close()


def test_a_manager_that_has_forgotten_it_gets_it_again(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    agent = agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    manager.close()
    manager.members.clear()
    manager.known.clear()
    until(lambda: agents.events().count("registration") > 1, "it did not see that it is away")
    manager.come_back()
    until(lambda: manager.state() == "ready")
    assert agent.poll() is None


def test_a_server_that_fails_its_canary_is_told_of_and_also_when_it_recovers(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    epoch = manager.members["judge-0"]["epoch"]
    vllm.answers["POST", "/v1/completions"] = (500, {})
    until(lambda: manager.state() == "unhealthy")
    vllm.answers["POST", "/v1/completions"] = (200, {"choices": [{"text": "x"}]})
    until(lambda: manager.state() == "ready")
    assert manager.members["judge-0"]["epoch"] == epoch


def test_another_server_in_the_same_place_has_a_newer_epoch(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    vllm.answers["GET", "/metrics"] = (200, "vllm:generation_tokens_total 50\n")
    agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    # The look that found it ready has read the counter, too.
    epoch = manager.members["judge-0"]["epoch"]
    vllm.answers["GET", "/metrics"] = (200, "vllm:generation_tokens_total 2\n")
    until(lambda: manager.members["judge-0"]["epoch"] > epoch)
    until(lambda: manager.state() == "ready")


def test_a_clock_that_was_ahead_before_it_is_overruled(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    ahead = int(time.time() * 1000) + 3_600_000
    manager.known["judge-0"] = ahead
    agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    assert manager.members["judge-0"]["epoch"] == ahead + 1


def test_it_ends_when_a_newer_one_has_its_id(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    agent = agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    manager.known["judge-0"] += 5
    assert agent.wait(timeout=SECONDS) == 3
    assert "newer process has the id" in agents.log.read_text(encoding="utf-8")


def test_at_sigterm_it_drains_then_withdraws_then_ends_the_child(
    manager: FakeManager, agents: Agents
) -> None:
    manager.drains_at_once = False
    port = free_port()
    agent = agents.start(
        manager.url, command=(sys.executable, "-c", CHILD, "--port", str(port), "0")
    )
    until(lambda: manager.state() == "ready")
    assert manager.members["judge-0"]["url"] == f"http://127.0.0.1:{port}"
    agent.send_signal(signal.SIGTERM)
    until(lambda: manager.state() == "draining")
    count = len(manager.seen)
    until(lambda: len(manager.seen) > count + 3)
    assert agent.poll() is None
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass  # what is under way can go on
    puts = [body for method, _, body, _ in manager.seen[count:] if method == "PUT"]
    assert not any(body["ready"] for body in puts)
    manager.members["judge-0"]["state"] = "drained"
    assert agent.wait(timeout=SECONDS) == 0
    assert manager.methods()[-1] == "DELETE /pool/replicas/judge-0"
    assert manager.members == {}


def test_a_second_signal_ends_the_waiting(manager: FakeManager, agents: Agents) -> None:
    manager.drains_at_once = False
    agent = agents.start(
        manager.url, command=(sys.executable, "-c", CHILD, "--port", str(free_port()), "0")
    )
    until(lambda: manager.state() == "ready")
    agent.send_signal(signal.SIGTERM)
    until(lambda: manager.state() == "draining")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=SECONDS) == 0
    assert "drain_cut_short" in agents.events()


def test_a_manager_that_is_gone_does_not_hold_up_the_end(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    agent = agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    manager.close()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=SECONDS) == 0


def test_a_manager_behind_a_living_data_plane_is_waited_for(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    agent = agents.start(manager.url, target=vllm.url)
    until(lambda: manager.state() == "ready")
    manager.broken = True
    agent.send_signal(signal.SIGTERM)
    until(lambda: manager.methods().count("POST /pool/replicas/judge-0/drain") > 4)
    assert agent.poll() is None
    manager.broken = False
    assert agent.wait(timeout=SECONDS) == 0
    assert manager.members == {}


def test_the_end_of_the_server_is_told_and_its_code_is_the_agents(
    manager: FakeManager, agents: Agents
) -> None:
    port = free_port()
    agent = agents.start(
        manager.url, command=(sys.executable, "-c", CHILD, "--port", str(port), "23")
    )
    until(lambda: manager.state() == "ready")
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text(encoding="utf-8")
    os.kill(int(children.split()[0]), signal.SIGTERM)
    assert agent.wait(timeout=SECONDS) == 23
    assert manager.members == {}


#: A server that generates nothing from the moment on at which a file is there; /health is 200.
HANGS = """
import http.server, json, pathlib, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while self.command == "POST" and pathlib.Path(sys.argv[3]).exists():
            time.sleep(0.05)
        data = b'{"choices": [{"text": "x"}], "data": [{"id": "m"}]}'
        if self.path == "/metrics":
            data = b"vllm:generation_tokens_total 7"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def test_a_server_that_hangs_is_killed_so_that_its_clients_are_served_elsewhere(
    manager: FakeManager, agents: Agents, tmp_path: Path
) -> None:
    file = tmp_path / "hang"
    agent = agents.start(
        manager.url, canary_seconds="0.3", hung_after="3",
        command=(sys.executable, "-c", HANGS, "--port", str(free_port()), str(file)),
    )  # fmt: skip
    until(lambda: manager.state() == "ready")
    file.touch()
    assert agent.wait(timeout=SECONDS) == 128 + signal.SIGKILL
    assert "server_hung" in agents.events()
    assert manager.members == {}


def test_where_somebody_else_runs_the_server_a_hang_is_told_to_the_kubelet(
    manager: FakeManager, agents: Agents, tmp_path: Path
) -> None:
    file, port, health = tmp_path / "hang", free_port(), free_port()
    server = subprocess.Popen([sys.executable, "-c", HANGS, "--port", str(port), str(file)])
    agents.running.append(server)
    agents.start(
        manager.url, target=f"http://127.0.0.1:{port}", canary_seconds="0.3", hung_after="3",
        health_port=str(health),
    )  # fmt: skip
    until(lambda: manager.state() == "ready")
    assert _status(health) == 200
    file.touch()
    until(lambda: _status(health) == 503)
    assert server.poll() is None
    file.unlink()
    until(lambda: _status(health) == 200)


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_server_that_is_never_ready_ends_it_with_the_reason(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    vllm.answers["GET", "/health"] = (503, "loading")
    agent = agents.start(
        manager.url, target=vllm.url, startup_seconds="0.5", progress_seconds="0.1"
    )
    assert agent.wait(timeout=SECONDS) == 4
    assert "HTTP 503: loading" in agents.log.read_text(encoding="utf-8")
    assert "waiting" in agents.events()
    assert manager.seen == []


def test_a_prestop_hook_waits_for_the_drain(
    vllm: FakeVllm, manager: FakeManager, agents: Agents
) -> None:
    port = free_port()
    agent = agents.start(manager.url, target=vllm.url, control_port=str(port))
    until(lambda: manager.state() == "ready")
    call = (
        "import urllib.request as u; "
        f"u.urlopen(u.Request('http://127.0.0.1:{port}/drain', method='POST'), timeout=25)"
    )
    hook = subprocess.run([sys.executable, "-c", call], check=False, timeout=SECONDS)
    assert hook.returncode == 0
    assert manager.state() == "drained"
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=SECONDS) == 0
    assert manager.members == {}
