"""End a run before its time, and take away what ended runs have left."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from peer_watcher.convert import RUN_ID_LABEL
from tandem.console import console
from tandem.errors import Problem, UserError
from tandem.paths import ARTIFACTS
from tandem.run.collect import collect_logs, collect_results, keep_output, write_summary
from tandem.run.identity import forget, variant_of
from tandem.run.kube import kubectl
from tandem.run.remove import belongings_of, is_young, remove_all, things_of
from tandem.run.shapes import Run, labels_of, pods_in, run_of, workloads_of
from tandem.run.status import status_of, top_in
from tandem.run.verdict import verdict_of


def stop(namespace: str, run_id: str) -> bool:
    """End a run, keep its logs, and remove everything of it.

    Returns:
        Whether it was still going.

    Raises:
        UserError: There is no such run, or something of it would not go.
    """
    things = things_of(namespace, run_id)
    if not things:
        raise UserError(
            Problem(
                f"there is no run {run_id} in namespace {namespace}",
                "make status lists those that there are",
            )
        )
    top, pods = top_in(things), pods_in(things)
    going = top is None or verdict_of(top, pods) is None
    if top and going:
        run = run_of(top)
        folder = ARTIFACTS / run_id
        with console.phase(f"keep what run {run_id} has said"):
            keep_output(folder / "logs", pods)
            collect_logs(folder / "logs", run)
            collect_results(folder, run)
        _tell(run)
        write_summary(folder, {
            "run_id": run_id, "variant": variant_of(run_id), "succeeded": False, "exit_code": 1,
            "reason": "RunStopped", "message": "stopped by make stop", "artifacts": str(folder),
        })  # fmt: skip
    with console.phase(f"remove run {run_id}"):
        remove_all(namespace, run_id)
    return going


def _tell(run: Run) -> None:
    """Write an Event that says that somebody wanted this end; a run is stopped without, too."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{run.name}.stopped-{run.uid}",
            "namespace": run.namespace,
            "labels": {RUN_ID_LABEL: run.run_id},
        },
        "eventTime": now,
        "reportingController": "tandem.dev/runs",
        "reportingInstance": "make-stop",
        "action": "Stop",
        "reason": "RunStopped",
        "note": "stopped by make stop",
        "type": "Normal",
        "regarding": {
            "apiVersion": run.top.api_version,
            "kind": run.top.kind,
            "name": run.name,
            "namespace": run.namespace,
            "uid": run.uid,
        },
    }
    try:
        kubectl("apply", "-f", "-", stdin=json.dumps(event))
    except UserError as error:
        console.warn(f"no Event says that run {run.run_id} was stopped: {error}")


def clean(namespace: str, run_id: str = "") -> list[str]:
    """Remove what an ended run has left; without an id, what all ended ones have.

    Results and logs in artifacts/ stay.

    Returns:
        The ids of the runs that were cleaned.

    Raises:
        UserError: The run goes on, or something would not go.
    """
    if run_id and not is_over(namespace, run_id):
        raise UserError(
            Problem(f"run {run_id} is still going", f"end it: make stop RUN_ID={run_id}")
        )
    everything = [*things_of(namespace), *belongings_of(namespace)]
    known = {labels_of(thing)[RUN_ID_LABEL] for thing in everything}
    cleaned = []
    for each in [run_id] if run_id else sorted(known):
        # Looked at when its turn comes: it may have been started anew meanwhile.
        if is_over(namespace, each):
            with console.phase(f"clean run {each}"):
                remove_all(namespace, each)
                forget(each)
            cleaned.append(each)
    return cleaned


def is_over(namespace: str, run_id: str) -> bool:
    """Return whether nothing more comes of a run: it has ended, or only leftovers are there."""
    things = things_of(namespace, run_id)
    if workloads_of(things):
        status = status_of(run_id, things, None, [])
        return status is not None and status.over
    return not is_young([*things, *belongings_of(namespace, run_id)])
