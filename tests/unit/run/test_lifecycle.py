"""What is done with a run that has ended, and with results that were there before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.run_objects import RUN_ID, job, raycluster
from tandem.run.lifecycle import is_taken_over, set_aside
from tandem.run.shapes import Run
from tandem_common.kube.resources import JOBS

RUN = Run("tandem", RUN_ID, JOBS, "driver-a7", "uid-driver-a7", "2026-12-02T10:00:00Z")
LATER = "2026-12-02T10:05:00Z"


@pytest.mark.parametrize(
    ("things", "taken"),
    [
        ([], False),
        ([job()], False),
        ([job(uid="uid-2", creationTimestamp=LATER)], True),
        # The watchers have deleted the driver; a side of the same run is still going.
        ([raycluster("rl-a7", "rl")], False),
        # Another start is on its way to its driver.
        ([raycluster("rl-a7", "rl", creationTimestamp=LATER)], True),
        ([job(), raycluster("rl-a7", "rl", creationTimestamp=LATER)], False),
    ],
)
def test_a_run_that_was_started_anew_is_left_alone(
    things: list[dict[str, Any]],
    taken: bool,  # noqa: FBT001 - a parameter of the table above
) -> None:
    assert is_taken_over(RUN, things, lasted=120.0) is taken


def test_results_of_two_runs_are_never_mixed(tmp_path: Path) -> None:
    folder = tmp_path / "a7"
    set_aside(folder)
    folder.mkdir()
    set_aside(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["a7"], "an empty one is as good as none"
    for number in range(3):
        folder.mkdir(exist_ok=True)
        (folder / "summary.json").write_text(str(number))
        set_aside(folder)
    kept = {path.parent.name: path.read_text() for path in tmp_path.glob("*/summary.json")}
    assert kept == {"a7.1": "0", "a7.2": "1", "a7.3": "2"}
