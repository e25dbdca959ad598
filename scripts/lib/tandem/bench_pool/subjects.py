"""What `make bench-pool` measures: the baseline and the pool, over compiled fake replicas."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import BIN, ROOT
from tandem.process import tail
from tandem.sidecar_process import free_port
from tandem_common.clock import Deadline

DIRECT, BASELINE, POOL = "direct", "baseline", "vllm-pool"
POOL_SESSION = "vllm-pool, by session"
_START_SECONDS = 30.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: where it listens, and the processes it consists of."""

    name: str
    port: int
    processes: tuple[psutil.Process, ...] = ()
    session: bool = False

    def cpu(self) -> float:
        """Seconds of CPU that its processes have used, user's and kernel's."""
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)

    def rss(self) -> float:
        """MiB of memory that they hold."""
        return sum(one.memory_info().rss for one in self.processes) / _MIB

    def carrier_rss(self) -> float:
        """MiB of memory that the one which carries the requests holds."""
        carriers = [one for one in self.processes if one.name() == "envoy"] or self.processes
        return sum(one.memory_info().rss for one in carriers) / _MIB


def program(name: str) -> str:
    """Return the path of a compiled tool.

    Raises:
        UserError: It has not been built.
    """
    path = BIN / name
    if not path.is_file():
        raise UserError(
            Problem(f"bin/{name} is missing", "make tools TOOLS=pool"), ExitCode.PRECONDITION
        )
    return str(path)


@contextmanager
def started(
    words: Sequence[str], **options: Any
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """Yield a running program and a function that returns its next line; it ends with the block."""
    # Linux shares processors out by session; Envoy has one of its own, as has everything here.
    running = subprocess.Popen(words, text=True, start_new_session=True, **options)

    def line() -> str:
        said = running.stdout.readline() if running.stdout is not None else ""
        if not said:
            raise UserError(Problem(f"{words[0]} has ended and said nothing", "run it by hand"))
        return said

    try:
        yield running, line
    finally:
        running.kill()
        running.wait()
        for stream in (running.stdin, running.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def flat_fakes(count: int) -> Iterator[list[int]]:
    """Yield the ports of so many fake replicas that cost little; they end with the block."""
    words = [program("fake-vllm"), "--flat", "--ports", ",".join(["0"] * count)]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as (_, line):
        yield list(json.loads(line())["replicas"].values())


@contextmanager
def baseline(replicas: Sequence[int]) -> Iterator[Subject]:
    """Yield the aiohttp proxy over the replicas."""
    words = [
        sys.executable, str(ROOT / "bench" / "baseline_proxy.py"),
        *(f"http://127.0.0.1:{port}" for port in replicas),
    ]  # fmt: skip
    with started(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as (running, line):
        port = int(line())
        yield Subject(BASELINE, port, (psutil.Process(running.pid),))


@contextmanager
def pool(replicas: Sequence[int], *, canary: bool = True) -> Iterator[Subject]:
    """Yield a whole balancer over the replicas: supervisor, manager and Envoy."""
    run_dir = Path(tempfile.mkdtemp(prefix="bench-pool-"))
    port = free_port()
    members = run_dir / "listed.json"
    members.write_text(json.dumps([f"http://127.0.0.1:{replica}" for replica in replicas]))
    settings = {
        "RUN_DIR": run_dir, "LISTEN_HOST": "127.0.0.1", "LISTEN_PORT": port,
        "METRICS_HOST": "127.0.0.1", "METRICS_PORT": 0, "MEMBERS_FILE": members,
        "MIN_READY": len(replicas), "CANARY": canary, "CANARY_MODEL": "fake",
        "SLOW_START_SECONDS": 0,
    }  # fmt: skip
    words = [sys.executable, "-m", "vllm_pool", "serve"]
    environment = os.environ | {f"VLLM_POOL_{key}": str(text) for key, text in settings.items()}
    try:
        with (
            (run_dir / "log").open("w") as log,
            started(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            as (running, _),
        ):  # fmt: skip
            try:
                wait(
                    lambda: running.poll() is not None or _answers(port, "/ready"),
                    "all replicas of the pool in rotation",
                )
                parent = psutil.Process(running.pid)
            except (UserError, psutil.NoSuchProcess):
                said = f"the pool is not ready:\n{tail((run_dir / 'log').read_text())}"
                raise UserError(Problem(said, "mend what it names")) from None
            yield Subject(POOL, port, (parent, *parent.children(recursive=True)))
    finally:
        shutil.rmtree(run_dir)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def wait(holds: Callable[[], bool], what: str, *, pause: float = 0.005) -> None:
    """Wait until something holds, looking again after a pause, seconds.

    Raises:
        UserError: It did not hold in time.
    """
    deadline = Deadline(_START_SECONDS)
    while not holds():
        if deadline.passed:
            raise UserError(Problem(f"not within {_START_SECONDS:g} s: {what}", "run it by hand"))
        time.sleep(pause)
