"""Keep what tells how a run went: objects, events, logs and results, in artifacts/<run>/.

Collecting never changes the verdict: what cannot be had is written down as such.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.errors import UserError
from tandem.paths import CACHE, CLUSTER
from tandem.run.kube import api_client, get, kubectl
from tandem.run.metrics import RESULTS, steps_in
from tandem.run.pod_logs import UNREADABLE, Folder, Line, begun, lines_of, parse
from tandem.run.shapes import DRIVER, Run, is_head
from tandem_common.kube.resources import RAYJOBS
from tandem_trainer.curve import draw

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


def pods_of(run: Run) -> list[dict[str, Any]]:
    """Return the pods of a run, none when they cannot be listed."""
    try:
        found = get("pods", run.namespace, selector=run.selector)
    except UserError:
        return []
    return list(found["items"]) if found else []


def head_of(pods: list[dict[str, Any]]) -> str:
    """Return the name of the head pod, "" when there is none."""
    for pod in pods:
        if is_head(pod):
            return str(pod["metadata"]["name"])
    return ""


def collect_logs(folder: Path, run: Run) -> None:
    """Write the run's objects, events, pods and its training command's output below a folder.

    The output of containers is there already: `follow` keeps it while they live.
    """
    folder.mkdir(parents=True, exist_ok=True)
    selector, namespace = f"--selector={run.selector}", run.namespace
    _keep(
        folder / "run.yaml", "get", run.top.group_resource, run.name, "-n", namespace, "-o", "yaml"
    )
    _keep(folder / "events.txt", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
    _keep(folder / "pods.txt", "describe", "pods", "-n", namespace, selector)
    driver = folder / "driver.log"
    if run.top != RAYJOBS:
        driver.write_text("".join(f"{line}\n" for line in driver_lines(folder)), encoding="utf-8")
    elif head := head_of(pods_of(run)):
        _keep(driver, "exec", "-n", namespace, head, "-c", "ray-head", "--", "sh", "-c", _JOB_LOGS)


def keep_output(folder: Path, pods: list[dict[str, Any]]) -> None:
    """Write what the containers of pods have said so far, from where somebody has kept it on."""
    keeper, api = Folder(folder), api_client()
    for source in (source for pod in pods for source in begun(pod)):
        try:
            for line in lines_of(api, source, follow=False, since=keeper.last(source)):
                keeper.write(line)
        except UNREADABLE as error:
            keeper.write(Line(source, "", f"could not be collected: {error}"))


def driver_lines(logs: Path) -> list[str]:
    """Return what the driver's container has said, as `follow` has kept it, without stamps."""
    lines: list[str] = []
    for path in sorted(logs.glob(f"{DRIVER}.*.{DRIVER}.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        lines += [parse(line.encode())[1] for line in text.splitlines()]
    return lines


def collect_results(folder: Path, run: Run) -> list[Path]:
    """Put the run's metrics and their picture into a folder, and return those that there are.

    A RayJob's are copied from its head pod. A driver's pod is gone with its end: its metrics
    are in its output, which `collect_logs` has kept, and the picture is drawn from them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if run.top == RAYJOBS:
        _copy_results(folder, run)
    elif steps := steps_in(_driver_log(folder / "logs")):
        text = "".join(json.dumps(step) + "\n" for step in steps)
        (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
        draw([float(step["mean_reward"]) for step in steps], folder / "reward.png")
    return sorted(path for path in folder.iterdir() if path.suffix in (".jsonl", ".png"))


def _driver_log(logs: Path) -> list[str]:
    """Return what `collect_logs` has written of the driver."""
    log = logs / "driver.log"
    return log.read_text(encoding="utf-8").splitlines() if log.is_file() else []


def _copy_results(folder: Path, run: Run) -> None:
    head = head_of(pods_of(run))
    if not head:
        return
    try:
        kubectl(
            "cp", "-n", run.namespace, "-c", "ray-head", "--retries=3", f"{head}:{RESULTS}",
            folder, timeout=60,
        )  # fmt: skip
    except UserError as error:
        (folder / "results-missing.txt").write_text(f"{error}\n", encoding="utf-8")


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
