"""Follow a run to its verdict: watches, not polls, and never without a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from kubernetes import client, config

from endpoint_registry.records import ERROR, WRITERS, object_name
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.run.kube import get, kubeconfig
from tandem.run.metrics import HEAD_FILE, MetricsTail, StepTeller
from tandem.run.phases import GroupState, failed_parts, states_of
from tandem.run.pod_logs import Folder, Line, Readers
from tandem.run.shapes import DRIVER, Run, has_ended, is_head
from tandem.run.verdict import Verdict, Wait, state_of, unplaced, verdict_of, waits_of
from tandem.run.watches import Seen, WatchInto
from tandem_common.kube.resources import RAYJOBS

#: What a pod waits for is told once it has waited this long: a moment of Pending is normal.
PENDING_SECONDS = 10.0
#: The metrics connection is opened again at most this often.
_TAIL_AGAIN_SECONDS = 2.0
#: Between two looks at the top object, beside the watch.
_LOOK_SECONDS = 60.0
#: A driver whose end is certain says its exit code within this.
_CODE_SECONDS = 3.0
#: How long a run may be suspended, in all, before nobody follows it any more.
_QUEUED_SECONDS = 7 * 86400.0
_ALL_READY, _FIRST_STEP = "all pods ready", "first step"


def is_running_head(pod: dict[str, Any]) -> bool:
    """Return whether a pod is a head pod whose containers all run."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return (
        is_head(pod)
        and bool(containers)
        and all((c.get("state") or {}).get("running") for c in containers)
    )


class Follower:
    """What is known of a run, and what a person was told of it."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet."""
        self._run = run
        self._clock = clock
        #: Is shown each pod as it changes.
        self.see_pod: Callable[[dict[str, Any]], None] = lambda _: None
        self._top: dict[str, Any] | None = None
        self._pods: dict[str, dict[str, Any]] = {}
        #: The last that was seen of pods that are gone: a driver's exit code among it.
        self._gone: list[dict[str, Any]] = []
        self._tail: MetricsTail | None = None
        self._tail_opened = 0.0
        self._placing: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._phases: dict[str, str] = {}
        self._endpoints: dict[str, str] = {}
        self._started = clock()
        #: Seconds from the beginning to what the run came to, in order.
        self.marks: dict[str, float] = {}
        self.state = "not seen yet"
        #: Whether the verdict is known: a pod that comes now is another run's of this id.
        self.decided = False

    def take(self, seen: Seen) -> Verdict | None:
        """Take one observation in and return the verdict if it decides the run."""
        if seen.kind == "pod":
            self._take_pod(seen)
        elif seen.kind == "registry":
            self._take_registry(seen)
        elif seen.obj["metadata"]["uid"] == self._run.uid:
            self._take_top(seen)
        return self.verdict()

    @property
    def suspended(self) -> bool:
        """Whether the run is held back, as by Kueue while others have its queue's quota."""
        return bool(((self._top or {}).get("spec") or {}).get("suspend"))

    def mark(self, name: str) -> None:
        """Note that the run came to something; the first time counts."""
        self.marks.setdefault(name, round(self._clock() - self._started, 1))

    def verdict(self) -> Verdict | None:
        """Return the run's verdict as far as it is known."""
        if self._top is None:
            return None
        return verdict_of(self._top, [*self._pods.values(), *self._gone])

    def explained(self, verdict: Verdict) -> Verdict:
        """Return a failure with the part of the run that ended first by itself, if one did."""
        parts = failed_parts([*self._gone, *self._pods.values()])
        if verdict.succeeded or not parts or parts[0] in verdict.message:
            return verdict
        return replace(verdict, message=f"{verdict.message}; {parts[0]}")

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods that are there."""
        return list(self._pods.values())

    def tell(self) -> None:
        """Open the metrics when the head runs, and say what pods do and wait for."""
        now = self._clock()
        self._tell_phases()
        heads = [pod for pod in self._pods.values() if is_running_head(pod)]
        due = now - self._tail_opened > _TAIL_AGAIN_SECONDS
        in_file = self._run.top == RAYJOBS
        if in_file and heads and due and (self._tail is None or self._tail.ended):
            name = heads[0]["metadata"]["name"]
            self._tail = MetricsTail(self._run.namespace, name, HEAD_FILE)
            self._tail.start()
            self._tail_opened = now
        if now - self._started > PENDING_SECONDS:
            placing = unplaced(self._pods.values())
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
            found = get("pods", self._run.namespace, selector=self._run.selector)
        except UserError:
            return None
        self._pods = {pod["metadata"]["name"]: pod for pod in (found or {}).get("items", [])}
        return self.given_up()

    def look(self) -> Verdict | None:
        """Ask for the top object: one that went while the API server was away shows no more."""
        try:
            found = get(self._run.top.group_resource, self._run.namespace, name=self._run.name)
        except UserError:
            return None
        gone = found is None or found["metadata"]["uid"] != self._run.uid
        if not gone:
            return None
        last = dict(self._top or {"kind": self._run.top.kind, "spec": {}})
        last["metadata"] = {"name": self._run.name, **last.get("metadata", {}),
                            "uid": self._run.uid}  # fmt: skip
        return self.take(Seen("top", deleted=True, obj=last))

    def close(self) -> None:
        """End the connection to the head pod."""
        if self._tail:
            self._tail.stop()

    def _waits(self, now: float) -> list[Wait]:
        """Return what pods wait for, keeping since when."""
        waits = waits_of(self._pods.values())
        self._since = {wait.key: self._since.get(wait.key, now) for wait in waits}
        return waits

    def _tell_phases(self) -> None:
        states = states_of([self._top] if self._top else [], self._pods.values())
        for state in states:
            words, name = words_of(state), str(state.group)
            if self._pods and self._phases.get(name) != words:
                console.note(f"{name}: {words}")
            self._phases[name] = words
        ready = bool(states) and all(state.phase in ("Running", "Succeeded") for state in states)
        if ready:
            self.mark(_ALL_READY)
        elif _FIRST_STEP not in self.marks:
            # More pods have come: those before were not all.
            self.marks.pop(_ALL_READY, None)

    def _take_top(self, seen: Seen) -> None:
        top = seen.obj
        top.setdefault("kind", self._run.top.kind)
        if seen.deleted:
            top["metadata"].setdefault("deletionTimestamp", "now")
        self._top = top
        state = state_of(top)
        if state != self.state:
            self.state = state
            console.note(f"{self._run.name}: {state}")

    def _take_pod(self, seen: Seen) -> None:
        name = seen.obj["metadata"]["name"]
        if self.decided and name not in self._pods:
            return
        if seen.deleted:
            self._pods.pop(name, None)
            self._gone.append(seen.obj)
        else:
            self._pods[name] = seen.obj
            self.see_pod(seen.obj)

    def _take_registry(self, seen: Seen) -> None:
        data = {} if seen.deleted else seen.obj.get("data") or {}
        for key, value in data.items():
            if value and self._endpoints.get(key) != value:
                told = console.warn if key == ERROR else console.note
                told(f"endpoint registry: {key} = {value}")
                if key in WRITERS:
                    self.mark(f"{key} published")
        self._endpoints = dict(data)


def words_of(state: GroupState) -> str:
    """Return a group's state as a person reads it: `Running 1/1`."""
    return f"{state.phase} {state.ready}/{state.wanted}"


@contextmanager
def _watches(run: Run) -> Iterator[Queue[Seen]]:
    config.load_kube_config(str(kubeconfig()))
    queue: Queue[Seen] = Queue()
    core = client.CoreV1Api()
    watches = [
        WatchInto(
            "top", queue, client.CustomObjectsApi().list_namespaced_custom_object,
            group=run.top.group, version=run.top.version, plural=run.top.plural,
            namespace=run.namespace, field_selector=f"metadata.name={run.name}",
        ),
        WatchInto(
            "pod", queue, core.list_namespaced_pod,
            namespace=run.namespace, label_selector=run.selector,
        ),
        WatchInto(
            "registry", queue, core.list_namespaced_config_map, namespace=run.namespace,
            field_selector=f"metadata.name={object_name(run.run_id)}",
        ),
    ]  # fmt: skip
    for each in watches:
        each.start()
    try:
        yield queue
    finally:
        for each in watches:
            each.stop()


def follow(
    run: Run,
    *,
    timeout: float,
    keep: Path | None = None,
    drain: float = 0.0,
    marks: dict[str, float] | None = None,
) -> Verdict:
    """Block until the run has a verdict, telling a person what happens meanwhile.

    Args:
        run: The run.
        timeout: Seconds to wait at most; the API server may be away for part of it. Those that
            the run is suspended do not count: its own clock stands still, too.
        keep: Folder that gets the output of every container as it comes, if any.
        drain: Seconds that pods get after the verdict to end and say their last words.
        marks: Gets the seconds from now to what the run comes to.

    Raises:
        UserError: The time passed without a verdict.
    """
    follower = Follower(run)
    readers = Readers(_taker(follower, run, keep))
    follower.see_pod = readers.see
    follower.marks = {} if marks is None else marks
    deadline = time.monotonic() + timeout
    latest = deadline + _QUEUED_SECONDS
    try:
        with _watches(run) as queue:
            looked = time.monotonic()
            while (left := deadline - time.monotonic()) > 0:
                began = time.monotonic()
                verdict = _take(follower, queue, min(left, 1.0)) or follower.confirmed()
                if not verdict and time.monotonic() - looked > _LOOK_SECONDS:
                    looked, verdict = time.monotonic(), follower.look()
                if verdict:
                    follower.mark("verdict")
                    follower.decided = True
                    return _last_words(follower, queue, verdict, drain)
                follower.tell()
                if follower.suspended:
                    deadline = min(deadline + time.monotonic() - began, latest)
    finally:
        follower.close()
        readers.drain(_CODE_SECONDS)
        readers.stop()
    raise UserError(
        Problem(
            f"run {run.name} has no verdict after {timeout:.0f} s (last state: {follower.state})",
            f"kubectl describe {run.top.group_resource} {run.name} -n {run.namespace}",
        ),
        ExitCode.FAILURE,
    )


def _taker(follower: Follower, run: Run, keep: Path | None) -> Callable[[Line], None]:
    folder, teller = Folder(keep) if keep else None, StepTeller()

    def take(line: Line) -> None:
        if folder:
            folder.write(line)
        if line.source.role == DRIVER and run.top != RAYJOBS:
            teller.take(line.text)
            if teller.any:
                follower.mark(_FIRST_STEP)

    return take


def _take(follower: Follower, queue: Queue[Seen], seconds: float) -> Verdict | None:
    try:
        return follower.take(queue.get(timeout=seconds))
    except Empty:
        return follower.verdict()


def _last_words(
    follower: Follower, queue: Queue[Seen], verdict: Verdict, seconds: float
) -> Verdict:
    """Wait for the pods' ends, and return the verdict with what became known meanwhile."""
    if verdict.lingers:
        return verdict
    now = time.monotonic()
    code_by, until = now + _CODE_SECONDS, now + seconds
    while (now := time.monotonic()) < max(code_by, until):
        known = verdict.succeeded or verdict.exit_code > 1
        going = [p for p in follower.pods() if not has_ended(p)]
        if not going or (now >= until and (known or now >= code_by)):
            break
        verdict = _take(follower, queue, 0.5) or verdict
    return follower.explained(verdict)
