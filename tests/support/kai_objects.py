"""Small manifests of runs under KAI, for tests of what is said of them."""

from __future__ import annotations

from typing import Any

from tandem.explain.facts import Facts, read_platform

Object = dict[str, Any]

#: A tree with a leaf without limits, one without a quota of GPUs, and one that is small.
PLATFORM: Object = {
    "namespace": "tandem",
    "priorityClasses": [{"name": "rl-head", "value": 60}, {"name": "rl-worker", "value": 50}],
    "queues": {
        "runs": ["high-prio", "low-prio", "small"],
        "namespaces": {"team-b": ["low-prio", "small"]},
        "tree": [
            {"name": "tandem"},
            {
                "name": "high-prio", "parent": "tandem",
                "quota": {"gpu": -1, "cpu": -1, "memory": -1},
            },
            {"name": "low-prio", "parent": "tandem", "quota": {"gpu": 0, "cpu": -1, "memory": -1}},
            {
                "name": "small", "parent": "tandem",
                "quota": {"gpu": 8, "cpu": 4000, "memory": 9000},
                "limit": {"gpu": 16, "cpu": 8000, "memory": 18000},
            },
        ],
    },
    "topologies": {
        "rack": {"enabled": True, "levels": ["rack", "kubernetes.io/hostname"]},
        "gone": {"enabled": False, "levels": ["gone"]},
    },
}  # fmt: skip


def facts(**changes: Any) -> Facts:
    """What the cluster offers, with other values of the platform's where they are given."""
    return read_platform([{**PLATFORM, **changes}])


def metadata(name: str, *, annotations: Object | None = None, **labels: str) -> Object:
    """Metadata of an object of run r1 in queue low-prio."""
    common = {"kai.scheduler/queue": "low-prio", "tandem.dev/run-id": "r1"}
    return {
        "name": name, "namespace": "tandem", "labels": {**common, **labels},
        "annotations": annotations or {},
    }  # fmt: skip


def template(
    gpus: int = 0,
    *,
    cpu: str = "1",
    memory: str = "1G",
    scheduler: str = "kai-scheduler",
    priority: str = "rl-worker",
    annotations: Object | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A template of pods with one container."""
    requests = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": gpus} if gpus else {})}
    return {
        "metadata": {"labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "schedulerName": scheduler, "priorityClassName": priority,
            "containers": [{"name": "main", "resources": {"requests": requests}}], **spec,
        },
    }  # fmt: skip


def replicated_job(
    name: str, pods: Object, *, replicas: int = 1, annotations: Object | None = None, **spec: Any
) -> Object:
    """A replicatedJob of a JobSet."""
    return {
        "name": name, "replicas": replicas,
        "template": {
            "metadata": {"annotations": annotations or {}}, "spec": {"template": pods, **spec},
        },
    }  # fmt: skip


def jobset(*jobs: Object, annotations: Object | None = None, **spec: Any) -> Object:
    """A JobSet `mono`."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": metadata("mono", annotations=annotations),
        "spec": {"replicatedJobs": list(jobs), **spec},
    }  # fmt: skip


def worker_group(pods: Object, *, replicas: int = 1, name: str = "workers", **group: Any) -> Object:
    """A worker group whose minReplicas is its replicas, unless it is given."""
    return {
        "groupName": name, "replicas": replicas, "minReplicas": replicas, "template": pods, **group,
    }  # fmt: skip


def ray_spec(*groups: Object, head: Object | None = None, **spec: Any) -> Object:
    """The spec of a RayCluster."""
    return {
        "headGroupSpec": {"template": head or template(priority="rl-head")},
        "workerGroupSpecs": list(groups), **spec,
    }  # fmt: skip


def raycluster(
    *groups: Object, name: str = "rl", head: Object | None = None, **spec: Any
) -> Object:
    """A RayCluster."""
    return {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata(name),
        "spec": ray_spec(*groups, head=head, **spec),
    }  # fmt: skip


def workload(kind: str, pods: Object, *, annotations: Object | None = None, **spec: Any) -> Object:
    """A Job, a Deployment or a StatefulSet with the name of its kind in small letters."""
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1", "kind": kind,
        "metadata": metadata(kind.lower(), annotations=annotations),
        "spec": {"template": pods, **spec},
    }  # fmt: skip


def member(subgroup: str | None, gpus: int = 0, *, group: str = "gang", **more: Any) -> Object:
    """A template of pods of a PodGroup that the run brings along."""
    annotations = {"kai.scheduler/skip-podgrouper": "true", "pod-group-name": group}
    labels = {"kai.scheduler/subgroup-name": subgroup} if subgroup else {}
    return template(gpus, annotations=annotations, labels=labels, **more)


def podgroup(*subgroups: Object, **spec: Any) -> Object:
    """A PodGroup `gang` of the run's own."""
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": metadata("gang"),
        "spec": {"queue": "low-prio", "subGroups": list(subgroups), **spec},
    }  # fmt: skip
