"""Follow a RayJob to its verdict: watches, not polls, and never without a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from kubernetes import client, config

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.run.kube import get, kubeconfig
from tandem.run.metrics import MetricsTail
from tandem.run.verdict import Verdict, Wait, state_of, unplaced, verdict_of, waits_of
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

    def __init__(self, run: RunName, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet."""
        self._run = run
        self._clock = clock
        self._cluster = ""
        self._pods: dict[str, dict[str, Any]] = {}
        self._tail: MetricsTail | None = None
        self._tail_opened = 0.0
        self._placing: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._started = clock()
        self.state = "not seen yet"

    def take(self, seen: Seen) -> Verdict | None:
        """Take one observation in and return the verdict if it decides the run."""
        if seen.kind == "pod":
            self._take_pod(seen)
            return None
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
        """Open the metrics when the head runs, and say what pods wait for."""
        now = self._clock()
        pods = self._own_pods()
        heads = [pod for pod in pods if is_running_head(pod)]
        due = now - self._tail_opened > _TAIL_AGAIN_SECONDS
        if heads and due and (self._tail is None or self._tail.ended):
            name = heads[0]["metadata"]["name"]
            self._tail = MetricsTail(self._run.namespace, name, self._run.metrics_path)
            self._tail.start()
            self._tail_opened = now
        if now - self._started > PENDING_SECONDS:
            placing = unplaced(pods)
            for name, words in placing.items():
                if self._placing.get(name) != words:
                    console.warn(f"pending: {name}: {words}")
            self._placing = placing
        for wait in self._waits(now):
            if now - self._since[wait.key] >= wait.tell_after and wait.key not in self._told:
                self._told.add(wait.key)
                console.warn(f"waiting: {wait.verdict.message}")

    def given_up(self) -> Verdict | None:
        """Return the verdict on a wait that has lasted too long, if there is one."""
        now = self._clock()
        for wait in self._waits(now):
            if now - self._since[wait.key] >= wait.patience:
                return wait.verdict
        return None

    def confirmed(self) -> Verdict | None:
        """As `given_up`, after a look at the pods as they are now.

        A pod that went while the API server was away is still in our memory, and a run
        must not be given up for it.
        """
        if self.given_up() is None:
            return None
        try:
            found = get("pods", self._run.namespace, selector=f"ray.io/cluster={self._cluster}")
        except UserError:
            return None
        self._pods = {pod["metadata"]["name"]: pod for pod in (found or {}).get("items", [])}
        return self.given_up()

    def _waits(self, now: float) -> list[Wait]:
        """Return what pods wait for, keeping since when."""
        waits = waits_of(self._own_pods())
        self._since = {wait.key: self._since.get(wait.key, now) for wait in waits}
        return waits

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
                verdict = verdict or follower.confirmed()
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
