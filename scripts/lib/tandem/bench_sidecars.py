"""Figures of the sidecars, measured in one run on this machine, against a real API server.

Nothing here is asserted: a slow machine is no defect.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil

from endpoint_registry import EndpointRegistry
from tandem.bench import machine
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem_common import logs
from tandem_common.kube import Client, ClusterConfig, from_kubeconfig
from tandem_host.control_plane import ControlPlane

_EPILOG = """\
examples:
  python -m tandem.bench_sidecars                  a table
  python -m tandem.bench_sidecars --output json

exit codes: 0 ok, 1 a step failed, 2 usage, 3 a precondition is not met
"""
_WAKES = 200
_WRITERS = 80
_IDLE_SECONDS = 20.0
_READY_SECONDS = 30.0
#: As in the image: `rich` is there only for our own scripts, and structlog would load it.
_AS_IN_THE_IMAGE = """
import runpy, sys
sys.modules["rich"] = None
runpy.run_module("endpoint_registry", run_name="__main__")
"""


def _wakes(config: ClusterConfig) -> dict[str, float]:
    """Measure the time from the start of a publication to the end of a wait for it."""
    seconds = []
    with (
        Client(config) as one,
        Client(config) as other,
        EndpointRegistry("wake", run_uid="bench", writer="writer", client=one) as writer,
        EndpointRegistry("wake", run_uid="bench", client=other) as reader,
    ):
        writer.create()
        reader.read()
        with ThreadPoolExecutor(1) as pool:
            for number in range(_WAKES):
                woken: list[float] = []

                def wait(key: str, woken: list[float] = woken) -> None:
                    reader.wait(key, timeout=60)
                    woken.append(time.monotonic())

                # One key, withdrawn in between, so that the object stays small.
                result = pool.submit(wait, f"key-{number % 8}")
                time.sleep(0.02)  # the server is idle, and the waiter waits
                begun = time.monotonic()
                writer.publish(f"key-{number % 8}", f"value-{number}")
                result.result(timeout=60)
                seconds.append(woken[0] - begun)
                writer.withdraw(f"key-{number % 8}")
                while reader.snapshot().value(f"key-{number % 8}") is not None:
                    time.sleep(0.005)
    return {
        "wake after publish, p50, ms": statistics.median(seconds) * 1000,
        "wake after publish, p99, ms": statistics.quantiles(seconds, n=100)[98] * 1000,
    }


def _writers(config: ClusterConfig) -> dict[str, float]:
    """Measure how long writers that all begin at once take."""
    begin = threading.Barrier(_WRITERS)
    seconds: list[float] = []

    def write(number: int) -> None:
        with (
            Client(config) as client,
            EndpointRegistry(
                "many", run_uid="bench", writer=f"w-{number}", client=client
            ) as registry,
        ):
            registry.read()
            begin.wait(60)
            started = time.monotonic()
            registry.publish(f"key-{number}", "value", timeout=300)
            seconds.append(time.monotonic() - started)

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, range(_WRITERS)))
    return {f"{_WRITERS} writers at once, the last, s": max(seconds)}


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except OSError:
        return False


def _process(kubeconfig: Path) -> dict[str, float]:
    """Measure one sidecar: start to ready, memory, CPU when idle."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        port = _free_port()
        settings = {
            "JOB_ID": "sidecar", "RUN_UID": "bench", "NAMESPACE": "default", "WRITER": "bench",
            "KEY": "endpoint", "URLS": f"http://127.0.0.1:{endpoint.server_port}",
            "HTTP_HOST": "127.0.0.1", "HTTP_PORT": str(port),
        }  # fmt: skip
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", _AS_IN_THE_IMAGE, "sidecar"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "KUBECONFIG": str(kubeconfig),
                 **{f"ENDPOINT_REGISTRY_{key}": value for key, value in settings.items()}},
        )  # fmt: skip
        try:
            while not _ready(port):
                if time.monotonic() - begun > _READY_SECONDS or process.poll() is not None:
                    raise RuntimeError("the sidecar did not become ready")
                time.sleep(0.01)
            ready = time.monotonic() - begun
            watched = psutil.Process(process.pid)
            before = watched.cpu_times()
            time.sleep(_IDLE_SECONDS)
            after = watched.cpu_times()
            used = after.user + after.system - before.user - before.system
            return {
                "sidecar, start to ready, s": ready,
                "sidecar, resident, MiB": watched.memory_info().rss / 2**20,
                "sidecar, CPU when idle, % of a core": 100 * used / _IDLE_SECONDS,
            }
        finally:
            process.terminate()
            process.wait(timeout=30)
            endpoint.shutdown()


def measure() -> dict[str, float]:
    """Measure every figure and return it by name."""
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        config = replace(from_kubeconfig(plane.kubeconfig), namespace="default")
        with console.phase("wakes"):
            figures |= _wakes(config)
        with console.phase("writers"):
            figures |= _writers(config)
        with console.phase("process"):
            figures |= _process(plane.kubeconfig)
    return figures


def main() -> int:
    """Measure and print."""
    parser = Parser("tandem.bench_sidecars", "Measure the sidecars on this machine.", _EPILOG)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    # That writers wait for each other is what is measured.
    logs.configure("bench", level="error")
    figures = measure()
    where = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    if args.output == "json":
        print(json.dumps({**where, "figures": figures}, indent=2))
    else:
        print(f"{where['machine']}, {where['date']}")
        for name, value in figures.items():
            print(f"  {name:<40}{value:>10.2f}")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
