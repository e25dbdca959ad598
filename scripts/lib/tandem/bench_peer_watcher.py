"""Figures of the peer-watcher, measured on this machine against a real API server.

Nothing here is asserted: a slow machine is no defect.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from peer_watcher.convert import VERDICT_ANNOTATION
from tandem import crds
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.figures import Figure, report
from tandem.sidecar_process import SidecarProcess, free_port
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
_WAIT_SECONDS = 30.0
_HOLD = "bench.tandem.dev/hold"


def _raycluster(name: str, **metadata: object) -> dict[str, object]:
    pod = {"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": pod}}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def _watcher(kubeconfig: Path) -> SidecarProcess:
    port = free_port()
    settings = {
        "JOB_ID": "bench", "NAMESPACE": "default", "SELF": "RayCluster/rl",
        "PEER": "RayCluster/gym", "HEALTH_HOST": "127.0.0.1",
        "HEALTH_PORT": str(port), "TEARDOWN_SECONDS": "60",
    }  # fmt: skip
    environment = {f"PEER_WATCHER_{key}": value for key, value in settings.items()}
    environment["KUBECONFIG"] = str(kubeconfig)
    return SidecarProcess("peer_watcher", port=port, environment=environment)


def _death(client: Client, kubeconfig: Path) -> float:
    """Return the seconds from the deletion of the peer to the verdict on our side."""
    client.create(RAYCLUSTERS, _raycluster("gym"))
    # Held, so that the verdict can be read at leisure.
    client.create(RAYCLUSTERS, _raycluster("rl", finalizers=[_HOLD]))
    watcher = _watcher(kubeconfig)
    try:
        # What it has met, it has written down.
        deadline = Deadline(_WAIT_SECONDS)
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


def measure() -> list[Figure]:
    """Measure every figure."""
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
                with _watcher(plane.kubeconfig) as watcher:
                    process = watcher.figures("watcher")
    return [
        Figure("death to verdict, median", statistics.median(seconds)),
        Figure(f"death to verdict, worst of {_DEATHS}", max(seconds), 3),
        *process,
    ]


def main() -> int:
    """Measure and print."""
    parser = Parser("tandem.bench_peer_watcher", "Measure the peer-watcher here.", _EPILOG)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    report(measure(), args.output)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
