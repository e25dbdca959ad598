"""Figures of the sidecars, measured in one run on this machine, against a real API server.

Nothing here is asserted: a slow machine is no defect.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from endpoint_registry import EndpointRegistry
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.figures import Figure, report
from tandem.sidecar_process import SidecarProcess, free_port
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


def _wakes(config: ClusterConfig) -> list[Figure]:
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
    p99 = statistics.quantiles(seconds, n=100)[98]
    return [
        Figure("wake after publish, p50", statistics.median(seconds) * 1000, None, "ms"),
        Figure("wake after publish, p99", p99 * 1000, 100, "ms"),
    ]


def _writers(config: ClusterConfig) -> list[Figure]:
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
    return [Figure(f"{_WRITERS} writers at once, the last", max(seconds))]


def _process(kubeconfig: Path) -> list[Figure]:
    """Measure one sidecar: start to ready, memory, CPU when idle."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        port = free_port()
        settings = {
            "JOB_ID": "sidecar", "RUN_UID": "bench", "NAMESPACE": "default", "WRITER": "bench",
            "KEY": "endpoint", "URLS": f"http://127.0.0.1:{endpoint.server_port}",
            "HTTP_HOST": "127.0.0.1", "HTTP_PORT": str(port),
        }  # fmt: skip
        environment = {f"ENDPOINT_REGISTRY_{key}": value for key, value in settings.items()}
        environment["KUBECONFIG"] = str(kubeconfig)
        try:
            with SidecarProcess(
                "endpoint_registry", "sidecar", port=port, environment=environment
            ) as sidecar:
                return sidecar.figures("registry sidecar")
        finally:
            endpoint.shutdown()


def measure() -> list[Figure]:
    """Measure every figure."""
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        config = replace(from_kubeconfig(plane.kubeconfig), namespace="default")
        with console.phase("wakes"):
            figures += _wakes(config)
        with console.phase("writers"):
            figures += _writers(config)
        with console.phase("process"):
            figures += _process(plane.kubeconfig)
    return figures


def main() -> int:
    """Measure and print."""
    parser = Parser("tandem.bench_sidecars", "Measure the sidecars on this machine.", _EPILOG)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    # That writers wait for each other is what is measured.
    logs.configure("bench", level="error")
    figures = measure()
    report(figures, args.output)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
