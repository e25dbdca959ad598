"""A run on the real API server, with the operators' and the kubelet's part played by the test.

CRDs, garbage collection, the Job controller, RBAC, watches and UIDs are real. What KubeRay
and a kubelet would write into `status` is written by `Stage`, through the status subresource.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from endpoint_registry import records
from peer_watcher.act import Actor
from peer_watcher.facts import Members, Ref
from peer_watcher.main import Watcher, wall_time
from peer_watcher.metrics import Metrics
from peer_watcher.observe import RESOURCES, Observer
from peer_watcher.policy import Limits
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode
from tandem_common.kube import CONFIGMAPS, EVENTS, PODS, Client, Conflict, NotFound

Object = dict[str, Any]

RL, GYM, DRIVER = Ref("RayCluster", "rl"), Ref("RayCluster", "gym"), Ref("Job", "driver")
MEMBERS = Members(RL, GYM, DRIVER, "nemo-rl-endpoints-run-7")
PEERS_VIEW = Members(GYM, RL, DRIVER, "nemo-rl-endpoints-run-7")
#: Patience as by default; the clock is simulated where it counts.
LIMITS = Limits()
#: What keeps an object from going, as an operator's finalizer would.
HOLD = "example.test/hold"
CONTAINER = {"name": "ray-head", "image": "ray:v1"}


class Stage:
    """Plays people, operators and kubelets, as the administrator."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._pods = 0

    def get(self, ref: Ref) -> Object | None:
        try:
            return self.client.get(RESOURCES[ref.kind], ref.name)
        except NotFound:
            return None

    def uid(self, ref: Ref) -> str:
        found = self.get(ref)
        assert found is not None
        return str(found["metadata"]["uid"])

    def raycluster(self, ref: Ref, *, tolerant: bool = False, finalizer: str = "") -> None:
        spec: Object = {
            "headGroupSpec": {
                "rayStartParams": {},
                "template": {"spec": {"containers": [CONTAINER]}},
            }
        }
        metadata: Object = {"name": ref.name}
        if tolerant:
            metadata["annotations"] = {"ray.io/ft-enabled": "true"}
        if finalizer:
            metadata["finalizers"] = [finalizer]
        self.client.create(RESOURCES[ref.kind], {"metadata": metadata, "spec": spec})

    def conditions(self, ref: Ref, **states: str) -> None:
        """Set conditions, as the operator would: HeadPodReady="True", …"""
        found = self.get(ref)
        assert found is not None
        old = {c["type"]: c for c in (found.get("status") or {}).get("conditions") or []}
        now = wall_time()[:19] + "Z"
        for name, state in states.items():
            if (old.get(name) or {}).get("status") != state:
                old[name] = {"type": name, "status": state, "reason": "Test", "message": "",
                             "lastTransitionTime": now}  # fmt: skip
        self.status(ref, conditions=list(old.values()), state="ready")

    def status(self, ref: Ref, **fields: Any) -> None:
        self.client.merge_patch(
            RESOURCES[ref.kind], ref.name, {"status": fields}, subresource="status"
        )

    def head(self, ref: Ref, *, owner: Ref | None = None) -> str:
        """Create a head pod that is Ready, and return its name."""
        self._pods += 1
        name = f"{ref.name}-head-{self._pods}"
        carrier = owner or ref
        self.client.create(PODS, {
            "metadata": {
                "name": name,
                "labels": {"ray.io/cluster": ref.name, "ray.io/node-type": "head"},
                "ownerReferences": [{
                    "apiVersion": RESOURCES[carrier.kind].api_version, "kind": carrier.kind,
                    "name": carrier.name, "uid": self.uid(carrier), "controller": True,
                    "blockOwnerDeletion": True,
                }],
            },
            "spec": {"containers": [CONTAINER], "automountServiceAccountToken": False},
        })  # fmt: skip
        self.pod(name, ready=True)
        return name

    def pod(
        self, name: str, *, phase: str = "Running", ready: bool = False, reason: str = "",
        restarts: int = 0, taken: str = "",
    ) -> None:  # fmt: skip
        why = [{"type": "TerminationTarget", "status": "True", "message": taken}] if taken else []
        status = {
            "phase": phase, "reason": reason,
            "conditions": [{"type": "Ready", "status": str(ready)}, *why],
            "containerStatuses": [{
                "name": "ray-head", "image": "ray:v1", "imageID": "", "ready": ready,
                "restartCount": restarts,
            }],
        }  # fmt: skip
        self.client.merge_patch(PODS, name, {"status": status}, subresource="status")

    def up(self, ref: Ref) -> str:
        """Bring a side up: its head is Ready, and so are all its pods."""
        name = self.head(ref)
        self.conditions(
            ref, HeadPodReady="True", RayClusterProvisioned="True", RayClusterSuspended="False"
        )
        return name

    def job(self, ref: Ref = DRIVER, *, runs: bool = True) -> None:
        """Create a Job; its pod runs, or waits to be scheduled."""
        pod = {"containers": [CONTAINER], "restartPolicy": "Never",
               "automountServiceAccountToken": False}  # fmt: skip
        self.client.create(RESOURCES["Job"], {
            "metadata": {"name": ref.name},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        })  # fmt: skip
        if runs:
            self.pod(self._pod_of_job(ref), ready=True)

    def jobset(self, ref: Ref) -> str:
        """Create a JobSet with one pod that runs, and return the pod's name."""
        pod = {"containers": [CONTAINER], "restartPolicy": "Never"}
        self.client.create(RESOURCES["JobSet"], {
            "metadata": {"name": ref.name},
            "spec": {"replicatedJobs": [
                {"name": "head", "replicas": 1, "template": {"spec": {"template": {"spec": pod}}}},
            ]},
        })  # fmt: skip
        name = f"{ref.name}-head-0-0"
        self.client.create(PODS, {
            "metadata": {"name": name, "labels": {"jobset.sigs.k8s.io/jobset-name": ref.name}},
            "spec": {"containers": [CONTAINER], "automountServiceAccountToken": False},
        })  # fmt: skip
        self.pod(name, ready=True)
        return name

    def _pod_of_job(self, ref: Ref) -> str:
        deadline = Deadline(120)
        while True:
            pods = self.client.list(PODS, label_selector=f"job-name={ref.name}").items
            if pods:
                return str(pods[0]["metadata"]["name"])
            assert not deadline.passed, "the Job controller made no pod"
            time.sleep(0.1)

    def end_job(self, phase: str) -> None:
        """Let the driver's pod end; the real Job controller concludes."""
        self.pod(self._pod_of_job(DRIVER), phase=phase)

    def registry(self, *, error: str = "", run: Ref = RL) -> None:
        uid = self.uid(run)
        body = records.new_object("run-7", records.Run(uid), [])
        if error:
            body["data"] = {"error": error}
        self.client.create(CONFIGMAPS, body)

    def write_error(self, text: str) -> None:
        """Write as NeMo RL's own client does: the key alone."""
        self.client.merge_patch(CONFIGMAPS, MEMBERS.registry, {"data": {"error": text}})

    def delete(self, ref: Ref) -> None:
        self.client.delete(RESOURCES[ref.kind], ref.name, propagation="Foreground")

    def delete_pod(self, name: str) -> None:
        self.client.delete(PODS, name)

    def hold(self, ref: Ref) -> None:
        """Keep an object from going, as an operator's finalizer would."""
        self.client.merge_patch(RESOURCES[ref.kind], ref.name, {"metadata": {"finalizers": [HOLD]}})

    def drop_finalizers(self, ref: Ref) -> None:
        """Let go of what `hold` keeps, while the garbage collector takes its own finalizer off."""
        for _ in range(20):
            found = self.get(ref)
            if found is None:
                return
            metadata = found["metadata"]
            others = [name for name in metadata.get("finalizers", ()) if name != HOLD]
            # The version that was read: else a list that grew shorter meanwhile would be given
            # back whole, which the server refuses once an object is on its way.
            patch = {"resourceVersion": metadata["resourceVersion"], "finalizers": others}
            try:
                self.client.merge_patch(RESOURCES[ref.kind], ref.name, {"metadata": patch})
            except (Conflict, NotFound):
                continue
            return
        raise AssertionError(f"{ref} changes too often to be let go")

    def run_up(self, *, tolerant: bool = False) -> dict[Ref, str]:
        """Bring a whole run up; return the names of the head pods."""
        for ref in (RL, GYM):
            self.raycluster(ref, tolerant=tolerant)
        self.job()
        self.registry()
        return {ref: self.up(ref) for ref in (RL, GYM)}

    def events(self) -> list[Object]:
        return [
            event
            for event in self.client.list(EVENTS).items
            if event.get("reportingController") == "tandem.dev/peer-watcher"
        ]

    def gone(self, *refs: Ref) -> bool:
        return all(self.get(ref) is None for ref in refs)


class Hands:
    """A watcher whose steps and clock a test has in its hands."""

    def __init__(self, client: Client, members: Members, **options: Any) -> None:
        self.client = client
        self.offset = 0.0
        self.metrics = Metrics(CollectorRegistry())
        # The observer's clock is real: its watches are.
        self.observer = Observer(
            client, members, poll_seconds=options.pop("poll_seconds", 0.5),
            on_reconnect=self.metrics.reconnected,
        )  # fmt: skip
        actor = Actor(client, identity="test", now=wall_time, count=self.metrics.deleted)
        self.watcher = Watcher(
            members, options.pop("limits", LIMITS), self.observer, actor, self.metrics,
            clock=self.clock, **options,
        )  # fmt: skip
        self.code: ExitCode | None = None
        self.observer.start()

    def clock(self) -> float:
        return time.monotonic() + self.offset

    def step(self) -> None:
        if self.code is None:
            self.code = self.watcher.step()

    def go_on(self) -> None:
        """Step again after it gave up, with what it knows."""
        self.code = None

    def until(self, met: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        """Step at every change until something is so."""
        deadline = Deadline(seconds)
        while True:
            self.step()
            if met():
                return
            assert not deadline.passed, f"{what}: not within {seconds:g} s; {self.watcher.state}"
            self.observer.wake.wait(0.05)
            self.observer.wake.clear()

    def until_up(self, *refs: Ref) -> None:
        self.until(
            lambda: all(self.phase(ref) == "up" for ref in refs), f"up: {', '.join(map(str, refs))}"
        )

    def phase(self, ref: Ref) -> str:
        member = self.watcher.state.members.get(ref)
        return member.phase.value if member else ""

    def pass_time(self, seconds: float, step: float = 10.0) -> None:
        """Let simulated time pass, a step at a time; each step looks."""
        until = self.offset + seconds
        while self.offset < until:
            self.offset += step
            self.step()

    @property
    def alive(self) -> bool:
        return self.code is None

    def alerts(self) -> frozenset[str]:
        return self.watcher.state.alerts

    def close(self) -> None:
        self.observer.close()


class Running:
    """A watcher in a thread of its own, as in the program."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.code: ExitCode | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.hands.watcher.run()

    def stop(self) -> None:
        self.hands.watcher.stop()

    def join(self, seconds: float = 60.0) -> ExitCode | None:
        self._thread.join(timeout=seconds)
        assert not self._thread.is_alive(), "the watcher goes on"
        return self.code
