"""What Kueue has made of rehearsed runs: whether each is one group, and when it was let in. Pure.

Read from its Workloads, whose conditions have whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from tandem.errors import Problem
from tandem.figures import Figure

Object = dict[str, Any]

#: What `kubectl get` calls them.
WORKLOADS = "workloads.kueue.x-k8s.io"
_ADMITTED, _READY = "Admitted", "PodsReady"


@dataclass(frozen=True, slots=True)
class Admission:
    """When a run was let in, and when all of its pods were ready."""

    admitted: datetime
    ready: datetime


def _conditions(workload: Object) -> dict[str, datetime]:
    """Return since when each condition that holds has held."""
    return {
        each["type"]: datetime.fromisoformat(each["lastTransitionTime"])
        for each in (workload.get("status") or {}).get("conditions") or []
        if each["status"] == "True"
    }


def _is_of(workload: Object, run_id: str) -> bool:
    owners = workload["metadata"].get("ownerReferences") or []
    return any(owner["name"].endswith(f"-{run_id}") for owner in owners)


def faults_of(workloads: Iterable[Object], run_ids: Iterable[str], pods: int) -> list[Problem]:
    """Return why the runs are not one group each, with all of its pods, that was let in.

    Args:
        workloads: Kueue's, as the API server has them while all runs run.
        run_ids: The runs.
        pods: How many each has.
    """
    listed = list(workloads)
    problems = []
    for run_id in run_ids:
        groups = [each for each in listed if _is_of(each, run_id)]
        sizes = [sum(pod_set["count"] for pod_set in each["spec"]["podSets"]) for each in groups]
        if sizes != [pods]:
            said = " and ".join(map(str, sizes)) or "none"
            problems.append(
                Problem(
                    f"run {run_id} is not one Workload of {pods} pods, but {len(sizes)} of {said}",
                    f"kubectl get {WORKLOADS} -n tandem",
                )
            )
        elif missing := {_ADMITTED, _READY} - _conditions(groups[0]).keys():
            problems.append(
                Problem(f"run {run_id} runs, and its Workload is not {' and '.join(missing)}",
                        f"kubectl describe {WORKLOADS} -n tandem {groups[0]['metadata']['name']}")
            )  # fmt: skip
    return problems[:5]


def admissions_of(workloads: Iterable[Object], run_ids: Iterable[str]) -> list[Admission]:
    """Return when each run was let in, the first one first; those of `faults_of` must be none."""
    ids = list(run_ids)
    held = [_conditions(each) for each in workloads if any(_is_of(each, one) for one in ids)]
    found = [Admission(each[_ADMITTED], each[_READY]) for each in held]
    return sorted(found, key=lambda each: each.admitted)


def most_at_once(admissions: Sequence[Admission]) -> int:
    """Return how many runs there were at most that had been let in and were not ready."""
    return max(
        sum(other is each or other.admitted <= each.admitted < other.ready for other in admissions)
        for each in admissions
    )


def figures_of(admissions: Sequence[Admission], applied: float) -> list[Figure]:
    """Return what is told of admission.

    Args:
        admissions: Of all runs.
        applied: When the first one was applied, as `time.time` counts.
    """
    last = max(each.admitted for each in admissions).timestamp()
    ready = median((each.ready - each.admitted).total_seconds() for each in admissions)
    return [
        Figure("first apply to the last run admitted", last - applied),
        Figure("a run admitted to its pods ready, median (whole seconds)", ready),
        Figure("most runs at once admitted and not ready", most_at_once(admissions), unit=""),
    ]
