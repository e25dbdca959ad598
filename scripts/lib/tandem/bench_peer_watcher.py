"""Figures of the peer-watcher, measured on this machine against a real API server.

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
import time
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil

from peer_watcher.convert import VERDICT_ANNOTATION
from tandem import crds
from tandem.bench import machine
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem_common.clock import Deadline
from tandem_common.kube import RAYCLUSTERS, Changed, Client, from_kubeconfig
from tandem_host.control_plane import ControlPlane

_EPILOG = """\
examples:
  python -m tandem.bench_peer_watcher                  a table
  python -m tandem.bench_peer_watcher --output json

exit codes: 0 ok, 1 a step failed, 2 usage, 3 a precondition is not met
"""
_DEATHS = 10
_IDLE_SECONDS = 20.0
_READY_SECONDS = 30.0
_HOLD = "bench.tandem.dev/hold"
#: As in the image: `rich` is there only for our own scripts, and structlog would load it.
_AS_IN_THE_IMAGE = """
import runpy, sys
sys.modules["rich"] = None
runpy.run_module("peer_watcher", run_name="__main__")
"""


def _raycluster(name: str, **metadata: object) -> dict[str, object]:
    pod = {"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": pod}}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


class _Watcher:
    """The program, from its start to the end of the block."""

    def __init__(self, kubeconfig: Path) -> None:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        settings = {
            "JOB_ID": "bench", "NAMESPACE": "default", "SELF": "RayCluster/rl",
            "PEER": "RayCluster/gym", "HEALTH_HOST": "127.0.0.1",
            "HEALTH_PORT": str(self._port), "TEARDOWN_SECONDS": "60",
        }  # fmt: skip
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AS_IN_THE_IMAGE], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "KUBECONFIG": str(kubeconfig),
                 **{f"PEER_WATCHER_{key}": value for key, value in settings.items()}},
        )  # fmt: skip
        deadline = Deadline(_READY_SECONDS)
        while not self._ready():
            if deadline.passed or self._process.poll() is not None:
                raise RuntimeError("the watcher did not become ready")
            time.sleep(0.01)
        self.ready_seconds = time.monotonic() - begun
        self.usage = psutil.Process(self._process.pid)

    def _ready(self) -> bool:
        try:
            address = f"http://127.0.0.1:{self._port}/readyz"
            with urllib.request.urlopen(address, timeout=1) as answer:
                return bool(answer.status == 200)  # noqa: PLR2004
        except OSError:
            return False

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=30)


def _death(client: Client, kubeconfig: Path) -> float:
    """Return the seconds from the deletion of the peer to the verdict on our side."""
    client.create(RAYCLUSTERS, _raycluster("gym"))
    # Held, so that the verdict can be read at leisure.
    client.create(RAYCLUSTERS, _raycluster("rl", finalizers=[_HOLD]))
    watcher = _Watcher(kubeconfig)
    try:
        # What it has met, it has written down.
        deadline = Deadline(_READY_SECONDS)
        while "RayCluster/gym" not in json.dumps(client.get(RAYCLUSTERS, "rl")["metadata"]):
            if deadline.passed:
                raise RuntimeError("the watcher did not meet its peer")
            time.sleep(0.02)
        watch = client.watch(RAYCLUSTERS, name="rl", deadline=Deadline(60))
        events = iter(watch)
        next(events)
        begun = time.monotonic()
        client.delete(RAYCLUSTERS, "gym")
        for event in events:
            found = event.object["metadata"] if isinstance(event, Changed) else {}
            if VERDICT_ANNOTATION in (found.get("annotations") or {}):
                break
        seconds = time.monotonic() - begun
        watch.close()
    finally:
        client.merge_patch(RAYCLUSTERS, "rl", {"metadata": {"finalizers": None}})
        watcher.end()
    deadline = Deadline(60)
    while client.list(RAYCLUSTERS).items and not deadline.passed:
        time.sleep(0.05)
    return seconds


def measure() -> dict[str, float]:
    """Measure every figure and return it by name."""
    with (
        tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        crds.apply(crds.sources(crds.DEFAULT_ENVIRONMENT))
        with Client(replace(from_kubeconfig(plane.kubeconfig), namespace="default")) as client:
            with console.phase("deaths"):
                seconds = [_death(client, plane.kubeconfig) for _ in range(_DEATHS)]
            with console.phase("process"):
                for name in ("rl", "gym"):
                    client.create(RAYCLUSTERS, _raycluster(name))
                watcher = _Watcher(plane.kubeconfig)
                before = watcher.usage.cpu_times()
                time.sleep(_IDLE_SECONDS)
                after = watcher.usage.cpu_times()
                resident = watcher.usage.memory_info().rss
                watcher.end()
    used = after.user + after.system - before.user - before.system
    return {
        "death to verdict, median, s": statistics.median(seconds),
        f"death to verdict, worst of {_DEATHS}, s": max(seconds),
        "watcher, start to ready, s": watcher.ready_seconds,
        "watcher, resident, MiB": resident / 2**20,
        "watcher, CPU when idle, % of a core": 100 * used / _IDLE_SECONDS,
    }


def main() -> int:
    """Measure and print."""
    parser = Parser("tandem.bench_peer_watcher", "Measure the peer-watcher here.", _EPILOG)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
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
