"""What a variant needs of a cluster before it is applied, and what of it is not there.

A pod whose scheduler does not exist is Pending for ever and nothing says why; so is a
RayJob whose ServiceAccount is missing. Pure: objects in, needs out; the asking is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tandem.errors import Problem
from tandem.policy import KAI, KUEUE_PRIORITY, KUEUE_QUEUE, QUEUE_LABEL, Pod, name_of, pods_of
from tandem.run.kube import Ask, CannotTell

Object = dict[str, Any]

_SYNC = "install the platform: helmfile sync (the local cluster), helmfile -e prod sync (yours)"
_TOPOLOGY = "kai.scheduler/topology"
_KUEUE_FIX = (
    "install Kueue: helmfile -e kueue sync (locally; make sync ENV=kueue), or `kueue.enabled` in"
    " your environment; or run it without (SCHEDULER=)"
)
_KAI_FIX = (
    "install KAI: helmfile -e prod sync (-e kind, -e nvkind; locally a bundle that has KAI); or"
    " take a variant with components/scheduler-default, such as monolithic-rayjob"
)


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that has to be on the cluster: where to look for it and what else it must be."""

    what: str
    fix: str
    path: str
    holds: Callable[[Object], bool] = lambda _: True


def needs_of(objects: Iterable[Object]) -> list[Need]:
    """Return everything that the objects refer to and do not bring along, each once."""
    found: dict[tuple[str, str], Need] = {}
    listed = list(objects)
    brought = {o["metadata"]["name"] for o in listed if o["kind"] == "Namespace"}
    accounts = {o["metadata"]["name"] for o in listed if o["kind"] == "ServiceAccount"}
    roles = {o["metadata"]["name"] for o in listed if o["kind"] == "Role"}
    for obj in listed:
        namespace = obj["metadata"].get("namespace", "")
        needs = [_kind(obj)]
        if namespace and namespace not in brought:
            path = f"/api/v1/namespaces/{namespace}"
            needs.append(Need(f"namespace {namespace} is missing", _SYNC, path))
        needs += [*_queue(obj["metadata"]), *_role(obj, namespace, roles)]
        needs += _kueue(obj["metadata"], namespace)
        needs += [*_group(obj), *_topologies(obj)]
        for pod in pods_of(obj):
            needs += [
                *_scheduler(pod),
                *_queue(pod.metadata),
                *_kueue(pod.metadata, namespace),
                *_references(pod, namespace, accounts),
            ]
        for need in needs:
            found.setdefault((need.what, need.path), need)
    return list(found.values())


def _kind(obj: Object) -> Need:
    version, kind = obj["apiVersion"], obj["kind"]
    return Need(
        f"{name_of(obj)}: the cluster serves no kind {kind} of {version}",
        _SYNC,
        f"/apis/{version}" if "/" in version else f"/api/{version}",
        lambda served: any(each["kind"] == kind for each in served["resources"]),
    )


def _scheduler(pod: Pod) -> list[Need]:
    # Of another scheduler nobody knows how to tell whether it runs; the follower sees to it.
    if pod.spec.get("schedulerName") != KAI:
        return []
    what = f"scheduler {KAI} is missing"
    return [
        Need(what, _KAI_FIX, "/apis/scheduling.run.ai/v2"),
        # CRDs outlive the release, so they alone are no sign of a scheduler.
        Need(
            what, _KAI_FIX, "/apis/apps/v1/deployments",
            lambda listed: any(map(_is_kai, listed["items"])),
        ),
    ]  # fmt: skip


def _is_kai(deployment: Object) -> bool:
    """Return whether a Deployment belongs to KAI, whatever its chart's version named it."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    names = (*deployment["metadata"].values(), *(c.get("image", "") for c in containers))
    return any(isinstance(name, str) and KAI in name for name in names)


def _queue(metadata: Object) -> list[Need]:
    return _queue_named((metadata.get("labels") or {}).get(QUEUE_LABEL))


def _queue_named(queue: str | None) -> list[Need]:
    if not queue:
        return []
    fix = f"{_SYNC}: with KAI it makes the queues; or name one of: kubectl get queues"
    path = f"/apis/scheduling.run.ai/v2/queues/{queue}"
    return [Need(f"queue {queue} is missing", fix, path)]


def _kueue(metadata: Object, namespace: str) -> list[Need]:
    """What asks for a queue of Kueue's waits for it for ever, or starts without asking."""
    labels = metadata.get("labels") or {}
    needs = []
    if queue := labels.get(KUEUE_QUEUE):
        what, fix = f"LocalQueue {queue} is missing in namespace {namespace}", _KUEUE_FIX
        fix += f"; or name one of: kubectl get localqueues -n {namespace}"
        path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues/{queue}"
        needs = [
            Need(what, fix, path),
            # Queues outlive the controller: then nobody would hold the run back, or let it in.
            Need(
                "the controller of Kueue is missing", _KUEUE_FIX, "/apis/apps/v1/deployments",
                lambda listed: any(map(_is_kueue, listed["items"])),
            ),
        ]  # fmt: skip
    if priority := labels.get(KUEUE_PRIORITY):
        path = f"/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses/{priority}"
        needs.append(Need(f"WorkloadPriorityClass {priority} is missing", _KUEUE_FIX, path))
    return needs


def _is_kueue(deployment: Object) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/name") == "kueue"


def _group(obj: Object) -> list[Need]:
    """Of a PodGroup the queue in its spec is what counts."""
    return _queue_named(obj["spec"].get("queue")) if obj["kind"] == "PodGroup" else []


def _topologies(obj: Object) -> list[Need]:
    """KAI places no pod that is to be near others by a Topology that is not there."""
    spec = obj.get("spec") or {}
    named: list[str | None] = []
    if obj["kind"] == "PodGroup":
        places = (spec, *spec.get("subGroups", []))
        named = [(each.get("topologyConstraint") or {}).get("topology") for each in places]
    else:
        jobs = spec["replicatedJobs"] if obj["kind"] == "JobSet" else []
        metadata = [pod.metadata for pod in pods_of(obj)]
        metadata += [obj["metadata"], *(job["template"].get("metadata") or {} for job in jobs)]
        named = [(each.get("annotations") or {}).get(_TOPOLOGY) for each in metadata]
    fix = f"{_SYNC}, with it in rl-platform's `topologies`; or leave the topology component out"
    return [
        Need(f"Topology {name} is missing", fix, f"/apis/kai.scheduler/v1alpha1/topologies/{name}")
        for name in named
        if name
    ]


def _role(obj: Object, namespace: str, brought: set[str]) -> list[Need]:
    """A binding to a Role that is not there gives nobody anything, and nothing says so."""
    role = (obj.get("roleRef") or {}).get("name")
    if obj["kind"] != "RoleBinding" or obj["roleRef"]["kind"] != "Role" or role in brought:
        return []
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{role}"
    return [Need(f"Role {role} is missing in namespace {namespace}", _SYNC, path)]


def _references(pod: Pod, namespace: str, brought: set[str]) -> list[Need]:
    inside = f"/api/v1/namespaces/{namespace}"
    needs = []
    account = pod.spec.get("serviceAccountName")
    if account and account not in brought:
        what = f"ServiceAccount {account} is missing in namespace {namespace}"
        needs.append(Need(what, _SYNC, f"{inside}/serviceaccounts/{account}"))
    if priority := pod.spec.get("priorityClassName"):
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{priority}"
        needs.append(Need(f"PriorityClass {priority} is missing", _SYNC, path))
    for secret in pod.spec.get("imagePullSecrets") or []:
        name, image = secret["name"], str(pod.containers[0]["image"])
        fix = (
            f"kubectl create secret docker-registry {name} -n {namespace}"
            f" --docker-server={image.partition('/')[0]} --docker-username=… --docker-password=…"
        )
        what = f"image pull Secret {name} is missing in namespace {namespace}"
        needs.append(Need(what, fix, f"{inside}/secrets/{name}"))
    return needs


def lacks(needs: Iterable[Need], ask: Ask) -> list[Problem]:
    """Return a problem for each need that the cluster certainly does not meet.

    What the asker has no right to see is passed over: nothing is refused on doubt.
    """
    problems: dict[str, Problem] = {}
    for need in needs:
        try:
            found = ask(need.path)
        except CannotTell:
            continue
        if found is None or not need.holds(found):
            problems[need.what] = Problem(need.what, need.fix)
    return list(problems.values())
