"""A run in a queue of Kueue's: the component that a variant gets, and what only a run knows.

A RayJob or a JobSet is let in whole by itself. Two RayClusters and a Job are one group of pods
only if all of them say its name and how many they are (component scheduler-kueue/rayclusters),
and both depend on the run. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tandem.errors import ExitCode, Problem, UserError
from tandem.policy import (
    KAI,
    KUEUE_COUNT,
    KUEUE_GROUP,
    KUEUE_PRIORITY,
    KUEUE_QUEUE,
    members_of,
    name_of,
    pods_of,
)
from tandem.run.shapes import labels_of, workloads_of
from tandem.yamls import dump
from tandem_common.kube.resources import DEPLOYMENTS, JOBS, JOBSETS, RAYCLUSTERS, RAYJOBS

Object = dict[str, Any]

#: What `SCHEDULER` may be; without it a variant keeps its own.
KUEUE = "kueue"
SCHEDULERS = (KUEUE,)
_WHOLE = (RAYJOBS.kind, JOBSETS.kind)
_GROUPED = (RAYCLUSTERS.kind, JOBS.kind)


def component_of(objects: Iterable[Object], variant: str) -> str:
    """Return the component that puts a variant into a queue of Kueue's.

    Raises:
        UserError: The variant is KAI's, or has a pool.
    """
    listed = list(objects)
    pools = [name_of(obj) for obj in listed if obj["kind"] == DEPLOYMENTS.kind]
    if pools:
        raise UserError(
            Problem(
                f"variant {variant} has a pool ({', '.join(pools)}): Kueue would neither hold back"
                " nor count its pods",
                "run it without (SCHEDULER=), or take a variant without a pool",
            ),
            ExitCode.USAGE,
        )
    by_kai = any(pod.spec.get("schedulerName") == KAI for obj in listed for pod in pods_of(obj))
    if by_kai or any(obj["kind"] == "PodGroup" for obj in listed):
        raise UserError(
            Problem(
                f"variant {variant} is for {KAI}: its labels and its PodGroup would stay",
                f"in kustomize/overlays/{variant}, put components/scheduler-kueue in the place of"
                " gang-kai (with rayclusters behind it where that has it)",
            ),
            ExitCode.USAGE,
        )
    whole = any(obj["kind"] in _WHOLE for obj in workloads_of(listed))
    return "scheduler-kueue" if whole else "scheduler-kueue/rayclusters"


def has_group(objects: Iterable[Object]) -> bool:
    """Return whether pods of a variant say that they are in a group already."""
    return any(
        KUEUE_GROUP in labels_of({"metadata": pod.metadata})
        for obj in objects
        for pod in pods_of(obj)
    )


def _templates(obj: Object) -> Iterator[str]:
    """Yield where the metadata of an object's pods is."""
    if obj["kind"] == JOBS.kind:
        yield "/spec/template/metadata"
        return
    yield "/spec/headGroupSpec/template/metadata"
    for at in range(len(obj["spec"].get("workerGroupSpecs") or [])):
        yield f"/spec/workerGroupSpecs/{at}/template/metadata"


def _set(place: str, field: str, key: str, value: str) -> Object:
    return {"op": "add", "path": f"{place}/{field}/{key.replace('/', '~1')}", "value": value}


def patches_of(
    objects: Iterable[Object], *, group: str = "", queue: str = ""
) -> list[dict[str, Any]]:
    """Return the patches that say a run's queue and its group.

    Args:
        objects: What the variant renders to.
        group: Name of the group of pods; "" where the run is one object.
        queue: Name of the queue; "" leaves the component's.
    """
    workloads = workloads_of(objects)
    members = [obj for obj in workloads if group and obj["kind"] in _GROUPED]
    total = sum(count for obj in members for _, count in members_of(obj))
    queued = [(KUEUE_QUEUE, queue), (KUEUE_PRIORITY, queue)] if queue else []
    found = []
    for obj in workloads:
        if obj in members:
            places = list(_templates(obj))
            labels = [(KUEUE_GROUP, group), *queued]
            lines = [_set(place, "annotations", KUEUE_COUNT, str(total)) for place in places]
        elif obj["kind"] in _WHOLE and not group:
            places, labels, lines = ["/metadata"], queued, []
        else:
            continue
        lines += [_set(place, "labels", *label) for place in places for label in labels]
        if lines:
            found.append({
                "target": {"kind": obj["kind"], "name": obj["metadata"]["name"]},
                "patch": dump(lines),
            })  # fmt: skip
    return found
