"""Apply a variant as a fresh run: refuse what would cross another run or can never start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_watcher.convert import RUN_ID_LABEL
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.render import OVERLAYS, kustomize, render_variant, require_variant
from tandem.run.identity import (
    AS_THE_VARIANT_SAYS,
    Placing,
    drop_overlay,
    keep_overlay,
    write_overlay,
)
from tandem.run.kube import asker, get, kubectl, require_cluster
from tandem.run.needs import lacks, needs_of
from tandem.run.remove import REMOVE_SECONDS, belongings_of, is_young, remove_all, things_of
from tandem.run.shapes import (
    Run,
    deadline_of,
    labels_of,
    made_by_nobody,
    pods_in,
    resource_of,
    run_id_of,
    run_of,
    top_of,
    workloads_of,
)
from tandem.run.verdict import LOCAL_IMAGES, state_of, verdict_of, waits_of
from tandem.yamls import dump


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was applied; `deadline_seconds` is the cluster's own."""

    run: Run
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
    wanted = sorted(i for i in images_of(objects) if i.startswith(LOCAL_IMAGES))
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


def _require_all(objects: list[dict[str, Any]]) -> None:
    """Refuse objects that this cluster could never run, before any is applied."""
    require_cluster()
    problems = lacks(needs_of(objects), asker())
    if any(image.startswith(LOCAL_IMAGES) for image in images_of(objects)):
        problems += missing_images(objects, node_images())
    if problems:
        raise UserError(problems)


@dataclass(frozen=True, slots=True)
class Former:
    """What is there of a former run of the same id.

    Attributes:
        things: Every object and pod of it.
        going: Why it goes on by itself to its end or its deadline, "" when it does not.
        why: What became of it, for a person.
    """

    things: list[dict[str, Any]]
    going: str = ""
    why: str = ""


def judge_former(things: list[dict[str, Any]]) -> Former:
    """Return whether a former run makes room. Pure.

    It does when it has ended, is being deleted, or can no longer succeed: whoever followed
    it may be gone, and it would hold its GPUs to its deadline.
    """
    workloads = workloads_of(things)
    pods = pods_in(things)
    deleting = any(each["metadata"].get("deletionTimestamp") for each in workloads)
    why = "it is being deleted" if deleting else ""
    for each in workloads:
        if (verdict := verdict_of(each, pods)) is not None:
            why = f"{each['kind']} {each['metadata']['name']}: {verdict.reason}"
    if not workloads or why:
        return Former(things, why=why or "only leftovers")
    hopeless = [wait for wait in waits_of(pods) if wait.patience == 0]
    if hopeless:
        return Former(things, why=f"it could no longer succeed: {hopeless[0].verdict.message}")
    names = ", ".join(
        f"{each['kind']} {each['metadata']['name']} ({state_of(each)})"
        for each in made_by_nobody(workloads)
    )
    return Former(things, going=names)


def make_room(namespace: str, run_id: str) -> None:
    """Delete a former run of this id if it has ended or cannot succeed; refuse if it can.

    Raises:
        UserError: It goes on, or would not go.
    """
    former = judge_former(things_of(namespace, run_id) or belongings_of(namespace, run_id))
    if former.things and not workloads_of(former.things) and is_young(former.things):
        raise _being_started(run_id)
    if former.going:
        raise UserError(
            Problem(
                f"run {run_id} is still going: {former.going}",
                f"wait for it, end it (make stop RUN_ID={run_id}), or choose another RUN_ID",
            )
        )
    if former.things:
        console.note(f"removing what is left of the former run {run_id} ({former.why})")
        remove_all(namespace, run_id)


def _claim(objects: list[dict[str, Any]], run_id: str) -> None:
    """Create the first object that bears the run's id; of two starts at once only one can.

    Raises:
        UserError: Somebody else was first.
    """
    first = next(obj for obj in objects if labels_of(obj).get(RUN_ID_LABEL) == run_id)
    try:
        kubectl("create", "--save-config", "-f", "-", stdin=dump(first), timeout=60)
    except UserError as error:
        if "AlreadyExists" not in str(error):
            raise
        raise _being_started(run_id) from error


def _being_started(run_id: str) -> UserError:
    return UserError(
        Problem(
            f"run {run_id} is being started by somebody else",
            f"see it with make status RUN_ID={run_id}, or choose another RUN_ID; what a start has"
            f" left that broke off goes with make clean RUN_ID={run_id}",
        )
    )


def _start(folder: Path, variant: str, admitted: Callable[[], Path]) -> Started:
    objects = kustomize(folder)
    top = top_of(objects, variant)
    name, namespace = top["metadata"]["name"], top["metadata"]["namespace"]
    run_id = run_id_of(top)
    _require_all(objects)
    make_room(namespace, run_id)
    started = time.monotonic()
    _claim(objects, run_id)
    try:
        kubectl("apply", "-k", admitted(), timeout=60)
    except BaseException:
        # Nothing half-started: what was applied would wait for the rest.
        console.note(f"removing what was applied of run {run_id}")
        remove_all(namespace, run_id)
        raise
    applied = get(resource_of(top["kind"]).group_resource, namespace, name=name)
    if applied is None:
        raise UserError(
            Problem(
                f"run {run_id} vanished {time.monotonic() - started:.0f} s after it was applied",
                f"see who deleted it: kubectl get events -n {namespace}",
            ),
            ExitCode.FAILURE,
        )
    return Started(run_of(applied), deadline_of(top))


def start(variant: str, run_id: str = "", placing: Placing = AS_THE_VARIANT_SAYS) -> Started:
    """Apply a variant and return the run.

    Args:
        variant: Folder of kustomize/overlays.
        run_id: The run's id, in all of its names; the variant's own, fixed one by default.
        placing: Who places it; only for a run with an id of its own.

    Raises:
        UserError: The variant is unknown, the cluster lacks something that it needs, or a
            run of that id goes on.
    """
    require_variant(variant)
    if not run_id:
        return _start(OVERLAYS / variant, variant, lambda: OVERLAYS / variant)
    folder = write_overlay(variant, run_id, placing)
    try:
        return _start(folder, variant, lambda: keep_overlay(folder, run_id))
    finally:
        drop_overlay(folder)


def remove(variant: str) -> None:
    """Delete everything of a variant that was applied under its own, fixed id."""
    top = top_of(render_variant(variant), variant)
    remove_all(top["metadata"]["namespace"], run_id_of(top))
    kubectl(
        "delete", "-k", OVERLAYS / variant, "--ignore-not-found", "--cascade=foreground",
        f"--timeout={REMOVE_SECONDS}s", timeout=REMOVE_SECONDS + 10,
    )  # fmt: skip
