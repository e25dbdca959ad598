"""A whole balancer as it runs: `vllm-pool serve` over fake engines that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from support.pool_plane import SOON, Exchange, Plane, Replica, Reply, friendly, replicas_loop, until
from vllm_pool.dataplane import config
from vllm_pool.dataplane.config import PlaneSettings

#: Times that are short, so that tests are.
QUICK = {
    "HEALTH_INTERVAL_SECONDS": "0.2", "HEALTH_SECONDS": "0.5",
    "CANARY_INTERVAL_SECONDS": "0.2", "CANARY_SECONDS": "0.5", "FIRST_CANARY_SECONDS": "5",
    "SLOW_START_SECONDS": "0", "DRAIN_NOTICE_SECONDS": "0.2", "METRICS_HOST": "127.0.0.1",
    "LISTEN_HOST": "127.0.0.1",
}  # fmt: skip


@dataclass
class FakeEngine:
    """What a fake vLLM server does on the paths that the manager asks.

    Requests of clients, those that are no canary, go to `client`.
    """

    client: Callable[[Replica, Exchange], Any] = friendly
    healthy: bool = True
    #: The engine hangs: nothing is generated, and /health is 200 all the same.
    hung: bool = False
    #: Seconds that a token takes.
    slow: float = 0.0
    tokens: int = 0
    #: Answers of the paths of a refit: status and body; 200 and {} when not named.
    refits: dict[str, tuple[int, Any]] = field(default_factory=dict)
    canaries: int = 0

    async def __call__(self, replica: Replica, exchange: Exchange) -> None:
        """Answer one request."""
        asked = exchange.asked
        path = asked.target.split("?")[0]
        word = path.strip("/").split("/")[0]
        if path == "/health":
            await exchange.answer(200 if self.healthy else 503)
        elif path == "/v1/models":
            await exchange.answer(200, json.dumps({"data": [{"id": "m"}]}).encode())
        elif path == "/metrics":
            await exchange.answer(200, f"vllm:generation_tokens_total {self.tokens}\n".encode())
        elif word in refit_words() or word.startswith("update_weights"):
            status, body = self.refits.get(word, (200, {}))
            await exchange.answer(status, json.dumps(body).encode())
        elif path == "/v1/completions" and b'"max_tokens": 1' in asked.body:
            await self._canary(exchange)
        else:
            await self.client(replica, exchange)

    async def _canary(self, exchange: Exchange) -> None:
        self.canaries += 1
        if self.hung:
            await exchange.gone()
            return
        await asyncio.sleep(self.slow)
        self.tokens += 1
        await exchange.answer(200, json.dumps({"choices": [{"text": "x"}]}).encode())


def refit_words() -> tuple[str, ...]:
    """Return the first words of a refit's paths."""
    return tuple(path.strip("/") for path in config.MANAGER_PATHS)


@dataclass
class Balancer(Plane):
    """`vllm-pool serve` in a run directory of its own."""

    environment: dict[str, str] = field(default_factory=dict)
    metrics_port: int = 0
    name: str = "pool"

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.port, self.metrics_port = free_port(), free_port()
        self.launch()
        until(self._serves_all, "the balancer serves")

    def launch(self) -> None:
        """Start it without waiting."""
        variables = {
            **QUICK, "RUN_DIR": str(self.run_dir), "LISTEN_PORT": str(self.port),
            "METRICS_PORT": str(self.metrics_port), **self.environment,
        }  # fmt: skip
        with (self.run_dir / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm_pool", "serve"],
                env=environment(**variables),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self) -> str:
        """Return what it has said so far."""
        return (self.run_dir / "serve.log").read_text()

    def _serves_all(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(self.log())
        return '"event": "serving"' in self.log()

    def stop(self) -> None:
        """Kill it, and wait until its children have gone with it."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; return its exit code once its children have ended too."""
        if self.process is None:
            return 0
        children = [self.child(name) for name in ("envoy", "manager")]
        self.process.send_signal(number)
        code = self.process.wait(SOON)
        self.process = None
        until(lambda: not any(alive(pid) for pid in children), "its children have ended")
        return code

    def child(self, name: str) -> int:
        """Return the process id of a child that was started last; 0 when none was."""
        started = [
            line
            for line in map(_event, self.log().splitlines())
            if line.get("event") == "child_started" and line.get("child") == name
        ]
        return int(started[-1]["pid"]) if started else 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of a name that it has logged."""
        found = (_event(line) for line in self.log().splitlines())
        return [each for each in found if each.get("event") == name]

    def engine(self, name: str, **behaviour: Any) -> Replica:
        """Start a fake engine; it is no member yet."""
        return self.replica(name, FakeEngine(**behaviour))

    def register(self, replica: Replica, **fields: Any) -> Reply:
        """Register a replica as an agent does."""
        body = {"url": f"http://127.0.0.1:{replica.port}", **fields}
        return self.put(replica.id, body)

    def put(self, name: str, body: Any) -> Reply:
        """Send a registration as it is."""
        return self.ask("PUT", f"/pool/replicas/{name}", json.dumps(body).encode())

    def states(self) -> dict[str, str]:
        """Return the state of each replica."""
        return {each["id"]: each["state"] for each in self.health()["backends"]}

    def health(self) -> dict[str, Any]:
        """Return what `/health` says."""
        return cast(dict[str, Any], json.loads(self.ask("GET", "/health").body))

    def row(self, name: str) -> dict[str, Any]:
        """Return what `/health` says of one replica."""
        return next(each for each in self.health()["backends"] if each["id"] == name)

    def engines(self, count: int, **fields: Any) -> list[Replica]:
        """Start so many engines, register them and wait until all are in rotation."""
        made = [self.engine(f"b{number}") for number in range(count)]
        for replica in made:
            assert self.register(replica, **fields).status == 200
        self.settled(**{replica.id: "ready" for replica in made})
        return made

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=SOON) as answer:
            lines = answer.read().decode().splitlines()
        values = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert values, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in values)

    @staticmethod
    def free_port() -> int:
        """Return a port of 127.0.0.1 that nobody listens on."""
        return free_port()

    def clear(self) -> None:
        """Remove every member and close every engine."""
        for name in self.states():
            self.ask("DELETE", f"/pool/replicas/{name}")
        self.ask("POST", "/pool/undrain")
        until(lambda: not any(self._hosts()), "Envoy knows nobody")
        for replica in self.replicas:
            self.wait(replica.close())
        self.replicas.clear()

    def settled(self, **states: str) -> None:
        """Wait until replicas are in some states, and Envoy has heard of it."""
        names = {name.replace("_", "-"): state for name, state in states.items()}

        def so() -> bool:
            now = self.states()
            return all(now.get(name) == state for name, state in names.items())

        until(so, f"states {names}, last {self.states()}")
        known = {name: state == "ready" for name, state in names.items()}

        def heard() -> bool:
            seen = [
                {host["hostname"]: host["health_status"].get("eds_health_status") == "HEALTHY"
                 for host in hosts}
                for hosts in self._hosts()
            ]  # fmt: skip
            return all(hosts.get(n, False) == good for hosts in seen for n, good in known.items())

        until(heard, f"Envoy knows {known}")


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program of ours, with settings of a pool."""
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path),
        **{f"VLLM_POOL_{name}": value for name, value in variables.items()},
    }  # fmt: skip


def engine_of(replica: Replica) -> FakeEngine:
    """Return what a replica does."""
    assert isinstance(replica.answer, FakeEngine)
    return replica.answer


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _event(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def balancers() -> Iterator[Callable[..., Balancer]]:
    """Yield a function that starts a balancer; all end with the block."""
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(replicas_loop())

        def make(*, enter: bool = True, **environment: str) -> Balancer:
            run_dir = Path(tempfile.mkdtemp(prefix="pool-"))
            stack.callback(shutil.rmtree, run_dir)
            made = Balancer(PlaneSettings(run_dir=run_dir), loop, environment=environment)
            if enter:
                return stack.enter_context(made)
            stack.callback(made.stop)
            return made

        yield make
