"""How a run ended, read from its RayJob and its pods. Pure: objects in, verdict out.

Source: KubeRay 1.6 `RayJobStatus` (`jobDeploymentStatus`, `jobStatus`, `reason`,
`message`) and the pod's `containerStatuses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]

#: Waiting reasons that no amount of waiting mends; each with what to do.
_HOPELESS_WAITING = {
    "ErrImageNeverPull": "load the image (`make images-load`) or correct its name",
    "ErrImagePull": "load the image (`make images-load`) or correct its name",
    "ImagePullBackOff": "load the image (`make images-load`) or correct its name",
    "InvalidImageName": "correct the image's name in kustomize/components/images",
    "CreateContainerConfigError": "read the message: a Secret, ConfigMap or user id is wrong",
}
_EXIT_CODE = re.compile(r"exit code:? (\d+)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run.

    Attributes:
        succeeded: Whether the training command ended with code 0.
        exit_code: The command's own exit code where it is known, else 1.
        reason: One word, such as `AppFailed` or `ImagePullBackOff`.
        message: A sentence for a person.
        fix: What to do; "" after a success.
    """

    succeeded: bool
    exit_code: int
    reason: str
    message: str
    fix: str = ""


def state_of(rayjob: Object) -> str:
    """Return the run's state as a person reads it, such as `Running / PENDING`."""
    status = rayjob.get("status") or {}
    deployment = status.get("jobDeploymentStatus") or "New"
    job = status.get("jobStatus")
    return f"{deployment} / {job}" if job else str(deployment)


def verdict_of(rayjob: Object) -> Verdict | None:
    """Return the run's verdict, or None while it can still go either way."""
    status = rayjob.get("status") or {}
    deployment, job = status.get("jobDeploymentStatus"), status.get("jobStatus")
    if (rayjob.get("metadata") or {}).get("deletionTimestamp") and deployment != "Complete":
        return Verdict(
            succeeded=False, exit_code=1, reason="Deleted",
            message="the RayJob is being deleted before it ended",
            fix="see who deleted it: kubectl get events",
        )  # fmt: skip
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
        fix="read the collected logs",
    )


def hopeless_pod(pods: Iterable[Object]) -> Verdict | None:
    """Return a verdict when a pod waits for something that will never come."""
    for pod in pods:
        status = pod.get("status") or {}
        containers = [
            *(status.get("initContainerStatuses") or []),
            *(status.get("containerStatuses") or []),
        ]
        for container in containers:
            waiting = (container.get("state") or {}).get("waiting") or {}
            reason = waiting.get("reason")
            if reason in _HOPELESS_WAITING:
                name = pod["metadata"]["name"]
                return Verdict(
                    succeeded=False,
                    exit_code=1,
                    reason=reason,
                    message=f"pod {name}, container {container['name']}, image "
                    f"{container.get('image')}: {waiting.get('message') or reason}",
                    fix=_HOPELESS_WAITING[reason],
                )
    return None


def pending_reasons(pods: Iterable[Object]) -> list[str]:
    """Return, for each pod that cannot be placed, the scheduler's own words."""
    found = []
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                words = condition.get("message") or condition.get("reason") or "no reason given"
                found.append(f"{pod['metadata']['name']}: {words}")
    return found
