"""Runs and small gangs under a real KAI, and what it made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peer_watcher.convert import RUN_ID_LABEL
from support import on_cluster
from support.on_cluster import get, items
from tandem.errors import UserError
from tandem.paths import BUILD
from tandem.policy import KAI, QUEUE_LABEL
from tandem.render import OVERLAYS, kustomize
from tandem.run.identity import ORDER_FIRST
from tandem.run.kube import kubectl
from tandem.yamls import dump, load_all
from tandem_host.settings import GPU_RESOURCE as GPU

Object = dict[str, Any]

NAMESPACE = "tandem"
PAUSE = "localhost/tandem/pause:dev"
#: An image with a shell, for pods that end by themselves.
SHELL = "localhost/tandem/sidecars:dev"
#: One cycle of the scheduler is a second; two slow cores and a cold podgrouper are the rest.
PATIENCE = 90.0
until = partial(on_cluster.until, seconds=PATIENCE)


def run_id_of(variant: str) -> str:
    """Return the run id that a variant has by itself."""
    [kustomization] = load_all((OVERLAYS / variant / "kustomization.yaml").read_text())
    return str(kustomization["labels"][0]["pairs"][RUN_ID_LABEL])


def under_kai(variant: str, *, patches: Iterable[tuple[Object, list[Object]]] = ()) -> list[Object]:
    """Return a local variant with the component of KAI in the place of `scheduler-default`."""
    [kustomization] = load_all((OVERLAYS / variant / "kustomization.yaml").read_text())
    gang = "gang-kai/rayclusters" if variant.startswith("disagg-rayclusters") else "gang-kai"
    inner, outer = BUILD / "kai" / variant / "inner", BUILD / "kai" / variant / "outer"
    up = Path("..") / ".." / ".." / ".."
    swapped = [
        str(up / "kustomize" / "components" / entry.partition("components/")[2].replace(
            "scheduler-default", gang
        ))
        for entry in kustomization["components"]
    ]  # fmt: skip
    assert any(entry.endswith(gang) for entry in swapped), "the variant names no scheduler"
    if variant.endswith("-judge"):
        swapped.append(str(up / "kustomize" / "components" / "judge-pool" / "gang-kai"))
    base = kustomization["resources"][0].partition("base/")[2]
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    _write(
        inner,
        {
            **head, "namespace": NAMESPACE, "components": swapped,
            "resources": [str(up / "kustomize" / "base" / base)],
            "labels": kustomization["labels"],
            "patches": [{"target": target, "patch": dump(steps)} for target, steps in patches],
        },
    )  # fmt: skip
    follow = [str(up / "kustomize" / "components" / gang / "follow")]
    _write(
        outer,
        {
            **head, "resources": ["../inner"],
            "components": follow if gang.endswith("rayclusters") else [],
            "sortOptions": {
                "order": "legacy",
                "legacySortOptions": {"orderFirst": list(ORDER_FIRST), "orderLast": []},
            },
        },
    )  # fmt: skip
    return kustomize(outer)


def _write(folder: Path, kustomization: Object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(dump(kustomization), encoding="utf-8")


def pod_spec(*, gpus: int = 0, command: list[str] | None = None, **more: Any) -> Object:
    """Return a small pod's spec: it waits for ever, or runs a command."""
    return {
        "schedulerName": KAI, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": "main", "image": SHELL if command else PAUSE,
            "imagePullPolicy": "IfNotPresent",
            **({"command": command} if command else {}),
            "resources": {
                "requests": {"cpu": "5m", "memory": "8Mi", **({GPU: str(gpus)} if gpus else {})},
                **({"limits": {GPU: str(gpus)}} if gpus else {}),
            },
            "securityContext": {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            },
        }],
        **more,
    }  # fmt: skip


def jobset(
    name: str, groups: dict[str, tuple[int, Object]], *, queue: str, priority: str = "rl-worker",
    annotations: Object | None = None, group_annotations: dict[str, Object] | None = None,
) -> Object:  # fmt: skip
    """Return a JobSet of groups, each so many pods of a spec."""
    labels = {RUN_ID_LABEL: name, QUEUE_LABEL: queue}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "annotations": annotations or {},
            "labels": {**labels, "priorityClassName": priority},
        },
        "spec": {"replicatedJobs": [
            {
                "name": group, "replicas": 1,
                "template": {
                    "metadata": {"annotations": (group_annotations or {}).get(group, {})},
                    "spec": {
                        # KAI fails the pods that it evicts; their Job makes new ones.
                        "backoffLimit": 50, "parallelism": count, "completions": count,
                        "template": {"metadata": {"labels": labels}, "spec": spec},
                    },
                },
            }
            for group, (count, spec) in groups.items()
        ]},
    }  # fmt: skip


def filler(gpus: int) -> Object:
    """Return a pod of another scheduler that takes GPUs of the node."""
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "filler", "namespace": NAMESPACE,
            "labels": {RUN_ID_LABEL: "filler", QUEUE_LABEL: "low-prio"},
        },
        "spec": pod_spec(gpus=gpus, schedulerName="default-scheduler"),
    }  # fmt: skip


def filler_node() -> str:
    """Return the node of that pod; "" while it has none."""
    return str(get("pods", "filler", "-n", NAMESPACE)["spec"].get("nodeName", ""))


class Workloads:
    """Objects of a test, and the pods of a run."""

    def __init__(self) -> None:
        self._made: list[Object] = []

    def apply(self, objects: Iterable[Object]) -> None:
        """Apply them in their order."""
        for each in objects:
            self._made.append(each)
            on_cluster.apply(each)

    @staticmethod
    def delete(each: Object) -> None:
        """Delete one, and wait for it."""
        meta, kind = each["metadata"], each["kind"]
        group = each["apiVersion"].rpartition("/")[0]
        name = f"{kind}.{group}" if group else kind
        kubectl(
            "delete", name, meta["name"], "-n", meta.get("namespace", NAMESPACE),
            "--ignore-not-found", "--timeout=90s", timeout=100,
        )  # fmt: skip

    def remove(self) -> None:
        """Delete all, the last first, then wait for their pods."""
        runs = {each["metadata"]["labels"].get(RUN_ID_LABEL, "") for each in self._made}
        for each in reversed(self._made):
            self.delete(each)
        for run_id in sorted(runs - {""}):
            kubectl(
                "delete", "pods", "-n", NAMESPACE, f"--selector={RUN_ID_LABEL}={run_id}",
                "--grace-period=1", "--ignore-not-found", "--timeout=60s", timeout=70,
            )  # fmt: skip


def pods(run_id: str) -> list[Object]:
    """Return a run's pods that are under KAI and not ending, by name."""
    found = items("pods", "-n", NAMESPACE, f"--selector={RUN_ID_LABEL}={run_id}")
    return [
        pod for pod in found
        if pod["spec"]["schedulerName"] == KAI
        and "deletionTimestamp" not in pod["metadata"]
    ]  # fmt: skip


def bound(run_id: str) -> list[str]:
    """Return the nodes of a run's pods, one for each that has one."""
    return [pod["spec"]["nodeName"] for pod in pods(run_id) if pod["spec"].get("nodeName")]


def refused(run_id: str) -> list[str]:
    """Return what KAI says of a run's pods that it cannot place."""
    return [
        str(condition.get("message", ""))
        for pod in pods(run_id)
        for condition in pod.get("status", {}).get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]  # fmt: skip


def podgroups(run_id: str) -> list[Object]:
    """Return the PodGroups that a run's pods say they are in."""
    names = {pod["metadata"]["annotations"].get("pod-group-name", "") for pod in pods(run_id)}
    found = items("podgroups.scheduling.run.ai", "-n", NAMESPACE)
    return [group for group in found if group["metadata"]["name"] in names]


@dataclass(frozen=True, slots=True)
class Queues:
    """Two leaves under a root of their own."""

    root: str
    first: str
    last: str

    @classmethod
    def make(cls, *, gpus: int) -> Queues:
        """Make them: `first` has a right to all GPUs, `last` to none; no minimum runtimes."""
        made = cls("kai-test", "kai-test-first", "kai-test-last")
        open_ended = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        for name, parent, quota, priority in (
            (made.root, None, gpus, 100), (made.first, made.root, gpus, 200),
            (made.last, made.root, 0, 100),
        ):  # fmt: skip
            queue = {
                "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
                "spec": {
                    **({"parentQueue": parent} if parent else {}), "priority": priority,
                    "resources": {
                        "gpu": {**open_ended, "quota": quota}, "cpu": open_ended,
                        "memory": open_ended,
                    },
                },
            }  # fmt: skip
            on_cluster.apply(queue)
        return made


@contextmanager
def admission_lifted(queue: str) -> Iterator[None]:
    """Let namespaces name queues that are none of the platform's, such as this one, for a while."""
    kind, name = "validatingadmissionpolicybinding", "tandem-runs"
    binding = get(kind, name)
    kubectl("delete", kind, name)

    def taken() -> bool:
        probe = jobset("kai-probe", {"head": (1, pod_spec())}, queue=queue)
        try:
            kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))
        except UserError:
            return False
        return True

    try:
        # Of the API server: it tells nobody when it has heard of it.
        until(taken, f"queue {queue} is taken", seconds=30)
        yield
    finally:
        meta = {key: binding["metadata"][key] for key in ("name", "labels", "annotations")}
        back = {**binding, "metadata": meta}
        # As Helm, whose it is: the next `helmfile sync` would meet another's fields otherwise.
        kubectl(
            "apply", "--server-side", "--field-manager=helm", "--force-conflicts", "-f", "-",
            stdin=json.dumps(back),
        )  # fmt: skip


def remove_queues(made: Queues) -> None:
    """Remove them, leaves first: KAI keeps a queue that others are under."""
    for name in (made.first, made.last, made.root):
        kubectl(
            "delete", "queues.scheduling.run.ai", name, "--ignore-not-found", "--timeout=60s",
            timeout=70,
        )  # fmt: skip
