"""The shapes that a run can have, and the one object whose end is the run's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import ExitCode, Problem, UserError
from tandem_common.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    RAYCLUSTERS,
    RAYJOBS,
    Resource,
)

Object = dict[str, Any]

ROLE_LABEL = "tandem.dev/role"
#: Which of a pool's Deployments a pod is of: `replicas`, `balancer`, `keeper`.
PART_LABEL = "tandem.dev/part"
NAME_LABEL, WATCHER = "app.kubernetes.io/name", "peer-watcher"
#: KubeRay's label: `head` or `worker`.
NODE_TYPE = "ray.io/node-type"
DRIVER = "driver"
#: A run without a deadline of its own is followed for this long.
_A_DAY_SECONDS = 86400.0


#: Kinds that make pods, in the order in which one of them stands for the run.
WORKLOADS = (RAYJOBS, JOBSETS, JOBS, RAYCLUSTERS, DEPLOYMENTS)
#: What belongs to a run beside its workloads.
BELONGINGS = (
    Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup"),
    Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("", "v1", "services", "Service"),
    CONFIGMAPS,
    Resource("", "v1", "secrets", "Secret"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run on the cluster: its id, and the object whose end is its own."""

    namespace: str
    run_id: str
    top: Resource
    name: str
    uid: str
    #: When that object was made, by the API server's clock (RFC 3339).
    created: str = ""

    @property
    def selector(self) -> str:
        """Label selector of everything that belongs to the run."""
        return f"{RUN_ID_LABEL}={self.run_id}"


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's labels."""
    return (obj.get("metadata") or {}).get("labels") or {}


def role_of(obj: Mapping[str, Any]) -> str:
    """Return an object's role: `rl`, `gym`, `driver`, `pool`, `watcher`, "" when it has none."""
    labels = labels_of(obj)
    if labels.get(NAME_LABEL) == WATCHER:
        return "watcher"
    return labels.get(ROLE_LABEL, "")


def workloads_of(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that make the run's pods, watchers left out."""
    kinds = {each.kind for each in WORKLOADS}
    return [obj for obj in objects if obj["kind"] in kinds and role_of(obj) != "watcher"]


def made_by_nobody(workloads: Iterable[Object]) -> list[Object]:
    """Return the workloads that were applied, not made by another one's operator."""
    return [each for each in workloads if not each["metadata"].get("ownerReferences")]


def pods_in(things: Iterable[Object]) -> list[Object]:
    """Return the pods among objects."""
    return [thing for thing in things if thing["kind"] == "Pod"]


def is_head(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is the head of a cluster of KubeRay's."""
    return labels_of(pod).get(NODE_TYPE) == "head"


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether nothing of a pod runs any more, or will."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def resource_of(kind: str) -> Resource:
    """Return where a workload of a kind is.

    Raises:
        KeyError: It is no kind that makes pods of a run.
    """
    return {each.kind: each for each in WORKLOADS}[kind]


def tops_of(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that could stand for a run: RayJobs, else JobSets, else driver Jobs."""
    listed = list(objects)
    tops = [
        [obj for obj in listed if obj["kind"] == RAYJOBS.kind],
        [obj for obj in listed if obj["kind"] == JOBSETS.kind],
        [obj for obj in listed if obj["kind"] == JOBS.kind and role_of(obj) == DRIVER],
    ]
    return next((each for each in tops if each), [])


def top_of(objects: Iterable[Object], variant: str) -> Object:
    """Return the object of a rendered variant whose end is the run's.

    Raises:
        UserError: There is none, or it cannot be told which.
    """
    found = tops_of(objects)
    if len(found) != 1:
        has = ", ".join(f"{o['kind']}/{o['metadata']['name']}" for o in found) or "none"
        raise UserError(
            Problem(
                f"variant {variant} needs one RayJob, one JobSet or one driver Job to stand for"
                f" the run, and has {has}",
                "choose a variant of that shape, or apply it with kubectl apply -k",
            ),
            ExitCode.USAGE,
        )
    return found[0]


def run_of(top: Object) -> Run:
    """Return the run that an object on the cluster stands for."""
    metadata = top["metadata"]
    return Run(
        metadata["namespace"], run_id_of(top), resource_of(top["kind"]), metadata["name"],
        metadata["uid"], metadata["creationTimestamp"],
    )  # fmt: skip


def run_id_of(top: Object) -> str:
    """Return the id of the run that an object stands for."""
    return labels_of(top).get(RUN_ID_LABEL, str(top["metadata"]["name"]))


def deadline_of(top: Object) -> float:
    """Return after how many seconds the cluster itself ends the run."""
    spec = top["spec"]
    limits = [spec.get("activeDeadlineSeconds")]
    limits += [
        job["template"]["spec"].get("activeDeadlineSeconds")
        for job in spec.get("replicatedJobs") or []
        if job["name"] == DRIVER
    ]
    return float(next((limit for limit in limits if limit), _A_DAY_SECONDS))
