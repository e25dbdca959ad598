"""The pods that rendered objects will make: how many of which template, and what each asks for.

The kinds are those that runs are made of (RayJob, RayCluster, RayService, JobSet) and
Kubernetes' own. `unknown_kinds` says which other objects ask for KAI, so that a kind that
nobody modelled here is told, not left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tandem.explain.quantity import Resources, resources_of
from tandem.policy import KAI, RUN_LABEL, name_of

Object = dict[str, Any]

#: Where a kind of KubeRay's keeps the spec of its RayCluster.
_RAY_SPECS = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
}
#: Pods of a template with a count of its own.
_COUNTED = ("Deployment", "StatefulSet", "ReplicaSet")
HEAD_GROUP = "headgroup"


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods of one object.

    Attributes:
        obj: The object as rendered.
        role: The group's name within it: `headgroup`, a worker group, a replicatedJob; `pod`
            where there is only one.
        path: Where the template is in the object.
        count: Pods that will be there at once.
        owners: Metadata of the object and of what it makes on the way to the pod, outermost
            first; KAI reads labels and annotations of all of them.
        metadata: The pods' own.
        spec: The pods' own.
    """

    obj: Object
    role: str
    path: str
    count: int
    owners: tuple[Object, ...]
    metadata: Object
    spec: Object

    @property
    def source(self) -> str:
        """Kind and name of the object."""
        return name_of(self.obj)

    @property
    def where(self) -> str:
        """The object and, when it has several, the group."""
        return self.source if self.role == "pod" else f"{self.source} {self.role}"

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return str(self.obj["metadata"].get("namespace", "default"))

    @property
    def run_id(self) -> str | None:
        """The run that the pods are of."""
        return self.label(RUN_LABEL) or labels_of(self.obj["metadata"]).get(RUN_LABEL)

    @property
    def by_kai(self) -> bool:
        """Whether KAI places them."""
        return bool(self.spec.get("schedulerName") == KAI)

    @property
    def demand(self) -> Resources:
        """What one of them asks for."""
        return demand_of(self.spec)

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the claims on DRA devices that one of them has."""
        return tuple(each["name"] for each in self.spec.get("resourceClaims") or [])

    def label(self, key: str) -> str | None:
        """Return a label of the pods themselves."""
        return labels_of(self.metadata).get(key)

    def annotation(self, key: str) -> str | None:
        """Return an annotation of the pods themselves."""
        return annotations_of(self.metadata).get(key)

    def inherited(self, key: str) -> str | None:
        """Return an annotation of the pods or of any owner, the pods' own first."""
        for each in (self.metadata, *reversed(self.owners)):
            if key in annotations_of(each):
                return annotations_of(each)[key]
        return None


def labels_of(metadata: Object) -> dict[str, str]:
    """Return the labels of some metadata."""
    return metadata.get("labels") or {}


def annotations_of(metadata: Object) -> dict[str, str]:
    """Return the annotations of some metadata."""
    return metadata.get("annotations") or {}


def _asked(container: Object) -> Resources:
    resources = container.get("resources") or {}
    # A limit without a request is one: the API server writes it so.
    return resources_of({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def demand_of(spec: Object) -> Resources:
    """Return what a pod asks a node for: Kubernetes' rule for init containers and sidecars.

    Raises:
        ValueError: A request is no quantity.
    """
    running = peak = Resources()
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            running += _asked(container)
            peak = peak.at_least(running)
        else:
            peak = peak.at_least(running + _asked(container))
    for container in spec.get("containers") or []:
        running += _asked(container)
    return running.at_least(peak)


def ray_spec(obj: Object) -> tuple[str, Object] | None:
    """Return path and spec of the RayCluster that an object is or makes."""
    path = _RAY_SPECS.get(obj["kind"])
    if path is None:
        return None
    spec: Object = obj
    for word in path:
        spec = spec.get(word) or {}
    return (".".join(path), spec) if spec.get("headGroupSpec") else None


def worker_name(group: Object, index: int) -> str:
    """Return the name of a worker group; KAI gives one to a group without."""
    return group.get("groupName") or f"worker-group-{index}"


def _ray(obj: Object) -> Iterator[PodSet]:
    found = ray_spec(obj)
    if found is None:
        return
    path, spec = found
    owners = (obj["metadata"],)
    groups = [(HEAD_GROUP, f"{path}.headGroupSpec", spec["headGroupSpec"], 1)]
    for index, group in enumerate(spec.get("workerGroupSpecs") or []):
        # KubeRay's field is `suspend`; it removes the pods of the group.
        count = 0 if group.get("suspend") else group.get("replicas", 0) * group.get("numOfHosts", 1)
        place = f"{path}.workerGroupSpecs[{index}]"
        groups.append((worker_name(group, index), place, group, count))
    for name, place, group, count in groups:
        yield _pod_set(
            obj, group["template"], role=name, path=f"{place}.template", count=count, owners=owners
        )


def at_once(job: Object) -> int:
    """Return how many pods of a Job's spec run side by side."""
    parallelism = int(job.get("parallelism", 1))
    return min(parallelism, int(job.get("completions", parallelism)))


def _jobset(obj: Object) -> Iterator[PodSet]:
    for index, job in enumerate(obj["spec"]["replicatedJobs"]):
        template = job["template"]
        yield _pod_set(
            obj,
            template["spec"]["template"],
            role=job["name"],
            path=f"spec.replicatedJobs[{index}].template.spec.template",
            count=job.get("replicas", 1) * at_once(template["spec"]),
            owners=(obj["metadata"], template.get("metadata") or {}),
        )


def _pod_set(
    obj: Object,
    template: Object,
    *,
    role: str = "pod",
    path: str,
    count: int,
    owners: tuple[Object, ...],
) -> PodSet:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    return PodSet(obj, role, path, count, owners, metadata, spec)


def pod_sets(obj: Object) -> list[PodSet]:
    """Return the pods that an object makes, one entry a template; none for other kinds.

    Left out: the pod that submits a RayJob in K8sJobMode. KubeRay makes it of a template of
    its own and KAI counts it in no subgroup (rule `rayjob-submitter` refuses the mode).
    """
    kind = obj["kind"]
    if kind in _RAY_SPECS:
        return list(_ray(obj))
    if kind == "JobSet":
        return list(_jobset(obj))
    if kind == "Pod":
        return [_pod_set(obj, obj, path="", count=1, owners=())]
    if kind == "Job":
        spec = obj["spec"]
        count = at_once(spec)
    elif kind in _COUNTED:
        spec = obj["spec"]
        count = int(spec.get("replicas", 1))
    else:
        return []
    owners = (obj["metadata"],)
    return [_pod_set(obj, spec["template"], path="spec.template", count=count, owners=owners)]


def _asks_for_kai(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("schedulerName") == KAI or any(map(_asks_for_kai, value.values()))
    return isinstance(value, list) and any(map(_asks_for_kai, value))


def unknown_kinds(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that ask for KAI and whose pods nobody here knows."""
    return [obj for obj in objects if _asks_for_kai(obj) and not pod_sets(obj)]
