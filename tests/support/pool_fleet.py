"""Compiled replicas and compiled clients of a pool, for tests that need load."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.paths import BIN
from vllm_pool.dataplane.config import Backend

_SECONDS = 30.0


@dataclass(frozen=True)
class Fleet:
    """Fake replicas of one process, by their ids."""

    control: int
    ports: dict[str, int]

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said.decode()
            return json.loads(said)
        finally:
            connection.close()

    def add(self, name: str) -> Backend:
        """Start one more replica and return it as a member."""
        self.ports[name] = self._ask("POST", "/new", {"id": name})["port"]
        return self.backend(name)

    def behave(self, name: str, **how: Any) -> None:
        """Say how it behaves from now on; what is not named is as of a healthy one."""
        self._ask("POST", f"/{name}/behave", how)

    def seen(self, name: str) -> Any:
        """Return what it has been asked and has generated."""
        return self._ask("GET", f"/{name}/seen")

    def kill(self, name: str) -> None:
        """Let it end as a killed process does."""
        self._ask("POST", f"/{name}/die", {})

    def relaunch(self, name: str) -> Backend:
        """Start it anew on another port and return it as a member."""
        self.ports[name] = self._ask("POST", f"/{name}/relaunch", {})["port"]
        return self.backend(name)

    def backend(self, name: str, **changes: Any) -> Backend:
        """Return it as a member."""
        return Backend(name, "127.0.0.1", self.ports[name], **changes)

    def backends(self) -> list[Backend]:
        """Return all of them as members."""
        return [self.backend(name) for name in self.ports]


@contextlib.contextmanager
def fleets(count: int) -> Iterator[Fleet]:
    """Yield so many fake replicas, r0 and on; they end with the block."""
    words = [str(BIN / "fake-vllm"), "--ports", ",".join(["0"] * count)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            yield Fleet(said["control"], said["replicas"])
        finally:
            process.kill()


@dataclass
class Load:
    """Clients that ask one port in closed loops until their time is over."""

    process: subprocess.Popen[str]

    @property
    def over(self) -> bool:
        """Whether the clients have ended."""
        return self.process.poll() is not None

    def result(self, seconds: float = _SECONDS) -> Mapping[str, Any]:
        """Wait for the end and return what `pool-load` says of it."""
        said, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, said
        result: Mapping[str, Any] = json.loads(said.splitlines()[-1])
        return result


@contextlib.contextmanager
def loads(port: int, *, clients: int, seconds: float, words: Sequence[str] = ()) -> Iterator[Load]:
    """Yield running clients; what still runs at the end of the block is killed."""
    arguments = [
        str(BIN / "pool-load"), "--port", str(port), "--clients", str(clients),
        "--seconds", str(seconds), "--warmup", "0", *words,
    ]  # fmt: skip
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Load(process)
        finally:
            process.kill()
