"""What each part of a run is doing, from its objects and pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.run.shapes import NODE_TYPE, PART_LABEL, labels_of, role_of
from tandem.run.verdict import ENDED_FROM_OUTSIDE, unplaced, waits_of
from tandem_common.kube.resources import DEPLOYMENTS, JOBS, JOBSETS, RAYCLUSTERS, RAYJOBS

Object = Mapping[str, Any]

REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
#: The order in which people think of a run's roles.
_ORDER = ("rl", "gym", "driver", "pool", "watcher")


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Pods of one kind: such as `rl/head` or `driver`."""

    role: str
    name: str

    def __str__(self) -> str:
        """Return it as people write it."""
        return self.role if self.name in ("", self.role) else f"{self.role}/{self.name}"


@dataclass(frozen=True, slots=True)
class GroupState:
    """How a group of pods is.

    Attributes:
        group: Which one.
        phase: One word: the least good of its pods'.
        ready: Pods that are Ready.
        wanted: Pods that there should be.
        why: Why it is not running; "" when it is, or nothing is known.
    """

    group: Group
    phase: str
    ready: int
    wanted: int
    why: str = ""


#: The kernel's own end of a container: killed from outside, and for a cause of its own.
_OUT_OF_MEMORY = "OOMKilled"
#: From bad to good; a group is as its worst pod.
_PHASES = ("Failed", "Pending", "Starting", "Ending", "Running", "Succeeded")


def group_of(pod: Object) -> Group:
    """Return the group that a pod belongs to."""
    labels, role = labels_of(pod), role_of(pod)
    name = labels.get(NODE_TYPE) or labels.get(PART_LABEL, "")
    name = name or labels.get(REPLICATED_JOB, "").removeprefix(f"{role}-")
    if role == "watcher":
        name = ""
    return Group(role, "workers" if name == "worker" else name)


def _expected(workload: Object) -> Iterator[tuple[Group, int]]:
    spec, kind, role = workload["spec"], workload["kind"], role_of(workload)
    if kind in (RAYCLUSTERS.kind, RAYJOBS.kind):
        cluster = spec["rayClusterSpec"] if kind == RAYJOBS.kind else spec
        role = role or role_of(cluster["headGroupSpec"]["template"])
        yield Group(role, "head"), 1
        for group in cluster.get("workerGroupSpecs") or []:
            yield Group(role, "workers"), int(group.get("replicas") or 0)
    elif kind == JOBSETS.kind:
        for job in spec.get("replicatedJobs") or []:
            template = job["template"]["spec"]
            role = role_of(template["template"])
            count = int(job.get("replicas", 1)) * int(template.get("parallelism") or 1)
            yield Group(role, job["name"].removeprefix(f"{role}-")), count
    elif kind == JOBS.kind:
        yield Group(role, ""), int(spec.get("parallelism") or 1)
    elif kind == DEPLOYMENTS.kind:
        yield Group(role, labels_of(workload).get(PART_LABEL, "")), int(spec.get("replicas", 1))


def _phase(pod: Object) -> str:
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    if phase in ("Failed", "Succeeded"):
        return phase
    if pod["metadata"].get("deletionTimestamp"):
        return "Ending"
    if phase == "Pending":
        return "Starting" if (pod.get("spec") or {}).get("nodeName") else "Pending"
    ended = any((each.get("state") or {}).get("terminated")
                for each in status.get("containerStatuses") or [])  # fmt: skip
    if ended:
        return "Ending"
    return "Running" if _ready(pod) else "Starting"


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _why(pod: Object) -> str:
    """Return why a pod does not run: what it waits for, or how it ended."""
    if waits := waits_of([pod]):
        return waits[0].verdict.message
    if words := unplaced([pod]):
        return next(iter(words.values()))
    status = pod.get("status") or {}
    if status.get("phase") != "Failed":
        return ""
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or []:
            ended = (each.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                return f"container {each['name']} ended with code {ended['exitCode']}"
    return ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))


def _terminated(container: Object) -> Object:
    """Return how a container ended last; one that was started again has ended before."""
    for key in ("state", "lastState"):
        if ended := (container.get(key) or {}).get("terminated"):
            return dict(ended)
    return {}


def failed_parts(pods: Iterable[Object]) -> list[str]:
    """Return what ended with a code of its own other than 0, the first one first.

    Source: containers' `state.terminated` (`exitCode`, `finishedAt`). What was ended by a
    signal from outside was ended because of something else.
    """
    found: dict[str, str] = {}
    for pod in pods:
        status = pod.get("status") or {}
        for key in ("initContainerStatuses", "containerStatuses"):
            for each in status.get(key) or []:
                ended = _terminated(each)
                code, why = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
                if code and (code not in ENDED_FROM_OUTSIDE or why == _OUT_OF_MEMORY):
                    words = f"{group_of(pod)}: container {each['name']} ended with code {code}"
                    words += f" ({why})" if why == _OUT_OF_MEMORY else ""
                    found.setdefault(words, str(ended.get("finishedAt") or ""))
    return sorted(found, key=lambda words: found[words])


def states_of(workloads: Iterable[Object], pods: Iterable[Object]) -> list[GroupState]:
    """Return how each group of a run is, those without any pod too.

    Args:
        workloads: The run's RayClusters, RayJobs, JobSets, Jobs and Deployments that are there.
        pods: Its pods.
    """
    wanted: dict[Group, int] = {}
    for workload in workloads:
        for group, count in _expected(workload):
            wanted[group] = wanted.get(group, 0) + count
    grouped: dict[Group, list[Object]] = {group: [] for group in wanted}
    for pod in pods:
        grouped.setdefault(group_of(pod), []).append(pod)
    states = []
    for group, members in grouped.items():
        if not members and not wanted.get(group):
            continue
        # An ended pod that was replaced says nothing of the group any more.
        alive = [pod for pod in members if _phase(pod) not in ("Failed", "Ending")] or members
        phases = [_phase(pod) for pod in alive]
        phase = min(phases, key=_PHASES.index) if phases else "No pods"
        if phase == "Running" and len(alive) < wanted.get(group, 0):
            phase = "Starting"
        why = next((text for pod in alive if (text := _why(pod))), "")
        ready = sum(_ready(pod) for pod in alive)
        states.append(GroupState(group, phase, ready, max(wanted.get(group, 0), len(alive)), why))
    return sorted(states, key=_place)


def _place(state: GroupState) -> tuple[int, str]:
    role = state.group.role
    return (_ORDER.index(role) if role in _ORDER else len(_ORDER), state.group.name)
