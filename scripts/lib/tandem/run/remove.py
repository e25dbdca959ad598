"""Everything that belongs to a run, found by its label, and its removal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from endpoint_registry.records import object_name
from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import UserError
from tandem.run.kube import CannotTell, asker, kubectl
from tandem.run.shapes import BELONGINGS, NAME_LABEL, WATCHER, WORKLOADS, Run
from tandem_common.kube.resources import (
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    PODS,
    RAYCLUSTERS,
    Resource,
)

#: A side's pods get half a minute to end; the operators take their time beside it.
REMOVE_SECONDS = 180
#: What somebody has begun to start has a workload within this.
_CLAIM_SECONDS = 120
_WATCHERS = f"{NAME_LABEL}={WATCHER}"


def served(resources: tuple[Resource, ...]) -> list[Resource]:
    """Return those kinds that the cluster has; one that cannot be asked about counts as had."""
    ask = asker()
    found: dict[str, set[str] | None] = {}
    for api in {each.root for each in resources}:
        try:
            said = ask(api)
            found[api] = {each["name"] for each in (said or {}).get("resources", [])}
        except CannotTell:
            found[api] = None
    return [
        each for each in resources if (names := found[each.root]) is None or each.plural in names
    ]


def names_of(resources: tuple[Resource, ...]) -> str:
    """Return those kinds that the cluster has, as kubectl takes them."""
    return ",".join(each.group_resource for each in served(resources))


def things_of(namespace: str, run_id: str = "") -> list[dict[str, Any]]:
    """Return the workloads and pods of a run; without an id, those of all runs.

    Raises:
        UserError: The API server does not say.
    """
    return _labelled((*WORKLOADS, PODS), namespace, run_id)


def belongings_of(namespace: str, run_id: str = "") -> list[dict[str, Any]]:
    """Return what belongs to a run beside workloads and pods; without an id, that of all runs.

    Raises:
        UserError: The API server does not say.
    """
    return _labelled(BELONGINGS, namespace, run_id)


def _labelled(resources: tuple[Resource, ...], namespace: str, run_id: str) -> list[dict[str, Any]]:
    selector = f"{RUN_ID_LABEL}={run_id}" if run_id else RUN_ID_LABEL
    said = kubectl(
        "get", names_of(resources), "-n", namespace, f"--selector={selector}", "-o", "json",
        "--ignore-not-found",
    )  # fmt: skip
    return list(json.loads(said)["items"]) if said.strip() else []


def is_young(things: list[dict[str, Any]]) -> bool:
    """Return whether something was made just now: somebody may be starting a run."""
    made = [datetime.fromisoformat(thing["metadata"]["creationTimestamp"]) for thing in things]
    return any((datetime.now(UTC) - each).total_seconds() < _CLAIM_SECONDS for each in made)


def remove_all(namespace: str, run_id: str) -> None:
    """Delete everything of a run, and wait until it is gone; doing it again does no harm.

    The watchers go first: what a person ends is no failure that they should tell of.

    Raises:
        UserError: Something would not go.
    """
    selector = f"{RUN_ID_LABEL}={run_id}"
    _delete("jobs.batch,pods", namespace, f"{selector},{_WATCHERS}")
    _delete(names_of(WORKLOADS), namespace, selector)
    # What the operators make is theirs to delete; only its end is waited for.
    _gone("pods", namespace, selector)
    _delete(names_of(BELONGINGS), namespace, selector)
    _delete_registry(namespace, run_id)


def remove_leftovers(run: Run) -> None:
    """Delete everything of a run that has ended, but for the object that bears its verdict.

    The watchers end the run themselves; what is deleted here beside them is what they do not
    know of, and all of it where there is no watcher.

    Raises:
        UserError: Something would not go.
    """
    _delete("jobs.batch", run.namespace, f"{run.selector},{_WATCHERS}")
    if run.top == JOBS:
        # What a RayJob or a JobSet has made is theirs.
        _delete(RAYCLUSTERS.group_resource, run.namespace, run.selector)
    if run.top == JOBSETS:
        # It keeps the Service of its pods' names, which it makes without our labels.
        _delete_owned("services", run)
    # Pools: their owner may stay for the verdict, and what it owned with it.
    _delete(DEPLOYMENTS.group_resource, run.namespace, run.selector)
    _delete(names_of(BELONGINGS), run.namespace, run.selector)
    _delete_registry(run.namespace, run.run_id)


def _delete_owned(kind: str, run: Run) -> None:
    found = json.loads(kubectl("get", kind, "-n", run.namespace, "-o", "json"))["items"]
    names = [
        each["metadata"]["name"]
        for each in found
        if any(own["uid"] == run.uid for own in each["metadata"].get("ownerReferences", ()))
    ]
    if names:
        kubectl("delete", kind, *names, "-n", run.namespace, "--ignore-not-found")


def _delete_registry(namespace: str, run_id: str) -> None:
    """Delete the registry by its name: NeMo RL's own client makes it without our labels."""
    kubectl("delete", "configmap", object_name(run_id), "-n", namespace, "--ignore-not-found")


def _delete(kinds: str, namespace: str, selector: str) -> None:
    kubectl(
        "delete", kinds, "-n", namespace, f"--selector={selector}", "--ignore-not-found",
        "--cascade=foreground", f"--timeout={REMOVE_SECONDS}s", timeout=REMOVE_SECONDS + 10,
    )  # fmt: skip


def _gone(kinds: str, namespace: str, selector: str) -> None:
    try:
        kubectl(
            "wait", kinds, "-n", namespace, f"--selector={selector}", "--for=delete",
            f"--timeout={REMOVE_SECONDS}s", timeout=REMOVE_SECONDS + 10,
        )  # fmt: skip
    except UserError as error:
        if "no matching resources" not in str(error):
            raise
