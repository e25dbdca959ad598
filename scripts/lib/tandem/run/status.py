"""How a run is, on one screen: phase of each role, endpoints, queue, age, verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from endpoint_registry.records import ERROR, object_name
from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import Problem, UserError
from tandem.paths import ARTIFACTS
from tandem.policy import KUEUE_QUEUE, QUEUE_LABEL
from tandem.run.identity import variant_of
from tandem.run.kube import get, kubectl
from tandem.run.phases import GroupState, states_of
from tandem.run.remove import things_of
from tandem.run.shapes import (
    NAME_LABEL,
    labels_of,
    made_by_nobody,
    pods_in,
    role_of,
    tops_of,
    workloads_of,
)
from tandem.run.verdict import DELETED, Verdict, told_by_watcher, verdict_of

Object = Mapping[str, Any]

#: Events that tell how a run ended, by the watchers and by `make stop`.
_VERDICT_EVENTS = ("RunStopped", "RunFailed", "RunSucceeded")
_WARNINGS = 3
_SECOND_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a run.

    Attributes:
        run_id: Its id.
        variant: The variant it was made of, "" when nobody knows.
        state: One of `pending`, `starting`, `running`, `ending`, `succeeded`, `failed`,
            `stopped`.
        since: When it began (RFC 3339), "" when nobody knows.
        groups: Its pods, by role and group.
        endpoints: What its registry holds.
        queue: Its queue, "" without one.
        verdict: How it ended.
        warnings: The last warnings that Kubernetes has about it.
    """

    run_id: str
    state: str
    variant: str = ""
    since: str = ""
    groups: tuple[GroupState, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    verdict: Verdict | None = None
    warnings: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ("succeeded", "failed", "stopped")


def top_in(things: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the object that stands for a run, of those that are there; None without one."""
    return next(iter(tops_of(made_by_nobody(workloads_of(things)))), None)


def told_by_event(events: Iterable[Object]) -> tuple[str, Verdict] | None:
    """Return state and verdict that Events tell of, the last one; None when none does."""
    told = [each for each in events if each.get("reason") in _VERDICT_EVENTS]
    if not told:
        return None
    last = max(told, key=_time_of)
    reason, said = str(last["reason"]), str(last.get("message") or last.get("note") or "")
    state = {"RunStopped": "stopped", "RunSucceeded": "succeeded"}.get(reason, "failed")
    good = state == "succeeded"
    return state, Verdict(good, 0 if good else 1, reason, said)


def _time_of(event: Object) -> str:
    times = (event.get("eventTime"), event.get("lastTimestamp"), event.get("firstTimestamp"))
    return str(next((each for each in times if each), ""))


def _state(states: Iterable[GroupState], *, deleting: bool) -> str:
    if deleting:
        return "ending"
    phases = [each.phase for each in states if each.group.role != "watcher"]
    if phases and all(phase in ("Running", "Succeeded") for phase in phases):
        return "running"
    waiting = all(phase in ("Pending", "No pods") for phase in phases)
    return "pending" if waiting else "starting"


def status_of(
    run_id: str,
    things: Iterable[dict[str, Any]],
    registry: Object | None,
    events: Iterable[Object],
    summary: Mapping[str, Any] | None = None,
) -> Status | None:
    """Return how a run is; None when nothing tells of it. Pure.

    Args:
        run_id: Its id.
        things: Its workloads and pods.
        registry: Its registry's ConfigMap.
        events: The namespace's Events.
        summary: What was written when somebody followed it to its end.
    """
    listed, seen = list(things), list(events)
    workloads = workloads_of(listed)
    pods = pods_in(listed)
    own = [each for each in seen if labels_of(each).get(RUN_ID_LABEL) == run_id]
    top = top_in(listed)
    verdict = verdict_of(top, pods) if top else None
    for each in workloads:
        verdict = verdict or told_by_watcher(each)
    told = told_by_event(own)
    state = ""
    if verdict and verdict.reason != DELETED:
        state = "succeeded" if verdict.succeeded else "failed"
    elif told and not workloads:
        state, verdict = told
    elif summary and not workloads:
        state = "succeeded" if summary.get("succeeded") else "failed"
        code = int(summary.get("exit_code") or 0)
        reason = str(summary.get("reason"))
        verdict = Verdict(state == "succeeded", code, reason, str(summary.get("message") or reason))
    elif not listed:
        return None
    if verdict and verdict.reason == DELETED:
        verdict = None
    # Of a pod that has ended there is nothing more to wait for.
    parents = made_by_nobody(workloads)
    groups = states_of([] if state else parents, pods)
    deleting = any(each["metadata"].get("deletionTimestamp") for each in parents)
    since = min((each["metadata"]["creationTimestamp"] for each in workloads), default="")
    labels: dict[str, str] = {}
    for each in parents:
        labels = {**labels_of(each), **labels}
    # Of a run that is over they say nothing any more; of a watcher they say little of the run.
    names = set() if state else {
        each["metadata"]["name"] for each in listed if role_of(each) != "watcher"
    }  # fmt: skip
    warnings = [
        f"{each['involvedObject']['kind']}/{each['involvedObject']['name']}: {each['reason']}:"
        f" {each.get('message', '')}"
        for each in sorted(seen, key=_time_of)
        if each.get("type") == "Warning"
        and each["involvedObject"].get("name") in names
        and each.get("reason") not in _VERDICT_EVENTS
    ]
    return Status(
        run_id=run_id,
        state=state or _state(groups, deleting=deleting),
        variant=labels.get(NAME_LABEL, "") or str((summary or {}).get("variant", "")),
        since=since,
        groups=tuple(groups),
        endpoints={} if registry is None else registry.get("data") or {},
        queue=_queue_of([*parents, *listed]),
        verdict=verdict,
        warnings=tuple(dict.fromkeys(warnings))[-_WARNINGS:],
    )


def _queue_of(things: Iterable[Mapping[str, Any]]) -> str:
    """Return the queue that a run names: KAI's on its objects, Kueue's on them or on its pods."""
    named = (labels_of(each).get(key) for each in things for key in (QUEUE_LABEL, KUEUE_QUEUE))
    return next((queue for queue in named if queue), "")


def summary_of(run_id: str) -> dict[str, Any] | None:
    """Return what artifacts/<run>/summary.json holds, None when there is none."""
    try:
        text = (ARTIFACTS / run_id / "summary.json").read_text(encoding="utf-8")
        loaded: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return None
    return loaded


def look(namespace: str, run_id: str) -> Status:
    """Return how a run is, by what the cluster and this checkout know.

    Raises:
        UserError: Neither knows such a run.
    """
    registry = get("configmaps", namespace, name=object_name(run_id))
    events = json.loads(kubectl("get", "events", "-n", namespace, "-o", "json"))["items"]
    things = things_of(namespace, run_id)
    found = status_of(run_id, things, registry, events, summary_of(run_id))
    if found is None:
        raise UserError(
            Problem(
                f"there is no run {run_id} in namespace {namespace}",
                "make status lists those that there are; make run starts one",
            )
        )
    return found


def look_at_all(namespace: str) -> list[Status]:
    """Return how every run of a namespace is, the newest first."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for thing in things_of(namespace):
        by_run.setdefault(labels_of(thing)[RUN_ID_LABEL], []).append(thing)
    found = [status_of(run_id, things, None, []) for run_id, things in by_run.items()]
    known = [each for each in found if each is not None]
    return sorted(known, key=lambda each: each.since, reverse=True)


def age_of(since: str, now: datetime | None = None) -> str:
    """Return how long ago a time (RFC 3339) was, such as `4m12s`; "" for none."""
    if not since:
        return ""
    left = max(0, int(((now or datetime.now(UTC)) - datetime.fromisoformat(since)).total_seconds()))
    parts = []
    for seconds, unit in _SECOND_UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def to_json(status: Status) -> dict[str, Any]:
    """Return a status as plain values."""
    verdict = status.verdict
    return {
        "run_id": status.run_id,
        "variant": variant_of(status.run_id) or status.variant,
        "state": status.state,
        "since": status.since,
        "queue": status.queue,
        "roles": [
            {
                "role": each.group.role,
                "group": each.group.name,
                "phase": each.phase,
                "ready": each.ready,
                "wanted": each.wanted,
                "why": each.why,
            }
            for each in status.groups
        ],
        "endpoints": dict(status.endpoints),
        "verdict": verdict
        and {
            "succeeded": verdict.succeeded,
            "exit_code": verdict.exit_code,
            "reason": verdict.reason,
            "message": verdict.message,
        },
        "warnings": list(status.warnings),
    }


_COLOURS = {
    "succeeded": "green", "running": "green", "Running": "green", "Succeeded": "green",
    "failed": "red", "stopped": "red", "Failed": "red",
}  # fmt: skip


def _painted(word: str) -> Text:
    return Text(word, style=_COLOURS.get(word, "yellow"))


def show(status: Status, out: Console) -> None:
    """Print a run's status for a person."""
    name = variant_of(status.run_id) or status.variant
    head = Text.assemble(
        ("run ", "bold"), (status.run_id, "bold"), "  ", name, "  ", _painted(status.state)
    )
    if status.since:
        head.append(f"  {age_of(status.since)} old", style="dim")
    if status.queue:
        head.append(f"  queue {status.queue}")
    out.print(head)
    if status.verdict:
        out.print(Text(f"verdict  {status.verdict.reason}: {status.verdict.message}"))
    if status.groups:
        table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
        for column in ("role", "phase", "ready", "why"):
            table.add_column(column, overflow="fold")
        for each in status.groups:
            ready = f"{each.ready}/{each.wanted}"
            table.add_row(str(each.group), _painted(each.phase), ready, each.why)
        out.print(table)
    for key, value in status.endpoints.items():
        style = "red" if key == ERROR else ""
        out.print(Text(f"endpoint {key} = {value}", style=style))
    for warning in status.warnings:
        out.print(Text(f"warning  {warning}", style="yellow"))


def show_all(found: Iterable[Status], out: Console) -> None:
    """Print a line for each run."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in ("run", "variant", "state", "age", "verdict"):
        table.add_column(column, overflow="fold")
    for each in found:
        said = each.verdict.reason if each.verdict else ""
        table.add_row(each.run_id, each.variant, _painted(each.state), age_of(each.since), said)
    out.print(table)
