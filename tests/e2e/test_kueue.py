"""Real Kueue on the real cluster: runs start whole, one after the other, the important one first.

The pods are a small web server each in place of Ray: what is looked at is who may start. Ray
itself, and a training over two RayClusters as one group, is the last test.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer_watcher.convert import RUN_ID_LABEL
from support.cascades import cascade, report
from support.cli import runs_program
from support.on_cluster import items, until
from support.run_state import left_of
from tandem import rehearsal
from tandem.platform import kueue_gpus, remove_kueue, sync
from tandem.policy import KUEUE_COUNT, KUEUE_GROUP, KUEUE_PRIORITY, KUEUE_QUEUE, KUEUE_RETRIABLE
from tandem.rehearsal_kueue import WORKLOADS
from tandem.run.identity import Placing
from tandem.run.kube import kubectl
from tandem.run.queueing import KUEUE
from tandem.run.shapes import ROLE_LABEL
from tandem_host import kwok

pytestmark = pytest.mark.cluster

NAMESPACE = "tandem"
TEST_LABEL = "tandem.dev/test"
HIGH, LOW = "high-prio", "low-prio"
#: Of the one node, and of the queues.
GPUS = 8
#: For long enough must nothing happen: Kueue looks at a queue within a second.
STILL_SECONDS = 5.0

Object = dict[str, Any]


def template(gpus: int, code: int = 0) -> Object:
    """A pod that is Ready within a second, and ends at once, with a code, when it is told to."""
    server = (
        "import signal, sys, http.server as h\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
        "h.HTTPServer(('', 8000), h.BaseHTTPRequestHandler).serve_forever()"
    )
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    return {
        "metadata": {"labels": {}, "annotations": {}},
        "spec": {
            "serviceAccountName": "driver",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "server",
                    "image": "localhost/tandem/sidecars:dev",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", server],
                    "readinessProbe": probe,
                    "livenessProbe": {**probe, "failureThreshold": 30},
                    "resources": {
                        "requests": {"cpu": "5m", "memory": "32Mi"},
                        "limits": {"memory": "64Mi", "nvidia.com/gpu": str(gpus)},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def raycluster_spec(gpus: int) -> Object:
    return {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template(gpus)},
    }


def job_spec(gpus: int) -> Object:
    pod = template(gpus)
    pod["spec"]["restartPolicy"] = "Never"
    return {"backoffLimit": 0, "template": pod}


def jobset(*gpus: int) -> Object:
    groups = [
        {"name": f"g{at}", "replicas": 1, "template": {"spec": job_spec(each)}}
        for at, each in enumerate(gpus)
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "spec": {"replicatedJobs": groups},
    }  # fmt: skip


def raycluster(gpus: int) -> Object:
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": raycluster_spec(gpus)}


def rayjob(gpus: int) -> Object:
    return {
        "apiVersion": "ray.io/v1", "kind": "RayJob",
        "spec": {
            "entrypoint": "true", "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": True,
            "rayClusterSpec": raycluster_spec(gpus),
        },
    }  # fmt: skip


def templates_of(spec: Any) -> Iterator[Object]:
    """Yield every pod template within a spec."""
    if isinstance(spec, dict):
        if "containers" in spec.get("spec", {}) and "metadata" in spec:
            yield spec
        for value in spec.values():
            yield from templates_of(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from templates_of(value)


class Queued:
    """Makes objects in queues, each under a name of its own, and removes them at the end."""

    def __init__(self) -> None:
        self._made: list[tuple[str, str]] = []

    def make(self, obj: Object, queue: str, name: str = "") -> str:
        """Create an object in a queue; return its name, which its pods bear as a label."""
        name = name or f"t{uuid.uuid4().hex[:6]}"
        labels = {KUEUE_QUEUE: queue, KUEUE_PRIORITY: queue} if queue else {}
        if obj["apiVersion"] == "ray.io/v1":
            obj.setdefault("metadata", {})["annotations"] = {
                # The image has no Ray that KubeRay's own command could start.
                "ray.io/overwrite-container-cmd": "true"
            }
        # Never empty: Kubernetes gives a Job without labels those of its pods, the queue too.
        labels["app.kubernetes.io/part-of"] = "tandem"
        labels[RUN_ID_LABEL] = name
        obj.setdefault("metadata", {}).update(name=name, namespace=NAMESPACE, labels=labels)
        for pod in templates_of(obj["spec"]):
            pod["metadata"]["labels"].setdefault(TEST_LABEL, name)
            pod["metadata"]["labels"][RUN_ID_LABEL] = name
            pod["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] = "true"
        self._made.append((f"{obj['kind'].lower()}s.{obj['apiVersion'].partition('/')[0]}", name))
        kubectl("create", "-f", "-", timeout=60, stdin=json.dumps(obj))
        return name

    def remove(self, *names: str) -> None:
        """Remove these and wait until their pods are gone; all that were made without names."""
        going = [f"{kind}/{name}" for kind, name in self._made if not names or name in names]
        if going:
            # In one call, which asks for all before it waits: the pods of a group end together.
            kubectl(
                "delete", *going, "-n", NAMESPACE, "--ignore-not-found", "--cascade=foreground",
                "--timeout=120s", timeout=130,
            )  # fmt: skip
        for name in names or [name for _, name in self._made]:
            until(partial(is_gone, name), f"pods of {name} are gone")


def pods_of(name: str) -> list[Object]:
    """All pods of an object, those that are ending too."""
    return items("pods", "-n", NAMESPACE, "-l", f"{TEST_LABEL}={name}")


def is_gone(name: str) -> bool:
    """Whether an object has no pods any more."""
    return not pods_of(name)


def bound(name: str) -> list[Object]:
    """Those that have a node, and with it their GPUs."""
    return [pod for pod in pods_of(name) if pod["spec"].get("nodeName")]


def running(name: str, pods: int = 1) -> bool:
    """Whether all pods of an object are Ready."""
    ready = [
        pod
        for pod in pods_of(name)
        for each in pod["status"].get("conditions") or []
        if each["type"] == "Ready" and each["status"] == "True"
        if "deletionTimestamp" not in pod["metadata"]
    ]
    return len(ready) == pods


def never(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + STILL_SECONDS
    while time.monotonic() < deadline:
        assert not holds(), what
        time.sleep(0.3)


@pytest.fixture(scope="module")
def kueue(platform: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The platform with Kueue on it; taken away in the order that leaves nothing hanging."""
    log = tmp_path_factory.mktemp("kueue") / "helmfile.log"
    sync("kueue", log)
    yield platform
    remove_kueue(log)


@pytest.fixture
def queued(kueue: Path) -> Iterator[Queued]:
    assert kueue.is_file()
    made = Queued()
    yield made
    made.remove()


@pytest.mark.parametrize(
    "make",
    [jobset, pytest.param(raycluster, marks=pytest.mark.full), rayjob],
    ids=lambda make: make.__name__,
)
def test_two_runs_that_do_not_fit_together_run_one_after_the_other(
    make: Callable[[int], Object], queued: Queued
) -> None:
    first = queued.make(make(6), LOW)
    until(lambda: running(first), "the first run is let in")
    second = queued.make(make(6), LOW)
    never(lambda: bool(pods_of(second)), "the second run has pods although only 2 GPUs are left")
    assert running(first)
    queued.remove(first)
    until(lambda: running(second), "the second run is let in after the first")


def test_of_two_that_wait_the_important_one_is_first(queued: Queued) -> None:
    first = queued.make(jobset(6), HIGH)
    until(lambda: running(first), "the first run is let in")
    low = queued.make(jobset(6), LOW)
    high = queued.make(jobset(6), HIGH)
    never(lambda: bool(pods_of(low) or pods_of(high)), "there is no room for either")
    queued.remove(first)
    until(lambda: running(high), "high-prio is let in, though it came last")
    never(lambda: bool(pods_of(low)), "low-prio has pods beside it")


def test_a_run_is_preempted_whole_and_comes_back(queued: Queued) -> None:
    low = queued.make(jobset(4, 2), LOW)
    until(lambda: running(low, 2), "low-prio runs with idle GPUs")
    before = {pod["metadata"]["uid"] for pod in pods_of(low)}
    # The group of four alone would make room enough.
    high = queued.make(jobset(4), HIGH)
    until(lambda: running(high), "high-prio takes its quota back")
    assert pods_of(low) == [], "a part of the preempted run holds on"
    queued.remove(high)
    until(lambda: running(low, 2), "low-prio starts anew")
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pods_of(low))


def test_rehearsed_runs_are_let_in_whole_and_one_after_the_other(kueue: Path) -> None:
    assert kueue.is_file()
    before = kueue_gpus()
    # It refuses figures of a run that is not one Workload of all its pods, let in and ready.
    plan = rehearsal.plan_of("disagg-jobset", 3, 16, 20, "h100", scheduler="kueue")
    told = {figure.name: figure.value for figure in rehearsal.rehearse(plan)}
    assert told["most runs at once admitted and not ready"] == 1
    assert told["first apply to the last run admitted"] > 0
    assert told["memory of Kueue, all running"] > 0
    # The quota of all simulated nodes went with them.
    assert before == kueue_gpus() == GPUS
    assert items("nodes", f"--selector={kwok.SIMULATED_LABEL}") == []


def disaggregated(queued: Queued, queue: str) -> str:
    """Two RayClusters and a Job as component scheduler-kueue/rayclusters makes them one."""
    name = f"t{uuid.uuid4().hex[:6]}"
    objects = [
        (f"{name}-rl", raycluster(4)),
        (f"{name}-gym", raycluster(2)),
        (
            f"{name}-driver",
            {"apiVersion": "batch/v1", "kind": "Job", "spec": job_spec(0)},
        ),
    ]
    for part, obj in objects:
        for pod in templates_of(obj["spec"]):
            pod["metadata"]["labels"] |= {
                TEST_LABEL: name, KUEUE_GROUP: name, KUEUE_QUEUE: queue, KUEUE_PRIORITY: queue,
            }  # fmt: skip
            pod["metadata"]["annotations"] |= {KUEUE_COUNT: "3", KUEUE_RETRIABLE: "false"}
        queued.make(obj, "", part)
    return name


def test_two_rayclusters_and_their_driver_are_one_gang(queued: Queued) -> None:
    first = queued.make(jobset(4), HIGH)
    until(lambda: running(first), "the first run is let in")
    gang = disaggregated(queued, LOW)
    until(lambda: len(pods_of(gang)) == 3, "all pods of the gang are there, and wait")
    # Any of its parts alone would fit beside the first run.
    never(lambda: bool(bound(gang)), "a part of the gang is placed")
    queued.remove(first)
    until(lambda: running(gang, 3), "the gang starts whole")
    high = queued.make(jobset(4), HIGH)
    until(lambda: running(high), "high-prio takes its quota back")
    # What KubeRay makes anew of it waits at the gate again.
    assert bound(gang) == [], "a part of the preempted gang holds on"


def stubbed(obj: Object) -> Object:
    """Small servers in place of Ray and the driver; the watchers stay what they are."""
    if obj["kind"] == "RayCluster":
        obj["metadata"].setdefault("annotations", {})["ray.io/overwrite-container-cmd"] = "true"
        # KubeRay has a worker wait for Ray in its head.
        obj["spec"].pop("workerGroupSpecs", None)
    elif (obj["kind"], obj["metadata"]["labels"].get(ROLE_LABEL)) != ("Job", "driver"):
        return obj
    for pod in templates_of(obj["spec"]):
        # It fails when it is told to stop, as the driver does.
        server = {**template(2, 143)["spec"], "initContainers": []}
        server["containers"][0]["name"] = pod["spec"]["containers"][0]["name"]
        pod["spec"].update(server)
        pod["metadata"]["annotations"][KUEUE_COUNT] = "3"
    return obj


@pytest.mark.full
@pytest.mark.parametrize("change", [stubbed, None], ids=["stub", "real"])
def test_a_preempted_run_over_two_rayclusters_is_ended_whole_by_its_watchers(
    change: Callable[[Object], Object] | None, queued: Queued, capsys: pytest.CaptureFixture[str]
) -> None:
    with cascade("disagg-rayclusters") as run:
        run.start(change, Placing(KUEUE, LOW))
        run.await_up()
        made: list[str] = []
        # All of the quota, so that every pod of the run has to go.
        ending = run.ending_after(lambda: made.append(queued.make(jobset(GPUS), HIGH)))
        report(capsys, "preempted", ending)
        until(lambda: running(made[0]), "high-prio takes its quota back")
        assert "head-evicted" in ending.rules <= {"head-evicted", "ended-failed"}, run.story()
        assert {verdict["outcome"] for verdict in ending.verdicts} == {"failed"}
        assert "Preempted to accommodate a workload" in ending.reasons
        assert ending.driver, f"the driver's exit code is {ending.driver}"
        # Nothing of it queues again: neither pods that KubeRay made anew, nor their group.
        left = left_of(NAMESPACE, run.run_id)
        assert [each for each in left if each.startswith("raycluster")] == []
        assert run.run_id not in [w["metadata"]["name"] for w in items(WORKLOADS, "-n", NAMESPACE)]
        queued.remove(made[0])
        never(lambda: bool(run.running()), "a preempted run came back")


@pytest.mark.full
def test_a_training_over_two_rayclusters_starts_as_one_group_and_ends(kueue: Path) -> None:
    assert kueue.is_file()
    run_id = f"kueue-{uuid.uuid4().hex[:6]}"
    done = runs_program(
        "start", "--variant", "disagg-rayclusters", "--run-id", run_id, "--scheduler", "kueue",
        timeout=900,
    )  # fmt: skip
    sys.stderr.write(done.stderr)
    assert done.returncode == 0
    admissions = "--field-selector=involvedObject.kind=Workload,reason=Admitted"
    events = items("events", "-n", NAMESPACE, admissions)
    admitted = {event["involvedObject"]["name"] for event in events}
    # One of them, named as the group: not one an object.
    assert [name for name in admitted if run_id in name] == [run_id]
