"""What tests of cascades do to a run: break one part of it, and see how all of it ends.

Pods are found by the labels that every variant gives them, `tandem.dev/run-id` and
`tandem.dev/role`; what else differs between variants stands in `SHAPES`.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
from kubernetes import client, config

from endpoint_registry.records import object_name
from peer_watcher.convert import RECORD_ANNOTATION, RUN_ID_LABEL, VERDICT_ANNOTATION
from peer_watcher.facts import record_from_json
from support import on_cluster
from tandem.errors import UserError
from tandem.render import kustomize
from tandem.run.identity import (
    AS_THE_VARIANT_SAYS,
    Placing,
    drop_overlay,
    forget,
    write_overlay,
)
from tandem.run.kube import get, kubeconfig, kubectl
from tandem.run.remove import remove_all
from tandem.run.shapes import ROLE_LABEL
from tandem.run.start import start
from tandem.run.watches import Seen, WatchInto

ROLES = ("rl", "gym", "driver")
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a test has to know of a variant beyond the two labels.

    Attributes:
        refs: The object that holds each role, as verdicts name it, but for the run's id.
        heads: Selector of the head pod, by side.
        worker: Selector of the pod with the GPU.
        group: API group, version and plural of the sides' objects.
        also: Rules of verdicts that are as right, since an operator's own policy may come first.
        also_reason: What such a verdict says; `{victim}` is the group that died.
        left_to_full: Faults that another shape stands for in `make check`.
    """

    refs: dict[str, str]
    heads: dict[str, str]
    worker: str
    group: tuple[str, str, str]
    namespace: str = "tandem"
    also: frozenset[str] = frozenset()
    also_reason: str = ""
    left_to_full: frozenset[str] = frozenset()

    @property
    def sides(self) -> set[str]:
        """The objects that are sides, without the run's id."""
        return {self.refs[role] for role in self.heads}


_RAY_HEAD, _JOB = "ray.io/node-type=head", "jobset.sigs.k8s.io/replicatedjob-name"
SHAPES = {
    "disagg-rayclusters": Shape(
        refs={"rl": "RayCluster/rl", "gym": "RayCluster/gym", "driver": "Job/driver"},
        heads={"rl": _RAY_HEAD, "gym": _RAY_HEAD},
        worker="ray.io/node-type=worker",
        group=("ray.io", "v1", "rayclusters"),
    ),
    "disagg-jobset": Shape(
        refs=dict.fromkeys(("rl", "gym", "driver"), "JobSet/run"),
        heads={"rl": f"{_JOB}=rl-head", "gym": f"{_JOB}=gym-head"},
        worker=f"{_JOB}=rl-workers",
        group=("jobset.x-k8s.io", "v1alpha2", "jobsets"),
        also=frozenset({"ended-failed"}),
        also_reason="JobSet/run-.* failed: .*first failed job: run-.*-{victim}-0",
        left_to_full=frozenset({"vllm-killed"}),
    ),
}
#: Variants whose sides can be applied and deleted one by one.
APART = [name for name, shape in SHAPES.items() if len(shape.sides) > 1]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run has ended, as far as the API server has told.

    Attributes:
        seconds: From the fault to the end of the last pod.
        decided: From the fault to the verdict; NaN without one.
        verdicts: Those that stood on the run's objects.
        events: What the Events of this run say that tell of its failure.
        driver: Exit code of the driver's container; None when it never ran.
        pods: When each pod ended, in seconds from the fault.
    """

    seconds: float
    decided: float
    verdicts: tuple[Object, ...]
    events: tuple[str, ...]
    driver: int | None
    pods: dict[str, float]

    @property
    def rules(self) -> set[str]:
        if self.verdicts:
            return {str(verdict["rule"]) for verdict in self.verdicts}
        # An object that a person has deleted bears no annotation; its Event says the same.
        return {rule for event in self.events for rule in re.findall(r"\[([a-z-]+)\]", event)}

    @property
    def reasons(self) -> str:
        said = [str(verdict["reason"]) for verdict in self.verdicts]
        return "\n".join(said or self.events)


@dataclass(slots=True)
class _Record:
    """What watches have told: pods and verdicts are gone when the run is."""

    seen: Queue[Seen] = field(default_factory=Queue)
    verdicts: dict[str, Object] = field(default_factory=dict)
    driver: int | None = None

    def take_in(self) -> None:
        while True:
            try:
                one = self.seen.get_nowait()
            except Empty:
                return
            metadata = one.obj["metadata"]
            written = (metadata.get("annotations") or {}).get(VERDICT_ANNOTATION)
            if written:
                self.verdicts[f"{one.kind}/{metadata['name']}"] = json.loads(written)
            role = (metadata.get("labels") or {}).get(ROLE_LABEL)
            if one.kind == "pod" and role == "driver":
                for status in (one.obj.get("status") or {}).get("containerStatuses") or []:
                    done = (status.get("state") or {}).get("terminated")
                    if done:
                        self.driver = int(done["exitCode"])


class Cascade:
    """One run, from its start to the last of its pods."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        # Another one each time: what Events tell of a former run is not this one's.
        self.run_id = f"c{time.time_ns() // 10**6 % 10**9}"
        shape = SHAPES[variant]
        self.refs = {role: f"{ref}-{self.run_id}" for role, ref in shape.refs.items()}
        self.sides = {self.refs[role] for role in shape.heads}
        self.shape = shape
        self.namespace = shape.namespace
        self._selector = f"{RUN_ID_LABEL}={self.run_id}"
        self._record = _Record()
        self._watches: list[WatchInto] = []
        settings = client.Configuration()
        config.load_kube_config(str(kubeconfig()), client_configuration=settings)
        self._api = client.ApiClient(settings)
        self._pods = client.CoreV1Api(self._api)
        self.started = self._fault_at = time.monotonic()

    # -- start and end -------------------------------------------------------------------

    def start(
        self,
        change: Callable[[Object], Object | None] | None = None,
        placing: Placing = AS_THE_VARIANT_SAYS,
    ) -> None:
        """Start the run as a person does, or with changed objects; those made None are left out."""
        self.started = time.monotonic()
        if change is None:
            start(self.variant, self.run_id, placing)
        else:
            self.apply(change, placing)

    def apply(
        self,
        change: Callable[[Object], Object | None],
        placing: Placing = AS_THE_VARIANT_SAYS,
    ) -> None:
        """Apply the run's objects as they are made by `change`."""
        folder = write_overlay(self.variant, self.run_id, placing)
        rendered = kustomize(folder)
        drop_overlay(folder)
        objects = [made for obj in rendered if (made := change(obj))]
        on_cluster.apply({"apiVersion": "v1", "kind": "List", "items": objects})

    def remove(self) -> None:
        """Remove all of the run, its pods at once: the next test has the machine for itself."""
        for watch in self._watches:
            watch.stop()
        self._each_pod("--grace-period=0", "--force")
        remove_all(self.namespace, self.run_id)
        forget(self.run_id)
        deadline = time.monotonic() + 60
        while self.running():
            assert time.monotonic() < deadline, f"pods of the run live on: {self.running()}"
            self._each_pod("--grace-period=0", "--force")
            time.sleep(0.5)

    def _each_pod(self, *flags: str) -> None:
        kubectl(
            "delete", "pods", "-n", self.namespace, "--selector", self._selector,
            "--ignore-not-found", "--wait=false", *flags,
        )  # fmt: skip

    def observe(self) -> None:
        """Keep from now on what is gone when the run is: verdicts, and how the driver ended."""
        jobs = client.BatchV1Api(self._api).list_namespaced_job
        sides = client.CustomObjectsApi(self._api).list_namespaced_custom_object
        group, version, plural = self.shape.group
        pods = self._pods.list_namespaced_pod
        seen, labels = self._record.seen, {"label_selector": self._selector}
        self._watches = [
            WatchInto("pod", seen, pods, namespace=self.namespace, **labels),
            WatchInto("job", seen, jobs, namespace=self.namespace, **labels),
            WatchInto(
                plural.removesuffix("s"), seen, sides, group=group, version=version,
                namespace=self.namespace, plural=plural, **labels,
            ),
        ]  # fmt: skip
        for watch in self._watches:
            watch.start()

    # -- looks ---------------------------------------------------------------------------

    def running(self) -> list[str]:
        """Return the names of the run's pods that have not ended: helpers' too."""
        listed: Any = self._pods.list_namespaced_pod(
            self.namespace, label_selector=self._selector, _request_timeout=10
        )
        return [p.metadata.name for p in listed.items if p.status.phase not in _OVER]

    def pods(self, role: str, selector: str = "") -> list[Object]:
        """Return the pods of a role that have not ended."""
        wanted = f"{self._selector},{ROLE_LABEL}={role}" + (f",{selector}" if selector else "")
        found = get("pods", self.namespace, selector=wanted) or {"items": []}
        return [p for p in found["items"] if p["status"].get("phase") not in _OVER]

    def head(self, role: str) -> Object:
        [pod] = self.pods(role, self.shape.heads[role])
        return pod

    def registry(self) -> dict[str, str]:
        found = get("configmaps", self.namespace, name=object_name(self.run_id)) or {}
        return dict(found.get("data") or {})

    def log(self, role: str) -> str:
        """Return what a role's pods have said so far."""
        told = []
        for pod in self.pods(role):
            try:
                told.append(kubectl("logs", "-n", self.namespace, pod["metadata"]["name"]))
            except UserError:
                continue  # nothing said yet
        return "\n".join(told)

    def memory(self) -> dict[str, int]:
        """Return the working set of each of the run's pods in bytes, as the kubelet counts it."""
        names = set(self.running())
        [node] = {pod["spec"]["nodeName"] for role in ROLES for pod in self.pods(role)}
        told = json.loads(kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
        return {
            pod["podRef"]["name"]: int(pod["memory"]["workingSetBytes"])
            for pod in told["pods"]
            if pod["podRef"]["namespace"] == self.namespace and pod["podRef"]["name"] in names
        }

    def until(self, met: Callable[[], Any], what: str, seconds: float) -> Any:
        """Wait until something is so and return it."""
        deadline = time.monotonic() + seconds
        while not (found := met()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what}: not within {seconds:g} s\n{self.story()}")
            time.sleep(0.5)
        return found

    def story(self) -> str:
        """What a person would look at."""
        told = []
        for words in (
            ["get", "pods,jobs", "-n", self.namespace, "-o", "wide"],
            ["get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp"],
            *(
                ["logs", "-n", self.namespace, "--tail=40", "--selector",
                 f"{self._selector},{ROLE_LABEL}={role}"]
                for role in ("driver", "gym")
            ),
            ["logs", "-n", self.namespace, "--tail=10", "--selector",
             "app.kubernetes.io/name=peer-watcher"],
        ):  # fmt: skip
            try:
                told.append(kubectl(*words))
            except UserError as error:
                told.append(str(error))
        return "\n".join(told)

    # -- stages --------------------------------------------------------------------------

    def await_up(self) -> None:
        """Wait until those who watch the run have seen all of it up: an absence is a death now."""
        self.until(self._seen_up, "all of the run up, in its watchers' own records", 300)

    def _seen_up(self) -> bool:
        for side in self.sides:
            kind, _, name = side.partition("/")
            found = get(kind, self.namespace, name=name) or {"metadata": {}}
            annotations = found["metadata"].get("annotations") or {}
            record = record_from_json(str(annotations.get(RECORD_ANNOTATION, "")))
            if len(record) < len(set(self.refs.values())) or not all(m.up for m in record.values()):
                return False
        return True

    def await_published(self, key: str, seconds: float = 300) -> str:
        """Wait until a key of the registry is there, and return its value."""
        return str(self.until(lambda: self.registry().get(key), f"key {key}", seconds))

    def await_log(self, role: str, text: str, seconds: float = 300) -> None:
        self.until(lambda: text in self.log(role), f"{text!r} in the log of {role}", seconds)

    # -- faults --------------------------------------------------------------------------

    def processes(self, role: str, words: str) -> list[int]:
        """Return the ids, on this node, of the role's processes whose command line has words.

        Only such whose cgroup is that of a pod of this run and role.
        """
        uids = {pod["metadata"]["uid"] for pod in self.pods(role)}
        marks = {form for uid in uids for form in (f"pod{uid}", f"pod{uid.replace('-', '_')}")}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                group = (entry / "cgroup").read_text(encoding="utf-8")
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended meanwhile
            if any(mark in group for mark in marks) and words in line:
                found.append(int(entry.name))
        return found

    def kill(self, role: str, words: str) -> None:
        """End with SIGKILL all processes of a role whose command line has words."""
        found = self.processes(role, words)
        assert found, f"no process of {role} has {words!r} in its command line\n{self.story()}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def evict(self, pod: Object) -> None:
        """Evict a pod as a drain of its node does."""
        metadata = {"name": pod["metadata"]["name"], "namespace": self.namespace}
        self._pods.create_namespaced_pod_eviction(
            metadata["name"], self.namespace,
            client.V1Eviction(metadata=client.V1ObjectMeta(**metadata)), _request_timeout=10,
        )  # fmt: skip

    def delete(self, what: str, *flags: str) -> None:
        kubectl("delete", what, "-n", self.namespace, "--wait=false", *flags)

    # -- how it ended --------------------------------------------------------------------

    def ending_after(self, fault: Callable[[], None], seconds: float = 180) -> Ending:
        """Do something to the run and return how it ended, and how long that took."""
        self.observe()
        before = self._fault_at = time.monotonic()
        fault()
        ends: dict[str, float] = {}
        there: set[str] = set()
        while now := set(self.running()):
            ends |= dict.fromkeys(there - now, time.monotonic() - before)
            there = now
            self._record.take_in()
            if time.monotonic() - before > seconds:
                pytest.fail(f"pods after {seconds:g} s: {now}\n{self.story()}")
            time.sleep(0.2)
        taken = time.monotonic() - before
        return replace(self.ending(taken), pods=ends | dict.fromkeys(there, taken))

    def ending(self, taken: float = 0.0) -> Ending:
        """Return how the run has ended, as far as was observed."""
        time.sleep(0.5)  # what a watch tells of the last moment
        self._record.take_in()
        events = get("events", self.namespace, selector="") or {"items": []}
        began = time.time() - (time.monotonic() - self.started)
        failures = [
            event
            for event in events["items"]
            if event.get("reason") == "RunFailed" and _seconds(str(event["eventTime"])) >= began
        ]
        told = tuple(str(event["message"]) for event in failures)
        verdicts = tuple(self._record.verdicts.values())
        # What a person deletes bears no verdict: then its Event is the first word.
        signed = [str(each["at"]) for each in verdicts] or [e["eventTime"] for e in failures]
        fault_at = time.time() - (time.monotonic() - self._fault_at)
        decided = min(map(_seconds, signed), default=math.nan) - fault_at
        return Ending(taken, decided, verdicts, told, self._record.driver, {})


_OVER = ("Succeeded", "Failed")


def _seconds(moment: str) -> float:
    """Return a time of the API server's as `time.time` counts."""
    return datetime.fromisoformat(moment).timestamp()


def report(capsys: pytest.CaptureFixture[str], name: str, ending: Ending) -> None:
    """Print when and why a run ended, whatever pytest does with the output."""
    with capsys.disabled():
        first = ending.reasons.partition("\n")[0]
        rules = ", ".join(sorted(ending.rules))
        when = f"verdict {ending.decided:.1f} s, gone {ending.seconds:.1f} s"
        print(f"\n{name}: {rules}: {when}, driver {ending.driver}: {first}")
        print(", ".join(f"{pod} {seconds:.1f} s" for pod, seconds in ending.pods.items()))


@contextmanager
def cascade(variant: str) -> Iterator[Cascade]:
    """A run of a variant that is gone afterwards."""
    made = Cascade(variant)
    try:
        yield made
    finally:
        made.remove()
