"""Follow a RayJob to its verdict: watches, not polls, and never without a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from kubernetes import client, config

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.run.kube import kubeconfig
from tandem.run.metrics import MetricsTail
from tandem.run.verdict import Verdict, hopeless_pod, pending_reasons, state_of, verdict_of
from tandem.run.watches import Seen, WatchInto

#: What a pod waits for is told once it has waited this long: a moment of Pending is normal.
PENDING_SECONDS = 10.0
#: The metrics connection is opened again at most this often.
_TAIL_AGAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RunName:
    """The RayJob that stands for a run, and its metrics file on the head pod."""

    namespace: str
    name: str
    uid: str
    metrics_path: str


def is_running_head(pod: dict[str, Any]) -> bool:
    """Return whether a pod is a head pod whose containers all run."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return (
        (pod["metadata"].get("labels") or {}).get("ray.io/node-type") == "head"
        and bool(containers)
        and all((c.get("state") or {}).get("running") for c in containers)
    )


class Follower:
    """What is known of a run, and what a person was told of it."""

    def __init__(self, run: RunName) -> None:
        """Know nothing yet."""
        self._run = run
        self._cluster = ""
        self._pods: dict[str, dict[str, Any]] = {}
        self._tail: MetricsTail | None = None
        self._tail_opened = 0.0
        self._told: set[str] = set()
        self._started = time.monotonic()
        self.state = "not seen yet"

    def take(self, seen: Seen) -> Verdict | None:
        """Take one observation in and return the verdict if it decides the run."""
        if seen.kind == "pod":
            self._take_pod(seen)
            return hopeless_pod(self._own_pods())
        if seen.obj["metadata"]["uid"] != self._run.uid:
            return None
        status = seen.obj.get("status") or {}
        self._cluster = status.get("rayClusterName") or self._cluster
        state = state_of(seen.obj)
        if state != self.state:
            self.state = state
            console.note(f"{self._run.name}: {state}")
        if seen.deleted:
            seen.obj["metadata"].setdefault("deletionTimestamp", "now")
        return verdict_of(seen.obj)

    def tell(self) -> None:
        """Open the metrics when the head runs, and say once why a pod is not placed."""
        now = time.monotonic()
        heads = [pod for pod in self._own_pods() if is_running_head(pod)]
        due = now - self._tail_opened > _TAIL_AGAIN_SECONDS
        if heads and due and (self._tail is None or self._tail.ended):
            name = heads[0]["metadata"]["name"]
            self._tail = MetricsTail(self._run.namespace, name, self._run.metrics_path)
            self._tail.start()
            self._tail_opened = now
        if now - self._started > PENDING_SECONDS:
            for words in set(pending_reasons(self._own_pods())) - self._told:
                console.warn(f"pending: {words}")
                self._told.add(words)

    def close(self) -> None:
        """End the connection to the head pod."""
        if self._tail:
            self._tail.stop()

    def _take_pod(self, seen: Seen) -> None:
        name = seen.obj["metadata"]["name"]
        if seen.deleted:
            self._pods.pop(name, None)
        else:
            self._pods[name] = seen.obj

    def _own_pods(self) -> list[dict[str, Any]]:
        if not self._cluster:
            return []
        return [
            pod
            for pod in self._pods.values()
            if (pod["metadata"].get("labels") or {}).get("ray.io/cluster") == self._cluster
        ]


@contextmanager
def _watches(run: RunName) -> Iterator[Queue[Seen]]:
    config.load_kube_config(str(kubeconfig()))
    queue: Queue[Seen] = Queue()
    watches = [
        WatchInto(
            "rayjob", queue, client.CustomObjectsApi().list_namespaced_custom_object,
            group="ray.io", version="v1", plural="rayjobs", namespace=run.namespace,
            field_selector=f"metadata.name={run.name}",
        ),
        WatchInto(
            "pod", queue, client.CoreV1Api().list_namespaced_pod,
            namespace=run.namespace, label_selector="ray.io/cluster",
        ),
    ]  # fmt: skip
    for each in watches:
        each.start()
    try:
        yield queue
    finally:
        for each in watches:
            each.stop()


def follow(run: RunName, *, timeout: float) -> Verdict:
    """Block until the run has a verdict, telling a person what happens meanwhile.

    Args:
        run: The run.
        timeout: Seconds to wait at most; the API server may be away for part of it.

    Raises:
        UserError: The time passed without a verdict.
    """
    follower = Follower(run)
    deadline = time.monotonic() + timeout
    try:
        with _watches(run) as queue:
            while (left := deadline - time.monotonic()) > 0:
                try:
                    verdict = follower.take(queue.get(timeout=min(left, 1.0)))
                except Empty:
                    verdict = None
                if verdict:
                    return verdict
                follower.tell()
    finally:
        follower.close()
    raise UserError(
        Problem(
            f"run {run.name} has no verdict after {timeout:.0f} s (last state: {follower.state})",
            f"kubectl describe rayjob {run.name} -n {run.namespace}",
        ),
        ExitCode.FAILURE,
    )
