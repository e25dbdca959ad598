"""How a run ended, read from its top object and its pods. Pure: objects in, verdict out.

Sources: KubeRay 1.6 `RayJobStatus` (`jobDeploymentStatus`, `jobStatus`, `reason`, `message`);
conditions of JobSet 0.12 (`Completed`, `Failed`) and of Jobs (`Complete`, `Failed`); the
watchers' annotation; the pod's `containerStatuses`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peer_watcher.convert import VERDICT_ANNOTATION
from peer_watcher.facts import Outcome
from peer_watcher.facts import Verdict as WatcherVerdict
from tandem.policy import GROUP_ANNOTATION
from tandem.run.shapes import DRIVER, role_of
from tandem_common.kube.resources import RAYJOBS

Object = Mapping[str, Any]

_IMAGE_FIX = "load the image (`make images-load`) or correct its name"
#: Waiting reasons of a container that seldom mend themselves; each with what to do.
_WAITING = {
    "ErrImageNeverPull": _IMAGE_FIX,
    "ErrImagePull": _IMAGE_FIX,
    "ImagePullBackOff": _IMAGE_FIX,
    "InvalidImageName": "correct the image's name in kustomize/components/images",
    "CreateContainerConfigError": "read the message: a Secret, ConfigMap or user id is wrong",
}
#: Those of them that never do.
_NEVER = frozenset({"ErrImageNeverPull", "InvalidImageName"})
#: Words of a registry that answered, and said no; a registry out of reach may come back.
_REFUSED = re.compile(r"not found|manifest unknown|unauthorized|denied|forbidden|authorization")
#: No registry has these names: what is not on the node cannot be pulled.
LOCAL_IMAGES = "localhost/"
#: A doubtful wait is told of after this: a Secret or a registry may come in a moment.
TELL_SECONDS = 10.0
#: How long a doubtful wait may last before the run is given up.
PATIENCE_SECONDS = 120.0
#: A scheduler says something of a pod within this; then it is told that none does …
UNSEEN_SECONDS = 30.0
#: … and after this the run is given up: a restart of a scheduler is over by then.
UNSEEN_PATIENCE_SECONDS = 180.0
_EXIT_CODE = re.compile(r"exit code:? (\d+)")
#: Exit codes of a program that was ended by SIGKILL or SIGTERM: not its own.
ENDED_FROM_OUTSIDE = (137, 143)
_READ_LOGS = "read the collected logs"
#: Reason of a run whose object went without a verdict on it.
DELETED = "Deleted"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run.

    Attributes:
        succeeded: Whether the training command ended with code 0.
        exit_code: The command's own exit code where it is known, else 1.
        reason: One word, such as `AppFailed` or `ImagePullBackOff`.
        message: A sentence for a person.
        fix: What to do; "" after a success.
        lingers: Whether the run is over in our eyes only: its RayJob waits on, and keeps
            its name and GPUs, until somebody ends it.
    """

    succeeded: bool
    exit_code: int
    reason: str
    message: str
    fix: str = ""
    lingers: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that a pod waits for, probably in vain.

    Attributes:
        key: The same for as long as it is the same wait.
        tell_after: Seconds after which a person is told.
        patience: Seconds after which it is the verdict; 0 when there is no doubt.
        verdict: What it means for the run.
    """

    key: str
    tell_after: float
    patience: float
    verdict: Verdict


def conditions_of(obj: Object) -> dict[str, Object]:
    """Return the conditions of an object that hold, by type."""
    found = (obj.get("status") or {}).get("conditions") or []
    return {str(each["type"]): each for each in found if each.get("status") == "True"}


def state_of(top: Object) -> str:
    """Return the run's state as a person reads it, such as `Running / PENDING`."""
    status = top.get("status") or {}
    if top["kind"] == RAYJOBS.kind:
        deployment = status.get("jobDeploymentStatus") or "New"
        job = status.get("jobStatus")
        return f"{deployment} / {job}" if job else str(deployment)
    ended = [name for name in ("Complete", "Completed", "Failed") if name in conditions_of(top)]
    if ended:
        return ended[0]
    if top["spec"].get("suspend"):
        return "Suspended"
    jobs = status.get("replicatedJobsStatus") or []
    running = status.get("active") or any(job.get("active") for job in jobs)
    return "Running" if running else "New"


def driver_exit_code(pods: Iterable[Object]) -> int | None:
    """Return the driver's own exit code; None when it goes on, is not there or was killed."""
    for pod in pods:
        if role_of(pod) != DRIVER:
            continue
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated")
            if container.get("name") == DRIVER and ended:
                code = int(ended.get("exitCode") or 0)
                return None if code in ENDED_FROM_OUTSIDE else code
    return None


def verdict_of(top: Object, pods: Iterable[Object] = ()) -> Verdict | None:
    """Return the run's verdict, or None while it can still go either way.

    Args:
        top: The object that stands for the run.
        pods: Its pods, for the driver's exit code.
    """
    code = driver_exit_code(pods) or 1
    if told := told_by_watcher(top, code):
        return told
    return _of_rayjob(top) if top["kind"] == RAYJOBS.kind else _of_jobs(top, code)


def told_by_watcher(obj: Object, code: int = 1) -> Verdict | None:
    """Return the verdict that a watcher has written on an object, None when there is none."""
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    found = WatcherVerdict.from_json(str(annotations.get(VERDICT_ANNOTATION, "")))
    if found is None:
        return None
    succeeded = found.outcome is Outcome.SUCCEEDED
    said = "; ".join(dict.fromkeys([found.reason, *found.evidence]))
    return Verdict(
        succeeded, 0 if succeeded else code, str(found.rule), said, "" if succeeded else _READ_LOGS
    )


def _deleted(top: Object) -> Verdict:
    return Verdict(
        succeeded=False, exit_code=1, reason=DELETED,
        message=f"the {top['kind']} is being deleted before it ended",
        fix="see who deleted it: kubectl get events",
    )  # fmt: skip


def _of_jobs(top: Object, code: int) -> Verdict | None:
    """Return the verdict of a JobSet, or of a driver Job."""
    holds = conditions_of(top)
    if {"Complete", "Completed"} & holds.keys():
        return Verdict(succeeded=True, exit_code=0, reason="Succeeded", message="the driver ended")
    if failed := holds.get("Failed"):
        said = str(failed.get("message") or "no message")
        return Verdict(
            succeeded=False, exit_code=code, reason=str(failed.get("reason") or "Failed"),
            message=said.strip(), fix=_READ_LOGS,
        )  # fmt: skip
    return _deleted(top) if top["metadata"].get("deletionTimestamp") else None


def _of_rayjob(rayjob: Object) -> Verdict | None:
    status = rayjob.get("status") or {}
    deployment, job = status.get("jobDeploymentStatus"), status.get("jobStatus")
    if (rayjob.get("metadata") or {}).get("deletionTimestamp") and deployment != "Complete":
        return _deleted(rayjob)
    # The deployment status is the one that is final; a jobStatus alone can still be
    # followed by a retry.
    if deployment == "Complete" and job == "SUCCEEDED":
        return Verdict(succeeded=True, exit_code=0, reason="Succeeded", message="job succeeded")
    if deployment not in ("Complete", "Failed"):
        return None
    message = str(status.get("message") or "no message")
    code = _EXIT_CODE.search(message)
    return Verdict(
        succeeded=False,
        exit_code=int(code[1]) if code and int(code[1]) else 1,
        reason=str(status.get("reason") or job or deployment),
        message=message.strip(),
        fix=_READ_LOGS,
    )


def waits_of(pods: Iterable[Object]) -> list[Wait]:
    """Return everything that keeps the pods from starting, the most certain first."""
    found: list[Wait] = []
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        found += _container_waits(pod)
        found += _unseen(pod)
    return sorted(found, key=lambda wait: wait.patience)


def _container_waits(pod: Object) -> Iterator[Wait]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or []:
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason = waiting.get("reason")
            if reason not in _WAITING:
                continue
            image, said = str(container.get("image")), str(waiting.get("message") or reason)
            pulls = _WAITING[reason] is _IMAGE_FIX
            certain = reason in _NEVER or (
                pulls and (image.startswith(LOCAL_IMAGES) or _REFUSED.search(said.lower()))
            )
            yield Wait(
                # The two reasons of a failing pull take turns.
                f"{name}/{container['name']}/{'image' if pulls else reason}",
                0.0 if certain else TELL_SECONDS,
                0.0 if certain else PATIENCE_SECONDS,
                _given_up(
                    reason,
                    f"pod {name}, container {container['name']}, image {image}: {said}",
                    _WAITING[reason],
                ),
            )


def _unseen(pod: Object) -> Iterator[Wait]:
    """Yield a wait for a pod that no scheduler has said a word about."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    scheduled = any(c.get("type") == "PodScheduled" for c in status.get("conditions") or [])
    if spec.get("nodeName") or scheduled or status.get("phase", "Pending") != "Pending":
        return
    name, scheduler = metadata["name"], spec.get("schedulerName", "default-scheduler")
    group = (metadata.get("annotations") or {}).get(GROUP_ANNOTATION)
    if group:
        # A gang waits for its last member or for quota; that may take as long as it likes.
        yield Wait(
            f"{name}/grouped", UNSEEN_SECONDS, math.inf,
            _given_up(
                "NotScheduled",
                f"pod {name}: {scheduler} has it in PodGroup {group} and has not placed it",
                f"kubectl describe podgroup {group}",
            ),
        )  # fmt: skip
        return
    yield Wait(
        f"{name}/unseen", UNSEEN_SECONDS, UNSEEN_PATIENCE_SECONDS,
        _given_up(
            "NoScheduler",
            f"pod {name}: no scheduler has taken it; it asks for {scheduler}",
            f"see whether {scheduler} runs (kubectl get pods -A), or take a variant with"
            " another scheduler",
        ),
    )  # fmt: skip


def _given_up(reason: str, message: str, fix: str) -> Verdict:
    return Verdict(
        succeeded=False, exit_code=1, reason=reason, message=message, fix=fix, lingers=True
    )


def unplaced(pods: Iterable[Object]) -> dict[str, str]:
    """Return, for each pod that cannot be placed, the scheduler's own words."""
    found = {}
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                words = condition.get("message") or condition.get("reason") or "no reason given"
                found[str(pod["metadata"]["name"])] = str(words)
    return found
