"""Turns objects of the API into facts. Pure: dicts in, facts out.

Sources, as read in the operators' code:
- KubeRay 1.6 to 1.7, `RayClusterStatus.conditions`: `HeadPodReady`, `RayClusterProvisioned`
  (True once all pods were ready; False again after a suspend), `ReplicaFailure`,
  `RayClusterSuspending` (cannot be taken back), `RayClusterSuspended`. `status.state` is set to
  `ready` once and never to `failed`, so it is not read.
- KubeRay `RayJobStatus`: `jobDeploymentStatus` is final with `Complete`, `Failed` and
  `ValidationFailed`; `jobStatus` alone can be followed by a retry.
- JobSet 0.12: conditions `Completed`, `Failed`, `Suspended`; `restarts`; `replicatedJobsStatus`.
- Kueue suspends each of them by `spec.suspend`, like a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from peer_watcher.facts import (
    ABSENT,
    Absent,
    HeadFacts,
    ObjectFacts,
    Outcome,
    Verdict,
    record_from_json,
)

Object = Mapping[str, Any]

#: Why the run was ended, on every object that is torn down.
VERDICT_ANNOTATION: Final = "tandem.dev/verdict"
#: Id of the run, on every object of it.
RUN_ID_LABEL: Final = "tandem.dev/run-id"
#: What the watcher of this object remembers.
RECORD_ANNOTATION: Final = "tandem.dev/peer-watcher"
#: JobSet puts its name onto all of its pods.
JOBSET_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
#: KubeRay's switch for GCS fault tolerance, beside `spec.gcsFaultToleranceOptions`.
_FT_ANNOTATION: Final = "ray.io/ft-enabled"
#: The operator is about to start the job's cluster, or to start it again.
_RAYJOB_SETTLING: Final = ("", "Initializing", "Retrying")
#: Conditions by which whoever ends a pod tells why: evictions of Kubernetes' own, and Kueue's.
_TARGETED: Final = ("DisruptionTarget", "TerminationTarget")


def _conditions(status: Object) -> dict[str, Object]:
    return {str(each.get("type")): each for each in status.get("conditions") or []}


def _state(conditions: Mapping[str, Object], name: str) -> bool | None:
    """Return whether a condition holds; None when it is not there or not decided."""
    return {"True": True, "False": False}.get(str((conditions.get(name) or {}).get("status")))


def _words(condition: Object | None) -> str:
    found = condition or {}
    parts = [str(found[key]) for key in ("reason", "message") if found.get(key)]
    return ": ".join(parts)


def _moment(conditions: Mapping[str, Object], name: str) -> str:
    found = conditions.get(name) or {}
    return f"{found.get('status', '')}@{found.get('lastTransitionTime', '')}" if found else ""


def object_facts(obj: Object) -> ObjectFacts:
    """Return what an object of the run says of itself.

    Raises:
        ValueError: It is of a kind that cannot be part of a run.
    """
    metadata: Object = obj.get("metadata") or {}
    annotations: Object = metadata.get("annotations") or {}
    spec: Object = obj.get("spec") or {}
    status: Object = obj.get("status") or {}
    kinds = {"RayCluster": _raycluster, "RayJob": _rayjob, "JobSet": _jobset, "Job": _job}
    kind = str(obj.get("kind"))
    if kind not in kinds:
        raise ValueError(f"{kind} is none of {', '.join(kinds)}")
    return ObjectFacts(
        uid=str(metadata.get("uid", "")),
        deleting=bool(metadata.get("deletionTimestamp")),
        controller=_controller(metadata),
        verdict=Verdict.from_json(str(annotations.get(VERDICT_ANNOTATION, ""))),
        record=record_from_json(str(annotations.get(RECORD_ANNOTATION, ""))),
        **kinds[kind](annotations, spec, status),
    )


def _controller(metadata: Object) -> str:
    owners = metadata.get("ownerReferences") or []
    return next((f"{own['kind']}/{own['name']}" for own in owners if own.get("controller")), "")


def _tolerant(annotations: Object, cluster_spec: Object) -> bool:
    switched = str(annotations.get(_FT_ANNOTATION, "")).lower() == "true"
    return switched or bool(cluster_spec.get("gcsFaultToleranceOptions"))


def _cluster_conditions(status: Object) -> dict[str, Any]:
    conditions = _conditions(status)
    ready = _state(conditions, "HeadPodReady")
    provisioned = _state(conditions, "RayClusterProvisioned")
    failing = _state(conditions, "ReplicaFailure")
    return {
        "ready": ready,
        "ready_reason": _words(conditions.get("HeadPodReady")),
        "started": bool(ready) if provisioned is None else provisioned,
        "replica_failure": (_words(conditions["ReplicaFailure"]) or "no reason") if failing else "",
    }


def _raycluster(annotations: Object, spec: Object, status: Object) -> dict[str, Any]:
    conditions = _conditions(status)
    return {
        **_cluster_conditions(status),
        "suspended": bool(spec.get("suspend"))
        or _state(conditions, "RayClusterSuspending") is True
        or _state(conditions, "RayClusterSuspended") is True,
        "marker": _moment(conditions, "RayClusterSuspended"),
        "tolerant": _tolerant(annotations, spec),
    }


def _rayjob(annotations: Object, spec: Object, status: Object) -> dict[str, Any]:
    cluster_spec: Object = spec.get("rayClusterSpec") or {}
    deployment = str(status.get("jobDeploymentStatus") or "")
    job = str(status.get("jobStatus") or "")
    ended: Outcome | None = None
    if deployment == "Complete":
        ended = Outcome.SUCCEEDED if job == "SUCCEEDED" else Outcome.FAILED
    elif deployment in ("Failed", "ValidationFailed"):
        ended = Outcome.FAILED
    words = [deployment, job, str(status.get("reason") or ""), str(status.get("message") or "")]
    return {
        **_cluster_conditions(status.get("rayClusterStatus") or {}),
        "suspended": bool(spec.get("suspend")) or deployment in ("Suspending", "Suspended"),
        # A resume and a retry both come with a new cluster.
        "marker": str(status.get("rayClusterName") or ""),
        "settling": deployment in _RAYJOB_SETTLING,
        "tolerant": _tolerant(annotations, cluster_spec),
        "ended": ended,
        "end_reason": " ".join(word for word in words if word),
        "frees_itself": bool(spec.get("shutdownAfterJobFinishes")),
    }


def _jobset(_annotations: Object, spec: Object, status: Object) -> dict[str, Any]:
    conditions = _conditions(status)
    terminal = str(status.get("terminalState") or "")
    ended: Outcome | None = None
    if terminal == "Completed" or _state(conditions, "Completed"):
        ended = Outcome.SUCCEEDED
    elif terminal == "Failed" or _state(conditions, "Failed"):
        ended = Outcome.FAILED
    wanted = {job["name"]: int(job.get("replicas", 1)) for job in spec.get("replicatedJobs") or []}
    there = {
        each["name"]: int(each.get("ready", 0)) + int(each.get("succeeded", 0))
        for each in status.get("replicatedJobsStatus") or []
    }
    end = conditions.get("Failed" if ended is Outcome.FAILED else "Completed")
    return {
        "suspended": bool(spec.get("suspend")) or _state(conditions, "Suspended") is True,
        "marker": f"{_moment(conditions, 'Suspended')}#{status.get('restarts', 0)}",
        "started": bool(wanted) and all(there.get(name, 0) >= n for name, n in wanted.items()),
        # Its own failure policy starts all of it again; it says Failed when it gives up.
        "tolerant": int((spec.get("failurePolicy") or {}).get("maxRestarts") or 0) > 0,
        "ended": ended,
        "end_reason": _words(end) or terminal,
        "frees_itself": True,
    }


def _job(_annotations: Object, spec: Object, status: Object) -> dict[str, Any]:
    conditions = _conditions(status)
    ended: Outcome | None = None
    if _state(conditions, "Complete"):
        ended = Outcome.SUCCEEDED
    elif _state(conditions, "Failed"):
        ended = Outcome.FAILED
    end = conditions.get("Failed" if ended is Outcome.FAILED else "Complete")
    # `active` counts Pending pods too, which may never be scheduled. `ready` is there since
    # Kubernetes 1.24; where it is not, nothing better is known.
    running = status.get("ready", status.get("active"))
    return {
        "suspended": bool(spec.get("suspend")),
        "marker": _moment(conditions, "Suspended"),
        "started": int(running or 0) > 0,
        "ended": ended,
        "end_reason": _words(end),
        "frees_itself": True,
    }


def head_selector(obj: Object, head_job: str) -> str | None:
    """Return the labels of an object's head pod; None when it has none, or none yet.

    Args:
        obj: The object.
        head_job: The replicatedJob of a JobSet whose pod is the head; empty for none.
    """
    kind, name = obj.get("kind"), str((obj.get("metadata") or {}).get("name", ""))
    if kind == "RayJob":
        name = str((obj.get("status") or {}).get("rayClusterName") or "")
    if kind in ("RayCluster", "RayJob"):
        return f"ray.io/cluster={name},ray.io/node-type=head" if name else None
    if kind == "JobSet" and head_job:
        return f"{JOBSET_LABEL}={name},jobset.sigs.k8s.io/replicatedjob-name={head_job}"
    return None


def matches(selector: str, labels: Object) -> bool:
    """Whether labels have all the values of a selector of the form `a=b,c=d`."""
    wanted = dict(part.split("=", 1) for part in selector.split(","))
    return all(labels.get(key) == value for key, value in wanted.items())


def head_facts(pods: Iterable[Object]) -> HeadFacts | Absent:
    """Return what the head pod says of itself; of several (one is being replaced) the newest."""
    found = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    if not found:
        return ABSENT
    pod = found[-1]
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    status: Object = pod.get("status") or {}
    containers = spec.get("containers") or [{}]
    # Ray's container is the first one by KubeRay's rule; sidecars may restart as they like.
    ray = str(containers[0].get("name", ""))
    statuses = {str(each.get("name")): each for each in status.get("containerStatuses") or []}
    container: Object = statuses.get(ray) or {}
    terminated = (container.get("state") or {}).get("terminated") or (
        container.get("lastState") or {}
    ).get("terminated")
    waiting: Object = (container.get("state") or {}).get("waiting") or {}
    conditions = _conditions(status)
    ready = conditions.get("Ready")
    taken = [_words(conditions[name]) for name in _TARGETED if _state(conditions, name)]
    words = [
        *taken,
        str(status.get("reason") or ""),
        str(status.get("message") or ""),
        str(waiting.get("reason") or ""),
        f"{terminated.get('reason')}, exit code {terminated.get('exitCode')}" if terminated else "",
        str((ready or {}).get("reason") or ""),
    ]
    return HeadFacts(
        uid=str(metadata.get("uid", "")),
        name=str(metadata.get("name", "")),
        restarts=int(container.get("restartCount") or 0),
        phase=str(status.get("phase") or "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        ready=(ready or {}).get("status") == "True",
        taken=bool(taken),
        reason="; ".join(word for word in words if word),
    )
