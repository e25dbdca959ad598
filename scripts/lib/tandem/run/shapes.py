"""The shapes that a run can have, and the one object whose end is the run's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.errors import ExitCode, Problem, UserError

Object = dict[str, Any]

RUN_ID_LABEL = "tandem.dev/run-id"
ROLE_LABEL = "tandem.dev/role"
DRIVER = "driver"
#: A run without a deadline of its own is followed for this long.
_A_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind are on the API server."""

    kind: str
    group: str
    version: str
    plural: str

    @property
    def words(self) -> str:
        """The kind as kubectl takes it, never mistaken for another group's."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api(self) -> str:
        """The path of its API group."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


RAYJOB = Resource("RayJob", "ray.io", "v1", "rayjobs")
RAYCLUSTER = Resource("RayCluster", "ray.io", "v1", "rayclusters")
JOBSET = Resource("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets")
JOB = Resource("Job", "batch", "v1", "jobs")
#: Kinds that make pods, in the order in which one of them stands for the run.
WORKLOADS = (RAYJOB, JOBSET, JOB, RAYCLUSTER)
#: What belongs to a run beside its workloads.
BELONGINGS = (
    Resource("PodGroup", "scheduling.run.ai", "v2alpha2", "podgroups"),
    Resource("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates"),
    Resource("ComputeDomain", "resource.nvidia.com", "v1beta1", "computedomains"),
    Resource("Service", "", "v1", "services"),
    Resource("ConfigMap", "", "v1", "configmaps"),
    Resource("Secret", "", "v1", "secrets"),
    Resource("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
    Resource("Role", "rbac.authorization.k8s.io", "v1", "roles"),
    Resource("ServiceAccount", "", "v1", "serviceaccounts"),
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
    """Return an object's role: `rl`, `gym`, `driver`, `watcher`, "" when it has none."""
    labels = labels_of(obj)
    if labels.get("app.kubernetes.io/name") == "peer-watcher":
        return "watcher"
    return labels.get(ROLE_LABEL, "")


def workloads_of(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that make the run's pods, watchers left out."""
    kinds = {each.kind for each in WORKLOADS}
    return [obj for obj in objects if obj["kind"] in kinds and role_of(obj) != "watcher"]


def resource_of(kind: str) -> Resource:
    """Return where a workload of a kind is.

    Raises:
        KeyError: It is no kind that makes pods of a run.
    """
    return {each.kind: each for each in WORKLOADS}[kind]


def top_of(objects: Iterable[Object], variant: str) -> Object:
    """Return the object of a rendered variant whose end is the run's.

    Raises:
        UserError: There is none, or it cannot be told which.
    """
    listed = list(objects)
    tops = [
        [obj for obj in listed if obj["kind"] == RAYJOB.kind],
        [obj for obj in listed if obj["kind"] == JOBSET.kind],
        [obj for obj in listed if obj["kind"] == JOB.kind and role_of(obj) == DRIVER],
    ]
    found = next((each for each in tops if each), [])
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
