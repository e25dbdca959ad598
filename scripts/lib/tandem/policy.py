"""House rules for manifests that a schema cannot state. Pure: objects in, faults out.

Each rule has a name, a reason, and a failing example in tests/policy/bad/<name>.yaml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

Object = dict[str, Any]

KAI = "kai-scheduler"
QUEUE_LABEL = "kai.scheduler/queue"
RUN_LABEL = "tandem.dev/run-id"
#: By which a pod is in a PodGroup. KAI's pod-grouper writes the first one when it takes a pod in;
#: pods of a run that brings its PodGroup along say so themselves, with the other two.
GROUP_ANNOTATION = "pod-group-name"
SKIP_ANNOTATION = "kai.scheduler/skip-podgrouper"
SUBGROUP_LABEL = "kai.scheduler/subgroup-name"
#: Kueue's: the queue of a workload, its WorkloadPriorityClass, and by what pods are one group.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
LOCAL_PREFIX = "localhost/"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What rl-platform offers to runs: names that a run may refer to."""

    queues: frozenset[str]
    priority_classes: frozenset[str]
    accounts: frozenset[str]
    #: The objects that are looked at together, in the order in which they are applied.
    run: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod template: where it is, its metadata and spec."""

    where: str
    metadata: Object
    spec: Object

    @property
    def containers(self) -> list[Object]:
        """Containers and init containers."""
        return [*self.spec.get("initContainers", []), *self.spec.get("containers", [])]


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that an object breaks."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        """Return the fault in one line."""
        return f"{self.rule}: {self.where}: {self.what}"


def _ray_groups(spec: Object) -> Iterator[tuple[str, Object]]:
    yield "head", spec["headGroupSpec"]
    for group in spec.get("workerGroupSpecs", []):
        yield group["groupName"], group


def _templates(obj: Object) -> Iterator[tuple[str, Object]]:
    kind, spec = obj["kind"], obj.get("spec") or {}
    if kind in ("RayJob", "RayCluster"):
        cluster = spec.get("rayClusterSpec", {}) if kind == "RayJob" else spec
        if cluster:
            for name, group in _ray_groups(cluster):
                yield name, group["template"]
        if "submitterPodTemplate" in spec:
            yield "submitter", spec["submitterPodTemplate"]
    elif kind == "JobSet":
        for job in spec["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["template"]
    elif kind in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
        yield "pod", spec["template"]
    elif kind == "Pod":
        yield "pod", obj


def name_of(obj: Object) -> str:
    """Return kind and name of an object."""
    return f"{obj['kind']}/{obj['metadata']['name']}"


def pods_of(obj: Object) -> list[Pod]:
    """Return every pod template of an object."""
    return [
        Pod(f"{name_of(obj)} {name}", t.get("metadata") or {}, t.get("spec") or {})
        for name, t in _templates(obj)
    ]


def _non_root(pod: Pod) -> Iterator[str]:
    context = pod.spec.get("securityContext") or {}
    if context.get("runAsNonRoot") is not True:
        yield "securityContext.runAsNonRoot is not true"
    user = context.get("runAsUser")
    if not isinstance(user, int) or user <= 0:
        yield f"securityContext.runAsUser is {user}: a numeric user other than 0 is needed"


def _seccomp(pod: Pod) -> Iterator[str]:
    profile = (pod.spec.get("securityContext") or {}).get("seccompProfile") or {}
    if profile.get("type") != "RuntimeDefault":
        yield "securityContext.seccompProfile.type is not RuntimeDefault"


def _no_privileges(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        context = container.get("securityContext") or {}
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"container {container['name']}: allowPrivilegeEscalation is not false"
        if (context.get("capabilities") or {}).get("drop") != ["ALL"]:
            yield f"container {container['name']}: capabilities.drop is not [ALL]"


def _pinned_image(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        image = container.get("image", "")
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"container {container['name']}: image {image} has no fixed tag or digest"


def _pull_policy(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        local = container.get("image", "").startswith(LOCAL_PREFIX)
        if local and container.get("imagePullPolicy") not in ("IfNotPresent", "Never"):
            yield f"container {container['name']}: a local image needs imagePullPolicy IfNotPresent"


def _resources(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            if name not in requests:
                yield f"container {container['name']}: no request of {name}"
        if "memory" not in limits:
            yield f"container {container['name']}: no limit of memory"
        for name in ("nvidia.com/gpu",):
            if requests.get(name) != limits.get(name):
                yield f"container {container['name']}: request and limit of {name} differ"


def _no_token(pod: Pod) -> Iterator[str]:
    if pod.spec.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false"


def _shared_memory(pod: Pod) -> Iterator[str]:
    volumes = {v["name"]: v for v in pod.spec.get("volumes", [])}
    for container in pod.containers:
        if not container["name"].startswith("ray-"):
            continue
        mounts = {m["mountPath"]: m["name"] for m in container.get("volumeMounts", [])}
        volume = volumes.get(mounts.get("/dev/shm", ""), {})  # noqa: S108 - the pod's, not ours
        if (volume.get("emptyDir") or {}).get("medium") != "Memory":
            yield f"container {container['name']}: /dev/shm is no memory volume (64 MiB kill Ray)"


def _ray_auth(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        names = {env["name"] for env in container.get("env", [])}
        if container["name"].startswith("ray-") and "RAY_AUTH_MODE" not in names:
            yield f"container {container['name']}: RAY_AUTH_MODE is left to Ray's default"


def _jobset_ends(spec: Object) -> Iterator[str]:
    if (spec.get("failurePolicy") or {}).get("maxRestarts") != 0:
        yield "failurePolicy.maxRestarts is not 0: a failed run would be repeated blindly"
    if not spec.get("ttlSecondsAfterFinished"):
        yield "no ttlSecondsAfterFinished: a finished run would stay for ever"
    awaited = (spec.get("successPolicy") or {}).get("targetReplicatedJobs") or []
    if not awaited:
        yield "successPolicy names no replicatedJob: Ray's groups never end by themselves"
    for job in spec["replicatedJobs"]:
        inner = job["template"]["spec"]
        if inner.get("backoffLimit") != 0:
            yield f"replicatedJob {job['name']}: backoffLimit is not 0: a dead pod is made again"
        if job["name"] in awaited and not inner.get("activeDeadlineSeconds"):
            yield f"replicatedJob {job['name']}: no activeDeadlineSeconds: it could hang for ever"


def _ends(obj: Object) -> Iterator[str]:
    if obj["kind"] == "JobSet":
        yield from _jobset_ends(obj["spec"])
    if obj["kind"] != "RayJob":
        return
    spec = obj["spec"]
    if spec.get("shutdownAfterJobFinishes") is not True:
        yield "shutdownAfterJobFinishes is not true: a finished run would hold its GPUs"
    if not spec.get("activeDeadlineSeconds"):
        yield "no activeDeadlineSeconds: a run that hangs would hold its GPUs"
    if spec.get("backoffLimit") != 0:
        yield "backoffLimit is not 0: a failed run would be repeated blindly"


def _http_mode(obj: Object) -> Iterator[str]:
    if obj["kind"] == "RayJob" and obj["spec"].get("submissionMode") != "HTTPMode":
        yield "submissionMode is not HTTPMode: K8sJobMode adds a pod that is outside the gang"


def _run_id(obj: Object) -> Iterator[str]:
    if obj["kind"] not in ("RayJob", "RayCluster", "JobSet", "Deployment"):
        return
    run_id = (obj["metadata"].get("labels") or {}).get(RUN_LABEL)
    if not run_id:
        yield f"no label {RUN_LABEL}"
    for pod in pods_of(obj):
        if (pod.metadata.get("labels") or {}).get(RUN_LABEL) != run_id:
            yield f"{pod.where}: label {RUN_LABEL} is not the run's"
    if obj["kind"] == "Deployment":
        chosen = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
        if chosen.get(RUN_LABEL) != run_id:
            yield f"its selector has not the run's {RUN_LABEL}: it would count other runs' pods"


def _in_gang(obj: Object) -> bool:
    return any(pod.spec.get("schedulerName") == KAI for pod in pods_of(obj))


def _no_depends_on(obj: Object) -> Iterator[str]:
    if obj["kind"] != "JobSet" or not _in_gang(obj):
        return
    spec = obj["spec"]
    if (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
        yield "startupPolicy InOrder deadlocks under KAI; order by init containers"
    for job in spec["replicatedJobs"]:
        if job.get("dependsOn"):
            yield f"replicatedJob {job['name']}: dependsOn deadlocks under KAI; use init containers"


def _whole_gang(obj: Object) -> Iterator[str]:
    if obj["kind"] not in ("RayJob", "RayCluster", "JobSet") or not _in_gang(obj):
        return
    spec = obj["spec"]
    for job in spec.get("replicatedJobs", []):
        inner = job["template"]["spec"]
        if job.get("replicas", 1) < 1:
            yield f"replicatedJob {job['name']}: no replicas: the gang waits for it for ever"
        if inner.get("parallelism", 1) != inner.get("completions", 1):
            yield f"replicatedJob {job['name']}: parallelism and completions differ"
    cluster = spec.get("rayClusterSpec", spec)
    for group in cluster.get("workerGroupSpecs", []):
        replicas = group.get("replicas", 0)
        if replicas < 1 or group.get("minReplicas") != replicas:
            yield f"worker group {group['groupName']}: minReplicas must equal replicas, at least 1"
    for pod in pods_of(obj):
        if pod.spec.get("schedulerName") != KAI:
            yield f"{pod.where}: not scheduled by KAI like the rest of its gang"


def members_of(obj: Object) -> list[tuple[Pod, int]]:
    """Return every pod template of an object that makes pods, and how many it makes of it."""
    spec = obj.get("spec") or {}
    counts: Iterable[int] = repeat(1)
    if obj["kind"] in ("RayJob", "RayCluster"):
        ray: Object = spec.get("rayClusterSpec") or spec
        groups = ray.get("workerGroupSpecs", [])
        counts = [1, *(g.get("replicas", 0) * g.get("numOfHosts", 1) for g in groups), 1]
    elif obj["kind"] == "JobSet":
        jobs = spec["replicatedJobs"]
        counts = [
            job.get("replicas", 1) * job["template"]["spec"].get("parallelism", 1) for job in jobs
        ]
    elif obj["kind"] == "Job":
        counts = [spec.get("parallelism", 1)]
    elif obj["kind"] == "Deployment":
        counts = [spec.get("replicas", 1)]
    return list(zip(pods_of(obj), counts, strict=False))


def _annotation(pod: Pod, key: str) -> str | None:
    return (pod.metadata.get("annotations") or {}).get(key)


def _label(metadata: Object, key: str) -> str | None:
    return (metadata.get("labels") or {}).get(key)


def _joins_gang(obj: Object, groups: dict[str, Object]) -> Iterator[str]:
    """Yield why pods of an object are not in the PodGroup that the run brings along."""
    for pod in pods_of(obj):
        name = _annotation(pod, GROUP_ANNOTATION)
        if name is None:
            if groups and pod.spec.get("schedulerName") == KAI:
                yield f"{pod.where}: KAI would make a gang of its own of it: no {GROUP_ANNOTATION}"
            continue
        if name not in groups:
            yield f"{pod.where}: PodGroup {name} is none of the run's: Pending, without a word"
            continue
        if _annotation(pod, SKIP_ANNOTATION) != "true":
            yield f'{pod.where}: no {SKIP_ANNOTATION}: "true": KAI would write over its PodGroup'
        spec = groups[name]["spec"]
        parents = {group.get("parent") for group in spec["subGroups"]}
        leaves = {group["name"] for group in spec["subGroups"]} - parents
        subgroup = _label(pod.metadata, SUBGROUP_LABEL)
        if subgroup not in leaves:
            yield f"{pod.where}: subgroup {subgroup} is none of {', '.join(sorted(leaves))}"
        if _label(pod.metadata, QUEUE_LABEL) != spec["queue"]:
            yield f"{pod.where}: PodGroup {name} is in queue {spec['queue']}, which counts"


def _members(group: Object, run: Iterable[Object]) -> Iterator[tuple[Object, str | None, int]]:
    """Yield what makes pods of a PodGroup, their subgroup, and how many they are."""
    for obj in run:
        for pod, count in members_of(obj):
            if _annotation(pod, GROUP_ANNOTATION) == group["metadata"]["name"]:
                yield obj, _label(pod.metadata, SUBGROUP_LABEL), count


def _placed(group: Object, cluster: Cluster) -> Iterator[str]:
    """Yield what is wrong with a PodGroup's queue, label and place among the run's objects."""
    queue, labels = group["spec"]["queue"], group["metadata"]
    if queue not in cluster.queues:
        yield f"queue {queue}: leaf queues are {', '.join(sorted(cluster.queues))}"
    if queue != _label(labels, QUEUE_LABEL):
        yield f"queue {queue} is not that of label {QUEUE_LABEL}"
    if not _label(labels, RUN_LABEL):
        yield f"no label {RUN_LABEL}: it would stay when the run is removed"
    before = cluster.run[: cluster.run.index(group)]
    for where in dict.fromkeys(name_of(obj) for obj, _, _ in _members(group, before)):
        yield f"it comes after {where}: KAI leaves a pod alone whose PodGroup is not there"


def _all_or_nothing(group: Object, run: Iterable[Object]) -> Iterator[str]:
    """Yield why a PodGroup could start without some of the run's pods, or never."""
    spec = group["spec"]
    pods: Counter[str | None] = Counter()
    for _, subgroup, count in _members(group, run):
        pods[subgroup] += count
    children = Counter(each.get("parent") for each in spec["subGroups"])
    for parent in children.keys() - {each["name"] for each in spec["subGroups"]} - {None}:
        yield f"subgroup {parent} is a parent and not there"
    if spec.get("minSubGroup") != children[None]:
        yield f"minSubGroup {spec.get('minSubGroup')} of {children[None]} subgroups"
    for each in spec["subGroups"]:
        name = each["name"]
        field, there = ("minSubGroup", children) if name in children else ("minMember", pods)
        if each.get(field) != there[name]:
            yield f"subgroup {name}: {field} is {each.get(field)}, and there are {there[name]}"


def _one_gang(obj: Object, cluster: Cluster) -> Iterator[str]:
    if obj["kind"] == "PodGroup":
        yield from _placed(obj, cluster)
        yield from _all_or_nothing(obj, cluster.run)
        return
    groups = {o["metadata"]["name"]: o for o in cluster.run if o["kind"] == "PodGroup"}
    yield from _joins_gang(obj, groups)


def _queue(obj: Object, cluster: Cluster) -> Iterator[str]:
    if not _in_gang(obj):
        return
    queue = (obj["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    if queue not in cluster.queues:
        yield f"label {QUEUE_LABEL} is {queue}, leaf queues are {', '.join(sorted(cluster.queues))}"
    for pod in pods_of(obj):
        if (pod.metadata.get("labels") or {}).get(QUEUE_LABEL) != queue:
            yield f"{pod.where}: label {QUEUE_LABEL} is not the run's"


def _known_names(obj: Object, cluster: Cluster) -> Iterator[str]:
    for pod in pods_of(obj):
        account = pod.spec.get("serviceAccountName")
        if account not in cluster.accounts:
            yield f"{pod.where}: ServiceAccount {account} is none of rl-platform's"
        priority = pod.spec.get("priorityClassName")
        if priority is not None and priority not in cluster.priority_classes:
            yield f"{pod.where}: PriorityClass {priority} is none of rl-platform's"


def _of_pods(rule: Callable[[Pod], Iterator[str]]) -> Callable[[Object, Cluster], Iterator[str]]:
    def check(obj: Object, _: Cluster) -> Iterator[str]:
        for pod in pods_of(obj):
            for what in rule(pod):
                yield f"{pod.where}: {what}"

    return check


def _of_objects(
    rule: Callable[[Object], Iterator[str]],
) -> Callable[[Object, Cluster], Iterator[str]]:
    return lambda obj, _: rule(obj)


#: Every rule by name; the name is that of its failing example.
RULES: dict[str, Callable[[Object, Cluster], Iterator[str]]] = {
    "non-root": _of_pods(_non_root),
    "seccomp": _of_pods(_seccomp),
    "no-privileges": _of_pods(_no_privileges),
    "pinned-image": _of_pods(_pinned_image),
    "pull-policy": _of_pods(_pull_policy),
    "resources": _of_pods(_resources),
    "no-token": _of_pods(_no_token),
    "shared-memory": _of_pods(_shared_memory),
    "ray-auth": _of_pods(_ray_auth),
    "ends": _of_objects(_ends),
    "http-mode": _of_objects(_http_mode),
    "run-id": _of_objects(_run_id),
    "no-depends-on": _of_objects(_no_depends_on),
    "whole-gang": _of_objects(_whole_gang),
    "one-gang": _one_gang,
    "queue": _queue,
    "known-names": _known_names,
}


def cluster_of(platform: Iterable[Object]) -> Cluster:
    """Return what the rendered rl-platform offers."""
    objects = list(platform)
    queues = {o["metadata"]["name"]: o["spec"].get("parentQueue") for o in objects
              if o["kind"] == "Queue"}  # fmt: skip
    leaves = queues.keys() - set(queues.values())
    names = {
        kind: frozenset(o["metadata"]["name"] for o in objects if o["kind"] == kind)
        for kind in ("PriorityClass", "ServiceAccount")
    }
    return Cluster(frozenset(leaves), names["PriorityClass"], names["ServiceAccount"])


def faults_of(objects: Iterable[Object], cluster: Cluster) -> list[Fault]:
    """Return every fault of the objects; a run may bring accounts of its own."""
    found = list(objects)
    own = {obj["metadata"]["name"] for obj in found if obj["kind"] == "ServiceAccount"}
    cluster = replace(cluster, accounts=cluster.accounts | own, run=tuple(found))
    return [
        Fault(name, name_of(obj), what)
        for obj in found
        for name, rule in RULES.items()
        for what in rule(obj, cluster)
    ]
