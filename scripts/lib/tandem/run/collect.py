"""Keep what tells how a run went: objects, events, logs and results, in artifacts/<run>/.

Collecting never changes the verdict: what cannot be had is written down as such.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.errors import UserError
from tandem.paths import CACHE, CLUSTER
from tandem.run.kube import get, kubectl

#: Driver logs of Ray jobs lie here on the head pod, not in the pod's own output.
_JOB_LOGS = "cat /tmp/ray/session_latest/logs/job-driver-*.log"

#: Logs of the host provider's components.
COMPONENT_LOGS = CLUSTER / "host" / "logs"
#: Logs of the programs that make tools and images.
BUILD_LOGS = CACHE / "logs"
#: The end of a log tells how it went wrong; the whole of it can be gigabytes.
_TAIL_BYTES = 4 * 2**20
_REACH_SECONDS = 10.0


def _keep(path: Path, *args: str, timeout: float = 30.0) -> None:
    try:
        text = kubectl(*args, timeout=timeout)
    except UserError as error:
        text = f"could not be collected: {error}\n"
    path.write_text(text, encoding="utf-8")


def pods_of(namespace: str, cluster: str) -> list[dict[str, Any]]:
    """Return the pods of a RayCluster, none when they cannot be listed."""
    try:
        found = get("pods", namespace, selector=f"ray.io/cluster={cluster}")
    except UserError:
        return []
    return list(found["items"]) if found else []


def head_of(pods: list[dict[str, Any]]) -> str:
    """Return the name of the head pod, "" when there is none."""
    for pod in pods:
        if pod["metadata"]["labels"].get("ray.io/node-type") == "head":
            return str(pod["metadata"]["name"])
    return ""


def collect_logs(folder: Path, namespace: str, rayjob: str, cluster: str) -> None:
    """Write the run's object, events, pod logs and the driver's log below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder / "rayjob.yaml", "get", "rayjob", rayjob, "-n", namespace, "-o", "yaml")
    _keep(folder / "events.txt", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
    _keep(folder / "pods.txt", "describe", "pods", "-n", namespace, "-l", "ray.io/cluster")
    pods = pods_of(namespace, cluster)
    for pod in pods:
        name = pod["metadata"]["name"]
        _keep(
            folder / f"{name}.log",
            "logs", name, "-n", namespace, "--all-containers", "--prefix", "--tail=20000",
        )  # fmt: skip
    head = head_of(pods)
    if head:
        driver = folder / "driver.log"
        _keep(driver, "exec", "-n", namespace, head, "-c", "ray-head", "--", "sh", "-c", _JOB_LOGS)


def collect_results(folder: Path, namespace: str, cluster: str, source: str) -> list[Path]:
    """Copy the run's result files from the head pod and return those that arrived.

    Args:
        folder: Where they go.
        namespace: The run's namespace.
        cluster: The run's RayCluster.
        source: Folder on the head pod.
    """
    head = head_of(pods_of(namespace, cluster))
    if not head:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    try:
        kubectl(
            "cp", "-n", namespace, "-c", "ray-head", "--retries=3", f"{head}:{source}", folder,
            timeout=60,
        )  # fmt: skip
    except UserError as error:
        (folder / "results-missing.txt").write_text(f"{error}\n", encoding="utf-8")
    return sorted(path for path in folder.iterdir() if path.suffix in (".jsonl", ".png"))


def copy_logs(source: Path, target: Path, *, since: float = 0.0) -> None:
    """Copy the ends of the logs in a folder that were written to since a time (epoch)."""
    if not source.is_dir():
        return
    for log in sorted(source.glob("*.log")):
        try:
            state = log.stat()
            if state.st_mtime < since:
                continue
            with log.open("rb") as content:
                content.seek(max(0, state.st_size - _TAIL_BYTES))
                held = content.read(_TAIL_BYTES)
        except OSError as error:
            held = f"could not be collected: {error}\n".encode()
        target.mkdir(parents=True, exist_ok=True)
        (target / log.name).write_bytes(held)


def collect_cluster(folder: Path) -> None:
    """Write nodes, pods and events of the whole cluster below a folder, if it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        kubectl("get", "--raw=/version", timeout=_REACH_SECONDS)
    except UserError as error:
        (folder / "api-server.txt").write_text(f"does not answer: {error}\n", encoding="utf-8")
        return
    _keep(folder / "nodes.txt", "describe", "nodes")
    _keep(folder / "pods.txt", "get", "pods", "--all-namespaces", "-o", "wide")
    _keep(folder / "pods-described.txt", "describe", "pods", "--all-namespaces")
    _keep(
        folder / "events.txt",
        "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp",
    )  # fmt: skip


def write_summary(folder: Path, summary: dict[str, Any]) -> Path:
    """Write the run's summary as JSON and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return path
