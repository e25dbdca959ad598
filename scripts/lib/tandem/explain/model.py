"""A model of how KAI groups pods: what its pod-grouper will make of rendered objects.

A model, no program of KAI's: it says what KAI from 0.16 on does, after reading its pod-grouper
(pkg/podgrouper/podgrouper/plugins/{jobset,ray,job,deployment,defaultgrouper}) and trying the
PodGroups of JobSets, RayClusters and RayJobs on a real cluster. The rules:

JobSet
    One PodGroup. A subgroup for each replicatedJob, all `replicas` of which are needed; below
    it a leaf `<replicatedJob>-replica-<index>` of `parallelism` pods (`completions` is not
    looked at). All replicatedJobs are needed, with startupPolicy InOrder any one. Annotation
    `kai.scheduler/batch-min-member` on the JobSet replaces the latter (never above the number
    of replicatedJobs), on a replicatedJob's template the former. `dependsOn` is not read.
RayCluster, RayJob, RayService
    One PodGroup. Leaf `headgroup` of one pod, and one leaf a worker group: `minReplicas` times
    `numOfHosts`, or `replicas` times it when minReplicas is 0. A group where both are 0 is left
    out; one with more minReplicas than replicas is an error, and nothing is grouped. KAI looks
    for `suspended`, which KubeRay does not have, so a group with `suspend` counts.
Job
    One PodGroup of at least one pod, or of `kai.scheduler/batch-min-member`. (Earlier versions
    have one a pod; with a minimum of one that starts nothing else.)
Deployment, Pod
    One PodGroup a pod.
StatefulSet, others
    One PodGroup of at least one pod.
A PodGroup of one's own
    Pods with annotation `kai.scheduler/skip-podgrouper: "true"`, on them or on any owner, are
    left alone; annotation `pod-group-name` and label `kai.scheduler/subgroup-name` on the pods
    put them into a PodGroup of their namespace that somebody else makes. Its spec is as written.

Queue: label `kai.scheduler/queue` of the object, else of the pods. Priority: label
`ray.io/priority-class-name` (Ray), else `priorityClassName` of object or pods, else the pods'
own class, else `train`; where the pods' classes differ KAI writes that of the pod which it saw
last, so the model names all. Preemptible: label `kai.scheduler/preemptibility`, else a priority
below 100. Not in the model: PodGroups that an older KAI left behind, fractions of GPUs, node
pools, projects, defaults by kind from a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tandem.explain.pods import (
    HEAD_GROUP,
    Object,
    PodSet,
    annotations_of,
    labels_of,
    pod_sets,
    ray_spec,
    worker_name,
)
from tandem.explain.quantity import Resources
from tandem.policy import (
    GROUP_ANNOTATION,
    QUEUE_LABEL,
    RUN_LABEL,
    SKIP_ANNOTATION,
    SUBGROUP_LABEL,
    name_of,
)

MINIMUM_ANNOTATION = "kai.scheduler/batch-min-member"
TOPOLOGY = "kai.scheduler/topology"
REQUIRED_PLACEMENT = "kai.scheduler/topology-required-placement"
PREFERRED_PLACEMENT = "kai.scheduler/topology-preferred-placement"
STALENESS = "kai.scheduler/staleness-grace-period"
_PRIORITY_LABEL = "priorityClassName"
_RAY_PRIORITY_LABEL = "ray.io/priority-class-name"
_PREEMPTIBILITY_LABEL = "kai.scheduler/preemptibility"
DEFAULT_PRIORITY = "train"
#: Priorities that KAI's chart brings along.
KAI_PRIORITIES = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
#: From this value on a pod is not preempted, and runs within its queue's quota only.
NON_PREEMPTIBLE = 100


@dataclass(frozen=True, slots=True)
class Placement:
    """What is to be kept together: levels (labels of nodes) of a Topology."""

    topology: str
    required: str = ""
    preferred: str = ""


@dataclass(frozen=True, slots=True)
class SubGroup:
    """A node of the tree: a leaf has pods and a minimum of them, another one subgroups."""

    name: str
    min_members: int | None = None
    min_subgroups: int | None = None
    children: tuple[SubGroup, ...] = ()
    pods: tuple[PodSet, ...] = ()
    placement: Placement | None = None

    @property
    def all_pods(self) -> tuple[PodSet, ...]:
        """The pods of it and of all below."""
        return (*self.pods, *(pods for child in self.children for pods in child.all_pods))

    def walk(self) -> list[SubGroup]:
        """Return it and all below, from the top."""
        return [self, *(each for child in self.children for each in child.walk())]

    def needed(self) -> Resources:
        """Return the least with which it starts, each kind of resource by itself."""
        if not self.children:
            demands = [(pods.demand, pods.count) for pods in self.pods]
            minimum = self.min_members or 0
        else:
            demands = [(child.needed(), 1) for child in self.children]
            minimum = len(self.children) if self.min_subgroups is None else self.min_subgroups
        return Resources(
            gpu=_least([(one.gpu, count) for one, count in demands], minimum),
            cpu=_least([(one.cpu, count) for one, count in demands], minimum),
            memory=_least([(one.memory, count) for one, count in demands], minimum),
        )

    def total(self) -> Resources:
        """Return what all its pods ask for."""
        return sum((pods.demand * pods.count for pods in self.all_pods), Resources())


def _least(amounts: list[tuple[int, int]], minimum: int) -> int:
    """Return the sum of the smallest `minimum` of (amount, how many of it)."""
    total = 0
    for amount, count in sorted(amounts):
        taken = min(count, minimum)
        total += amount * taken
        minimum -= taken
    return total


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One gang: all of its minimum is placed at once, or nothing.

    Attributes:
        name: As KAI or the manifests name it; `<uid>` is known in the cluster only.
        obj: The object that it is made of: a workload, or the PodGroup itself.
        external: Whether the manifests bring it, not KAI.
        queue: None when nobody names one.
        priority_classes: More than one when its pods differ; see the module.
        preemptible: Whether other runs may push it out.
        root: The tree; its name is that of the PodGroup.
        copies: PodGroups of this shape, one a pod of a Deployment.
        staleness: How long it may be below its minimum, as written; None = the scheduler's.
        strays: Names of subgroups whose parents are not there, or go round in a circle.
    """

    name: str
    namespace: str
    obj: Object
    external: bool
    queue: str | None
    priority_classes: tuple[str, ...]
    preemptible: bool
    root: SubGroup
    copies: int = 1
    staleness: str | None = None
    strays: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Kind and name of the object that it is made of."""
        return name_of(self.obj)

    @property
    def pods(self) -> tuple[PodSet, ...]:
        """Its pods; those of one copy."""
        return self.root.all_pods

    @property
    def pod_count(self) -> int:
        """Pods of all copies."""
        return self.copies * sum(pods.count for pods in self.pods)

    @property
    def gpus(self) -> int:
        """GPUs that all its pods ask for, without those that are claimed by DRA."""
        return self.copies * self.root.total().gpu

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the DRA claims of its pods."""
        return tuple(dict.fromkeys(name for pods in self.pods for name in pods.claims))

    @property
    def run_ids(self) -> frozenset[str]:
        """The runs that its pods are of."""
        own = labels_of(self.obj["metadata"]).get(RUN_LABEL)
        return frozenset({run for run in (own, *(p.run_id for p in self.pods)) if run})


@dataclass(frozen=True, slots=True)
class Grouping:
    """What becomes of all pods.

    Attributes:
        groups: The PodGroups, in the order of the objects that they are made of.
        outside: Pods that another scheduler places, one by one.
        lost: Pods for KAI that are in no PodGroup: the one that they name is not there.
        ungrouped: Objects that the pod-grouper refuses, with its reason.
    """

    groups: tuple[PodGroup, ...]
    outside: tuple[PodSet, ...]
    lost: tuple[PodSet, ...]
    ungrouped: tuple[tuple[Object, str], ...] = ()


class _RefusedError(Exception):
    """The pod-grouper makes nothing of an object."""


def placement_of(annotations: Mapping[str, str]) -> Placement | None:
    """Return what annotations ask to be kept together."""
    found = Placement(
        annotations.get(TOPOLOGY, ""), annotations.get(REQUIRED_PLACEMENT, ""),
        annotations.get(PREFERRED_PLACEMENT, ""),
    )  # fmt: skip
    return found if found.topology and (found.required or found.preferred) else None


def skipped(pods: PodSet) -> bool:
    """Return whether KAI's pod-grouper leaves pods alone."""
    return any(
        annotations_of(each).get(SKIP_ANNOTATION) == "true"
        for each in (pods.metadata, *pods.owners)
    )


def _minimum(metadata: Object, otherwise: int) -> int:
    text = annotations_of(metadata).get(MINIMUM_ANNOTATION)
    if text is None:
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise _RefusedError(f"annotation {MINIMUM_ANNOTATION} is {text!r}, no number") from None


def _jobset(obj: Object, pods: dict[str, PodSet]) -> SubGroup:
    parents = []
    for job in obj["spec"]["replicatedJobs"]:
        template, name, replicas = job["template"], job["name"], int(job.get("replicas", 1))
        metadata = template.get("metadata") or {}
        minimum = _minimum(metadata, int(template["spec"].get("parallelism", 1)))
        here = pods.get(name)
        leaves = tuple(
            SubGroup(
                f"{name}-replica-{index}", min_members=minimum,
                pods=() if here is None else (replace(here, count=here.count // replicas),),
                placement=placement_of(annotations_of(metadata)),
            )
            for index in range(replicas)
        )  # fmt: skip
        parents.append(SubGroup(name, min_subgroups=replicas, children=leaves))
    order = (obj["spec"].get("startupPolicy") or {}).get("startupPolicyOrder")
    needed = _minimum(obj["metadata"], 1 if order == "InOrder" else len(parents))
    return SubGroup(
        "", min_subgroups=min(needed, len(parents)), children=tuple(parents),
        placement=placement_of(annotations_of(obj["metadata"])),
    )  # fmt: skip


def _template_placement(group: Object) -> Placement | None:
    return placement_of(annotations_of(group["template"].get("metadata") or {}))


def _ray(obj: Object, spec: Object, pods: dict[str, PodSet]) -> SubGroup:
    def leaf(name: str, group: Object, minimum: int) -> SubGroup:
        there = (pods[name],) if name in pods else ()
        return SubGroup(name, min_members=minimum, pods=there, placement=_template_placement(group))

    leaves = [leaf(HEAD_GROUP, spec["headGroupSpec"], 1)]
    for index, group in enumerate(spec.get("workerGroupSpecs") or []):
        name = worker_name(group, index)
        least, wanted = int(group.get("minReplicas", 0)), int(group.get("replicas", 0))
        if least > wanted:
            raise _RefusedError(f"worker group {name}: minReplicas {least} of replicas {wanted}")
        if wanted > 0:
            hosts = int(group.get("numOfHosts", 1))
            leaves.append(leaf(name, group, (least or wanted) * hosts))
    return SubGroup(
        "", min_members=sum(each.min_members or 0 for each in leaves), children=tuple(leaves),
        placement=placement_of(annotations_of(obj["metadata"])),
    )  # fmt: skip


def _root(obj: Object, pods: list[PodSet]) -> SubGroup:
    by_role = {each.role: each for each in pods}
    if obj["kind"] == "JobSet":
        return _jobset(obj, by_role)
    ray = ray_spec(obj)
    if ray is not None:
        return _ray(obj, ray[1], by_role)
    minimum = _minimum(obj["metadata"], 1) if obj["kind"] == "Job" else 1
    there = tuple(replace(each, count=1) if _one_a_pod(obj) else each for each in pods)
    return SubGroup(
        "", min_members=minimum, pods=there,
        placement=placement_of(annotations_of(obj["metadata"])),
    )  # fmt: skip


def _one_a_pod(obj: Object) -> bool:
    return obj["kind"] in ("Deployment", "ReplicaSet")


def _priorities(obj: Object, pods: Iterable[PodSet]) -> tuple[str, ...]:
    labels = labels_of(obj["metadata"])
    if ray_spec(obj) is not None and _RAY_PRIORITY_LABEL in labels:
        return (labels[_RAY_PRIORITY_LABEL],)
    if _PRIORITY_LABEL in labels:
        return (labels[_PRIORITY_LABEL],)
    found = (
        each.label(_PRIORITY_LABEL) or each.spec.get("priorityClassName") or DEFAULT_PRIORITY
        for each in pods
    )
    return tuple(dict.fromkeys(found))


def _preemptible(said: str | None, classes: Iterable[str], values: Mapping[str, int]) -> bool:
    if said in ("preemptible", "non-preemptible"):
        return said == "preemptible"
    known = {**KAI_PRIORITIES, **values}
    # A class that nobody knows is taken for KAI's default, as KAI does.
    highest = max((known.get(name, known[DEFAULT_PRIORITY]) for name in classes), default=0)
    return highest < NON_PREEMPTIBLE


def _own_group(obj: Object, pods: list[PodSet], values: Mapping[str, int]) -> PodGroup:
    """Return the PodGroup that KAI makes of an object.

    Raises:
        _RefusedError: KAI makes none.
    """
    labels = labels_of(obj["metadata"])
    name = f"pg-{obj['metadata']['name']}-<uid>"
    classes = _priorities(obj, pods)
    said = labels.get(_PREEMPTIBILITY_LABEL) or pods[0].label(_PREEMPTIBILITY_LABEL)
    return PodGroup(
        name=name,
        namespace=pods[0].namespace,
        obj=obj,
        external=False,
        queue=labels.get(QUEUE_LABEL) or pods[0].label(QUEUE_LABEL),
        priority_classes=classes,
        preemptible=_preemptible(said, classes, values),
        root=replace(_root(obj, pods), name=name),
        copies=pods[0].count if _one_a_pod(obj) else 1,
        staleness=annotations_of(obj["metadata"]).get(STALENESS) or pods[0].annotation(STALENESS),
    )


def _constraint(spec: Object) -> Placement | None:
    found = spec.get("topologyConstraint") or {}
    if not found:
        return None
    return Placement(
        found.get("topology", ""), found.get("requiredTopologyLevel", ""),
        found.get("preferredTopologyLevel", ""),
    )  # fmt: skip


def _tree(spec: Object, pods: list[PodSet]) -> tuple[tuple[SubGroup, ...], tuple[str, ...]]:
    """Return the subgroups of a PodGroup's spec, and the names of those with no way to the root."""
    listed: list[Any] = spec.get("subGroups") or []

    def build(group: Object) -> SubGroup:
        name = group["name"]
        return SubGroup(
            name, group.get("minMember"), group.get("minSubGroup"),
            tuple(build(each) for each in listed if each.get("parent") == name),
            tuple(each for each in pods if each.label(SUBGROUP_LABEL) == name),
            _constraint(group),
        )  # fmt: skip

    tops = tuple(build(each) for each in listed if not each.get("parent"))
    reached = {each.name for top in tops for each in top.walk()}
    return tops, tuple(each["name"] for each in listed if each["name"] not in reached)


def _external_group(obj: Object, pods: list[PodSet], values: Mapping[str, int]) -> PodGroup:
    spec, name = obj.get("spec") or {}, obj["metadata"]["name"]
    children, strays = _tree(spec, pods)
    named = {each.name for top in children for each in top.walk()}
    loose = tuple(each for each in pods if each.label(SUBGROUP_LABEL) not in named)
    classes = (spec.get("priorityClassName") or DEFAULT_PRIORITY,)
    return PodGroup(
        name=name,
        namespace=str(obj["metadata"].get("namespace", "default")),
        obj=obj,
        external=True,
        queue=spec.get("queue"),
        priority_classes=classes,
        preemptible=_preemptible(spec.get("preemptibility"), classes, values),
        root=SubGroup(
            name, spec.get("minMember"), spec.get("minSubGroup"), children, loose, _constraint(spec)
        ),
        staleness=spec.get("stalenessGracePeriod")
        or annotations_of(obj["metadata"]).get(STALENESS),
        strays=strays,
    )


def is_pod_group(obj: Object) -> bool:
    """Return whether an object is a PodGroup of KAI's (other schedulers have theirs)."""
    group = str(obj.get("apiVersion", "")).partition("/")[0]
    return obj["kind"] == "PodGroup" and group == "scheduling.run.ai"


def group_pods(objects: Iterable[Object], priorities: Mapping[str, int]) -> Grouping:
    """Return what becomes of the pods of rendered objects.

    Args:
        objects: As rendered, in the order in which they would be applied.
        priorities: Values of the cluster's PriorityClasses, by name; KAI's own are known.
    """
    rendered = list(objects)
    named: dict[tuple[str, str], list[PodSet]] = {
        (str(obj["metadata"].get("namespace", "default")), obj["metadata"]["name"]): []
        for obj in rendered
        if is_pod_group(obj)
    }
    outside: list[PodSet] = []
    lost: list[PodSet] = []
    own: dict[int, list[PodSet]] = {}
    for index, obj in enumerate(rendered):
        for pods in pod_sets(obj):
            if not pods.by_kai:
                outside.append(pods)
            elif not skipped(pods):
                own.setdefault(index, []).append(pods)
            else:
                key = (pods.namespace, pods.annotation(GROUP_ANNOTATION) or "")
                named.get(key, lost).append(pods)
    groups: list[PodGroup] = []
    ungrouped: list[tuple[Object, str]] = []
    for index, obj in enumerate(rendered):
        if is_pod_group(obj):
            key = (str(obj["metadata"].get("namespace", "default")), obj["metadata"]["name"])
            groups.append(_external_group(obj, named[key], priorities))
        elif index in own:
            try:
                groups.append(_own_group(obj, own[index], priorities))
            except _RefusedError as refused:
                ungrouped.append((obj, str(refused)))
    return Grouping(tuple(groups), tuple(outside), tuple(lost), tuple(ungrouped))
