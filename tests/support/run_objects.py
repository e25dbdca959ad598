"""Objects of a run as the API server gives them, as bare as they can be."""

from __future__ import annotations

from typing import Any

from peer_watcher.convert import RUN_ID_LABEL
from tandem.run.shapes import ROLE_LABEL

Object = dict[str, Any]

RUN_ID = "a7"


def labels(role: str, **more: str) -> dict[str, str]:
    found = {RUN_ID_LABEL: RUN_ID, **more}
    if role == "watcher":
        return {**found, "app.kubernetes.io/name": "peer-watcher"}
    return {**found, ROLE_LABEL: role}


def meta(name: str, role: str, **more: Any) -> Object:
    made = {"name": name, "namespace": "tandem", "uid": f"uid-{name}", "labels": labels(role),
            "creationTimestamp": "2026-12-02T10:00:00Z"}  # fmt: skip
    return {**made, **more}


def raycluster(name: str, role: str, workers: int = 0, **more: Any) -> Object:
    groups = [{"groupName": "workers", "replicas": workers}] if workers else []
    template = {"metadata": {"labels": labels(role)}}
    spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}
    return {"kind": "RayCluster", "metadata": meta(name, role, **more), "spec": spec, "status": {}}


def job(name: str = "driver-a7", role: str = "driver", ended: str = "", **more: Any) -> Object:
    conditions = [{"type": ended, "status": "True", "reason": "BackoffLimitExceeded"}]
    status: Object = {"conditions": conditions} if ended else {"active": 1}
    return {"kind": "Job", "metadata": meta(name, role, **more), "spec": {}, "status": status}


def jobset(name: str = "run-a7", ended: str = "", **more: Any) -> Object:
    def replicated(job_name: str, role: str, parallelism: int = 1) -> Object:
        pod = {"metadata": {"labels": labels(role)}}
        spec = {"parallelism": parallelism, "template": pod}
        return {"name": job_name, "replicas": 1, "template": {"spec": spec}}

    jobs = [replicated("rl-head", "rl"), replicated("rl-workers", "rl", 2),
            replicated("driver", "driver")]  # fmt: skip
    status = {"conditions": [{"type": ended, "status": "True"}]} if ended else {}
    metadata = meta(name, "rl", **more)
    return {"kind": "JobSet", "metadata": metadata, "spec": {"replicatedJobs": jobs},
            "status": status}  # fmt: skip


def pod(
    role: str, node_type: str = "", *, name: str = "", phase: str = "Running", ready: bool = True,
    exit_code: int | None = None, words: str = "", waiting: str = "", **more: Any,
) -> Object:  # fmt: skip
    metadata = meta(name or f"{role}-{node_type or 'pod'}", role, **more)
    if node_type:
        metadata["labels"]["ray.io/node-type"] = node_type
    container: Object = {"name": "driver" if role == "driver" else "ray", "image": "x",
                         "state": {"running": {}}, "restartCount": 0}  # fmt: skip
    if exit_code is not None:
        container["state"] = {"terminated": {"exitCode": exit_code}}
    if waiting:
        container["state"] = {"waiting": {"reason": waiting, "message": "no"}}
    conditions = [{"type": "Ready", "status": str(ready and phase == "Running")}]
    if words:
        conditions.append({"type": "PodScheduled", "status": "False", "message": words})
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
    spec = {} if words else {"nodeName": "node"}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
