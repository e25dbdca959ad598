"""Apply a variant as a fresh run: refuse what would cross another run or can never start."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.render import OVERLAYS, render_variant
from tandem.run.collect import pods_of
from tandem.run.follow import RunName
from tandem.run.kube import asker, get, kubectl, require_cluster, the_driver, the_rayjob
from tandem.run.needs import lacks, needs_of
from tandem.run.verdict import state_of, verdict_of, waits_of

#: A finished RayJob with its pods is gone well within this.
_DELETE_TIMEOUT_SECONDS = 120
#: Where the training command writes on the head pod (kustomize/components/smoke).
RESULTS = "/artifacts/run"


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was applied; `deadline_seconds` is the RayJob's own."""

    run: RunName
    deadline_seconds: float


def images_of(objects: list[dict[str, Any]]) -> set[str]:
    """Return every container image that the objects name, at any depth."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            image = node.get("image")
            if isinstance(image, str) and "name" in node:
                found.add(image)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(objects)
    return found


def missing_images(objects: list[dict[str, Any]], present: set[str]) -> list[Problem]:
    """Return a problem for each locally built image that no node holds.

    Only names below `localhost/` are looked at: everything else can be pulled.
    """
    wanted = sorted(i for i in images_of(objects) if i.startswith("localhost/"))
    return [
        Problem(
            f"image {image} is not on the node",
            "make images-load, or correct the name in kustomize/components/images",
        )
        for image in wanted
        if image not in present
    ]


def node_images() -> set[str]:
    """Return the names of all images on the cluster's nodes.

    Source: Node status `images`; the kubelet reports every image when
    `nodeStatusMaxImages` is -1 (the host provider sets that).
    """
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return {
        name
        for node in nodes
        for image in node["status"].get("images") or []
        for name in image.get("names") or []
    }


def make_room(namespace: str, name: str) -> None:
    """Delete a former run of this name if it has ended or cannot succeed; refuse if it can."""
    former = get("rayjobs.ray.io", namespace, name=name)
    if former is None:
        return
    why = state_of(former)
    if verdict_of(former) is None:
        # Whoever followed it may be gone, and it would wait to its deadline.
        cluster = str((former.get("status") or {}).get("rayClusterName") or "")
        hopeless = [w for w in waits_of(pods_of(namespace, cluster)) if w.patience == 0]
        if not hopeless:
            raise UserError(
                Problem(
                    f"run {name} is still going ({why})",
                    f"wait for it, or end it: kubectl delete rayjob {name} -n {namespace}",
                )
            )
        why = f"it could no longer succeed: {hopeless[0].verdict.message}"
    console.note(f"removing the former run {name} ({why})")
    kubectl(
        "delete", "rayjob", name, "-n", namespace, f"--timeout={_DELETE_TIMEOUT_SECONDS}s",
        timeout=_DELETE_TIMEOUT_SECONDS + 10,
    )  # fmt: skip


def _require_all(objects: list[dict[str, Any]]) -> None:
    """Refuse objects that this cluster could never run, before any is applied."""
    require_cluster()
    problems = [*lacks(needs_of(objects), asker()), *missing_images(objects, node_images())]
    if problems:
        raise UserError(problems)


def has_ended(job: dict[str, Any]) -> bool:
    """Return whether a Job is complete or has failed."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def start_driver(variant: str) -> tuple[str, str]:
    """Apply a variant whose driver is a Job, and return the Job's namespace and name.

    What an ended run of these names has left (its Job with the verdict) makes room.

    Raises:
        UserError: The variant is unknown or has no such Job, the cluster lacks something that
            it needs, or a run of these names goes on.
    """
    objects = render_variant(variant)
    driver = the_driver(objects, variant)
    name, namespace = driver["metadata"]["name"], driver["metadata"]["namespace"]
    _require_all(objects)
    former = get("jobs.batch", namespace, name=name)
    # The sides of an ended run go a little later than its Job ends.
    there = [
        f"RayCluster {obj['metadata']['name']}"
        for obj in objects
        if obj["kind"] == "RayCluster"
        and get("rayclusters.ray.io", namespace, name=obj["metadata"]["name"])
    ]
    if former and not has_ended(former):
        there.append(f"Job {name}")
    if there:
        raise UserError(
            Problem(
                f"a run of {variant} is still there ({', '.join(there)})",
                f"wait for its end, or end it: make undeploy VARIANT={variant}",
            )
        )
    if former:
        console.note(f"removing what the former run has left: Job {name}")
        remove(variant)
    kubectl("apply", "-k", OVERLAYS / variant, timeout=60)
    return namespace, name


def remove(variant: str) -> None:
    """Delete everything of a variant, and wait until it is gone."""
    kubectl(
        "delete", "-k", OVERLAYS / variant, "--ignore-not-found", "--cascade=foreground",
        f"--timeout={_DELETE_TIMEOUT_SECONDS}s", timeout=_DELETE_TIMEOUT_SECONDS + 10,
    )  # fmt: skip


def start(variant: str) -> Started:
    """Apply a variant and return the run.

    Raises:
        UserError: The variant is unknown, the cluster lacks something that it needs, or a
            run of that name goes on.
    """
    objects = render_variant(variant)
    rayjob = the_rayjob(objects, variant)
    name, namespace = rayjob["metadata"]["name"], rayjob["metadata"]["namespace"]
    _require_all(objects)
    make_room(namespace, name)
    started = time.monotonic()
    kubectl("apply", "-k", OVERLAYS / variant, timeout=60)
    applied = get("rayjobs.ray.io", namespace, name=name)
    if applied is None:
        raise UserError(
            Problem(
                f"run {name} vanished {time.monotonic() - started:.0f} s after it was applied",
                f"see who deleted it: kubectl get events -n {namespace}",
            ),
            ExitCode.FAILURE,
        )
    deadline = float(rayjob["spec"].get("activeDeadlineSeconds") or 3600)
    metrics = f"{RESULTS}/metrics.jsonl"
    run = RunName(namespace, name, str(applied["metadata"]["uid"]), metrics)
    return Started(run, deadline)
