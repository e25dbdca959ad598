"""Traps in the workloads themselves: what a JobSet or a Ray object says of its pods."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.explain.findings import Hit, Rule, Subject
from tandem.explain.model import (
    PREFERRED_PLACEMENT,
    REQUIRED_PLACEMENT,
    TOPOLOGY,
    placement_of,
)
from tandem.explain.pods import (
    HEAD_GROUP,
    Object,
    PodSet,
    annotations_of,
    pod_sets,
    ray_spec,
    unknown_kinds,
    worker_name,
)
from tandem.policy import name_of

_RAY = ("RayJob", "RayCluster", "RayService")


def _worker_groups(subject: Subject) -> Iterator[tuple[str, Object, Object]]:
    """Yield place, worker group and RayCluster spec of every worker group under KAI."""
    for obj in subject.kai_objects(*_RAY):
        found = ray_spec(obj)
        if found is None:
            continue
        path, spec = found
        for index, group in enumerate(spec.get("workerGroupSpecs") or []):
            place = f"{name_of(obj)} {path}.workerGroupSpecs[{index}]"
            yield f"{place} ({worker_name(group, index)})", group, spec


def _start_order(subject: Subject) -> Iterator[Hit]:
    for obj in subject.kai_objects("JobSet"):
        spec, name = obj["spec"], name_of(obj)
        if (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
            yield f"{name} spec.startupPolicy.startupPolicyOrder", "it is InOrder"
        for index, job in enumerate(spec["replicatedJobs"]):
            if job.get("dependsOn"):
                others = ", ".join(each["name"] for each in job["dependsOn"])
                place = f"{name} spec.replicatedJobs[{index}].dependsOn"
                yield place, f"{job['name']} depends on {others}"


def _submitter(subject: Subject) -> Iterator[Hit]:
    for obj in subject.kai_objects("RayJob"):
        mode = obj["spec"].get("submissionMode")
        if mode in (None, "K8sJobMode"):
            there = "K8sJobMode" if mode else "not set, and so K8sJobMode"
            yield f"{name_of(obj)} spec.submissionMode", f"it is {there}"


def _from_zero(subject: Subject) -> Iterator[Hit]:
    for place, group, spec in _worker_groups(subject):
        if spec.get("enableInTreeAutoscaling") is True and not group.get("minReplicas"):
            now = group.get("replicas", 0)
            yield f"{place}.minReplicas", f"an autoscaled group may go down to 0 (now {now})"


def _suspended(subject: Subject) -> Iterator[Hit]:
    for place, group, _ in _worker_groups(subject):
        if group.get("suspend"):
            yield f"{place}.suspend", "it has no pods, and KAI counts them all the same"
        if "suspended" in group:
            yield f"{place}.suspended", "KubeRay has no such field, and drops it: the group runs"


def _minimum_above_replicas(subject: Subject) -> Iterator[Hit]:
    for place, group, _ in _worker_groups(subject):
        least, wanted = group.get("minReplicas", 0), group.get("replicas", 0)
        if least > wanted:
            yield f"{place}.minReplicas", f"{least} of {wanted} replicas"


def _uneven_waves(subject: Subject) -> Iterator[Hit]:
    for obj in subject.kai_objects("JobSet"):
        for index, job in enumerate(obj["spec"]["replicatedJobs"]):
            inner = job["template"]["spec"]
            parallelism = int(inner.get("parallelism", 1))
            completions = int(inner.get("completions", parallelism))
            place = f"{name_of(obj)} spec.replicatedJobs[{index}].template.spec"
            if parallelism > completions:
                yield place, f"parallelism {parallelism} of {completions} completions"
            elif parallelism and completions % parallelism:
                left = completions % parallelism
                yield (
                    place,
                    f"the last wave has {left} of {parallelism} pods ({completions} in all)",
                )


def _annotated(obj: Object) -> Iterator[tuple[str, Object]]:
    """Yield where KAI reads placements of an object, and the metadata there."""
    name = name_of(obj)
    yield f"{name} metadata", obj["metadata"]
    if obj["kind"] == "JobSet":
        for index, job in enumerate(obj["spec"]["replicatedJobs"]):
            place = f"{name} spec.replicatedJobs[{index}].template.metadata"
            yield place, job["template"].get("metadata") or {}
    if ray_spec(obj) is not None:
        for pods in pod_sets(obj):
            yield f"{name} {pods.path}.metadata", pods.metadata


def _placement(subject: Subject) -> Iterator[Hit]:
    kinds = {obj["kind"] for obj in subject.objects}
    for obj in subject.kai_objects(*kinds):
        for place, metadata in _annotated(obj):
            annotations = annotations_of(metadata)
            asked = [key for key in (REQUIRED_PLACEMENT, PREFERRED_PLACEMENT) if key in annotations]
            if asked and placement_of(annotations) is None:
                yield f"{place}.annotations", f"{asked[0]} without {TOPOLOGY}"
    for group in subject.grouping.groups:
        for node in group.root.walk() if group.external else ():
            if node.placement is not None and not node.placement.topology:
                what = f"{node.name}: a level without topology"
                yield f"{group.source} spec.topologyConstraint", what


def _head_of(obj: Object) -> str | None:
    if obj["kind"] == "JobSet":
        # The coordinator is the one whose address the others are told.
        name = (obj["spec"].get("coordinator") or {}).get("replicatedJob")
        return str(name) if name else None
    return HEAD_GROUP


def _head_priority(subject: Subject) -> Iterator[Hit]:
    values = subject.facts.priorities

    def value(pods: PodSet) -> int | None:
        return values.get(pods.spec.get("priorityClassName", ""))

    for obj in subject.kai_objects("JobSet", *_RAY):
        there = pod_sets(obj)
        for head in (pods for pods in there if pods.role == _head_of(obj)):
            place = f"{head.source} {head.path}.spec.priorityClassName"
            name = head.spec.get("priorityClassName")
            if not name:
                yield place, f"{head.role} has no priority class"
                continue
            mine = value(head)
            for pods in there:
                # Drivers of a JobSet are as important as heads, and may be their equals.
                worker = obj["kind"] != "JobSet" or "worker" in pods.role
                other = value(pods)
                if pods is head or not worker or mine is None or other is None:
                    continue
                if mine <= other:
                    theirs = pods.spec["priorityClassName"]
                    yield place, f"{name} ({mine}) is not above {theirs} ({other}) of {pods.role}"


def _outside(subject: Subject) -> Iterator[Hit]:
    for obj in subject.kai_objects("JobSet", *_RAY):
        for pods in pod_sets(obj):
            if not pods.by_kai:
                other = pods.spec.get("schedulerName", "default-scheduler")
                place = f"{pods.source} {pods.path}.spec.schedulerName"
                yield place, f"{other} places {pods.role}, and KAI the others"


def _not_modelled(subject: Subject) -> Iterator[Hit]:
    for obj in unknown_kinds(subject.objects):
        yield name_of(obj), "the model does not know the pods of this kind"


RULES = (
    Rule(
        "jobset-start-order", "error",
        "KAI asks for subgroups in the order of their names and does not know which wait for "
        "which: it waits for pods that JobSet does not make yet.",
        "start all replicatedJobs together and let init containers wait",
        _start_order,
    ),
    Rule(
        "rayjob-submitter", "error",
        "K8sJobMode adds a pod that is in no subgroup of the gang; KubeRay refuses it with KAI.",
        "submissionMode: HTTPMode",
        _submitter,
    ),
    Rule(
        "autoscaled-from-zero", "error",
        "With minReplicas 0 the gang's minimum grows with replicas: when a new worker finds no "
        "place the gang is below its minimum, and KAI evicts the workers that run.",
        "minReplicas of at least 1, or no autoscaling",
        _from_zero,
    ),
    Rule(
        "suspended-group", "error",
        "KAI looks for `suspended`, KubeRay for `suspend`: the gang waits for pods that nobody "
        "makes, or a group runs that was meant to rest.",
        "take the worker group out, or suspend the whole RayCluster",
        _suspended,
    ),
    Rule(
        "min-above-replicas", "error",
        "KAI's pod-grouper refuses such a group: none of the run's pods is ever placed.",
        "minReplicas no greater than replicas; for a gang the same",
        _minimum_above_replicas,
    ),
    Rule(
        "uneven-waves", "error",
        "KAI needs `parallelism` pods at once and does not look at completions: the last wave "
        "never has that many, and stays Pending.",
        "completions a multiple of parallelism; for a gang the same",
        _uneven_waves,
    ),
    Rule(
        "placement-without-topology", "error",
        "Without the Topology's name KAI's pod-grouper refuses a Ray group, and leaves the "
        "placement out everywhere else.",
        f"annotation {TOPOLOGY} (in a PodGroup: topologyConstraint.topology) beside it",
        _placement,
    ),
    Rule(
        "head-priority", "warning",
        "Losing the head ends the run. KAI compares gangs, but a node under pressure evicts by "
        "the pods' own priorities.",
        "give the head a priority class above its workers' (rl-head, rl-worker)",
        _head_priority,
    ),
    Rule(
        "outside-the-gang", "error",
        "KAI counts all groups of an object and waits for the pods that another scheduler has.",
        "schedulerName: kai-scheduler on every pod of the object",
        _outside,
    ),
    Rule(
        "kind-not-modelled", "warning",
        "What KAI makes of it is not said here: gangs, fit and rules leave it out.",
        "look at its PodGroup in the cluster: kubectl get podgroups.scheduling.run.ai",
        _not_modelled,
    ),
)  # fmt: skip
