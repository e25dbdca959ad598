"""The server process is watched, and ends with everything that it started."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from tandem_trainer.errors import PreconditionError, TrainerError
from tandem_trainer.vllm_server import ServerSettings, VllmServer, command, ending, summary


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _server(tmp_path: Path, seconds: float = 30.0) -> VllmServer:
    return VllmServer(
        ServerSettings(
            model=tmp_path, log=tmp_path / "log", port=_free_port(), ready_seconds=seconds
        )
    )


def test_a_server_that_ends_while_starting_is_reported_at_once_with_its_words(
    tmp_path: Path,
) -> None:
    server = _server(tmp_path)
    server.start([sys.executable, "-c", "print('no AVX'); raise SystemExit(132)"])
    started = time.monotonic()
    with pytest.raises(TrainerError, match=r"(?s)code 132\n.*no AVX"):
        server.wait_ready()
    assert time.monotonic() - started < 10
    server.stop()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    server = _server(tmp_path, seconds=1.0)
    server.start([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with pytest.raises(TrainerError, match="did not answer within 1 s"):
            server.wait_ready()
    finally:
        server.stop()


def test_stopping_ends_the_children_too_and_may_be_done_twice(tmp_path: Path) -> None:
    server = _server(tmp_path)
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    server.start(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])",
        ]
    )
    deadline = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server.check_alive()
    server.stop()
    server.stop()
    pid = int(pid_file.read_text())
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("the child outlived the server")


DEAD_ENGINE = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_that_says_its_engine_is_dead_is_ended_and_that_is_the_error(
    tmp_path: Path,
) -> None:
    server = _server(tmp_path)
    server.start([sys.executable, "-c", DEAD_ENGINE, str(server.settings.port)])
    started = time.monotonic()
    with pytest.raises(TrainerError, match=r"engine is dead \(/health says 503\)"):
        server.wait_ready()
    assert time.monotonic() - started < 15
    server.stop()


FIRST_WORDS = "(EngineCore pid=21) INFO started"
LAST_WORDS = "(APIServer pid=7) ERROR Engine core proc EngineCore_DP0 died unexpectedly"


def _await_end(server: VllmServer) -> None:
    deadline = time.monotonic() + 10
    while server._process is not None and server._process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_follows_its_dead_engine_before_it_was_asked_is_the_same_error(
    tmp_path: Path,
) -> None:
    # The other order: gone in good order, code 0, before /health could say anything.
    server = _server(tmp_path)
    server.start([sys.executable, "-c", f"print({FIRST_WORDS!r}); print({LAST_WORDS!r})"])
    _await_end(server)
    with pytest.raises(TrainerError) as raised:
        server.check_alive()
    cause, _, details = str(raised.value).partition("\n")
    assert cause == "vLLM ended with code 0: its engine is dead"
    assert details.endswith(f"{FIRST_WORDS}\n{LAST_WORDS}")
    server.stop()


def test_a_server_that_answers_an_error_and_only_then_says_why_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The third order: the request has failed, nobody has asked /health yet.
    server = _server(tmp_path)
    monkeypatch.setattr(server, "_watch", lambda _: None)
    server.start([sys.executable, "-c", DEAD_ENGINE, str(server.settings.port)])
    server.settle()
    try:
        with pytest.raises(TrainerError, match="its engine is dead"):
            server.check_alive()
    finally:
        server.stop()


def test_an_error_is_explained_by_the_log_when_health_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine so busy that the server, which lives on, answers no question in time.
    server = _server(tmp_path)
    monkeypatch.setattr(server, "_watch", lambda _: None)
    server.start([sys.executable, "-uc", f"import time; print({LAST_WORDS!r}); time.sleep(60)"])
    deadline = time.monotonic() + 30
    while LAST_WORDS not in server.log():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server.settle()
    try:
        with pytest.raises(TrainerError, match=r"its engine is dead \(its log says so\)"):
            server.check_alive()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("code", "log", "said"),
    [
        (0, "", "code 0 while it was needed, as it does when its engine is dead"),
        (0, "EngineDeadError: EngineCore encountered an issue", "code 0: its engine is dead"),
        (1, LAST_WORDS, "code 1: its engine is dead"),
        (1, "ValueError: no such model", "code 1"),
        (-9, "", "signal 9 (Killed)"),
        (-15, LAST_WORDS, "signal 15 (Terminated): its engine is dead"),
    ],
)
def test_how_a_server_ended_is_one_line_with_the_cause(code: int, log: str, said: str) -> None:
    assert ending(code, log).endswith(said)


def test_a_server_that_was_not_started_is_not_alive(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="not started"):
        _server(tmp_path).check_alive()


def test_the_server_listens_on_loopback_because_its_control_routes_have_no_authentication(
    tmp_path: Path,
) -> None:
    words = command(ServerSettings(model=tmp_path, log=tmp_path / "log"))
    assert words[words.index("--host") + 1] == "127.0.0.1"


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = ServerSettings(model=tmp_path, log=tmp_path / "log", port=other.getsockname()[1])
        with pytest.raises(PreconditionError, match="is taken"):
            VllmServer(settings).start()
    assert not settings.log.exists()


def test_each_server_serves_its_model_under_a_name_of_its_own(tmp_path: Path) -> None:
    # So that the completion which proves readiness cannot come from somebody else's server.
    names = {ServerSettings(model=tmp_path, log=tmp_path / "log").name for _ in range(3)}
    assert len(names) == 3


def test_the_summary_of_a_log_names_the_cause_although_it_stands_far_above_the_end() -> None:
    noise = [f"(EngineCore) frame {n}" for n in range(100)]
    cause = "ImportError('libnuma.so.1: cannot open shared object file')"
    log = [f"(Worker) WARNING Failed to import: {cause}", *noise, "RuntimeError: see above", "end"]
    said = summary("\n".join(log + log))
    assert said.splitlines()[:2] == [cause, "RuntimeError: see above"]
    assert said.endswith("end")
    assert len(said.splitlines()) < 20
