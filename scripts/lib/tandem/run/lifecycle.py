"""A run from its start to its end: applied, followed, kept, tidied up."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tandem.console import console
from tandem.errors import UserError
from tandem.run.collect import collect_logs, collect_results, write_summary
from tandem.run.end import end_lingering
from tandem.run.follow import follow
from tandem.run.kube import get
from tandem.run.metrics import first_and_last_reward, read_steps
from tandem.run.remove import remove_all, remove_leftovers, things_of
from tandem.run.shapes import Run, workloads_of
from tandem.run.start import Started, start
from tandem.run.status import told_by_event
from tandem.run.verdict import DELETED, Verdict
from tandem_common.kube.resources import RAYJOBS

#: Beyond the run's own deadline: time for the operator to say so.
_VERDICT_SLACK_SECONDS = 60
#: A side's pods get half a minute to end; until then they still say something.
_DRAIN_SECONDS = 60.0


@dataclass
class Outcome:
    """What came of a run, and where that is kept."""

    run: Run
    variant: str
    folder: Path
    verdict: Verdict
    #: Seconds from its start to what it came to, in order.
    marks: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        verdict = self.verdict
        return {
            "run_id": self.run.run_id,
            "variant": self.variant,
            "succeeded": verdict.succeeded,
            "exit_code": verdict.exit_code,
            "reason": verdict.reason,
            "message": verdict.message,
            "marks_seconds": self.marks,
            "reward_first_last": self.rewards,
            "artifacts": str(self.folder),
        }

    @property
    def rewards(self) -> tuple[float, float] | None:
        """Mean reward of the first and of the last steps; None without steps."""
        return first_and_last_reward(read_steps(self.folder / "metrics.jsonl"))


def carry_out(variant: str, run_id: str, folder: Path) -> Outcome:
    """Start a run, follow it to its verdict, keep what tells of it, and tidy up.

    Args:
        variant: Folder of kustomize/overlays.
        run_id: The run's id; "" for the variant's own.
        folder: Where its results and logs go.

    Raises:
        UserError: It was refused, or came to no verdict in time.
    """
    started = start(variant, run_id)
    console.note(f"applied {variant} as run {started.run.run_id}")
    return follow_to_the_end(started, variant, folder)


def set_aside(folder: Path) -> None:
    """Give the results of a former run of this id another name: two runs are never mixed."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    number = 1
    while (other := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(other)
    console.note(f"results of the former run {folder.name} are in {os.path.relpath(other)}")


def follow_to_the_end(started: Started, variant: str, folder: Path) -> Outcome:
    """Follow a run that is there to its verdict, keep what tells of it, and tidy up.

    Raises:
        UserError: It came to no verdict in time.
    """
    run, began = started.run, time.monotonic()
    marks: dict[str, float] = {}
    try:
        verdict = follow(
            run, timeout=started.deadline_seconds + _VERDICT_SLACK_SECONDS,
            keep=folder / "logs", drain=0.0 if run.top == RAYJOBS else _DRAIN_SECONDS, marks=marks,
        )  # fmt: skip
        verdict = _explained(run, verdict)
    finally:
        # A RayJob's pods live on for a short while after the verdict: keep what they hold now.
        collect_logs(folder / "logs", run)
        collect_results(folder, run)
    marks["over"] = round(time.monotonic() - began, 1)
    outcome = Outcome(run, variant, folder, verdict, marks)
    write_summary(folder, outcome.summary())
    _tidy(run, verdict, marks.get("verdict", 0.0))
    return outcome


def _explained(run: Run, verdict: Verdict) -> Verdict:
    """Return why a run was deleted, where an Event tells it, in place of that it was."""
    if verdict.reason != DELETED:
        return verdict
    try:
        events = get("events", run.namespace, selector=run.selector)
    except UserError:
        return verdict
    told = told_by_event((events or {}).get("items") or [])
    return told[1] if told and not told[1].succeeded else verdict


def is_taken_over(run: Run, things: Iterable[dict[str, Any]], lasted: float) -> bool:
    """Return whether another run has this id by now, whose objects must be left alone. Pure.

    Args:
        run: The run that has ended.
        things: What there is of its id.
        lasted: Seconds from its start to its verdict.
    """
    workloads = workloads_of(things)
    for each in workloads:
        metadata = each["metadata"]
        if each["kind"] == run.top.kind and metadata["name"] == run.name:
            return bool(metadata["uid"] != run.uid)
    # Its top object is gone. What was made after its verdict is not its own.
    over = datetime.fromisoformat(run.created) + timedelta(seconds=lasted)
    return any(
        datetime.fromisoformat(each["metadata"]["creationTimestamp"]) > over for each in workloads
    )


def _tidy(run: Run, verdict: Verdict, lasted: float) -> None:
    """Remove everything of an ended run but the object that bears its verdict."""
    if is_taken_over(run, things_of(run.namespace, run.run_id), lasted):
        console.note(f"run {run.run_id} was started anew meanwhile: nothing is tidied up")
        return
    if verdict.lingers:
        end_lingering(run, verdict)
        remove_all(run.namespace, run.run_id)
        return
    try:
        remove_leftovers(run)
    except UserError as error:
        # The run has its verdict; what is left is told, and taken away by the next of its id.
        for problem in error.problems:
            console.warn(f"not all of run {run.run_id} is gone: {problem.what}")


def report(outcome: Outcome, output: str, phases: Mapping[str, float] | None = None) -> int:
    """Print what came of a run, and return its exit code.

    Args:
        outcome: The run's.
        output: `text` or `json`.
        phases: Seconds of what was done before it, if anything was.
    """
    verdict, folder = outcome.verdict, os.path.relpath(outcome.folder)
    if output == "json":
        print(
            json.dumps(outcome.summary() | ({"phases_seconds": phases} if phases else {}), indent=2)
        )
    else:
        for name, seconds in {**(phases or {}), **outcome.marks}.items():
            print(f"  {name:<28}{seconds:>8.1f} s")
        if outcome.rewards:
            first, last = outcome.rewards
            print(f"  reward    {first:.3f} -> {last:.3f} (mean of 5 steps at each end)")
        print(f"  logs      {folder}/logs")
        if (outcome.folder / "reward.png").is_file():
            print(f"  picture   {folder}/reward.png")
    run_id = outcome.run.run_id
    if verdict.succeeded:
        console.ok(f"run {run_id} succeeded; make clean removes the object with its verdict")
    else:
        console.error(
            f"run {run_id} failed: {verdict.reason}: {verdict.message}",
            f"{verdict.fix or 'read the collected logs'}; look at {folder}/logs",
        )
    return verdict.exit_code
