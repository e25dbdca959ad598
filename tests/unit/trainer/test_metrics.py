"""Records, lines for programs, and the verdict."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tandem_trainer.curve import HEIGHT, MARGIN, WIDTH, points
from tandem_trainer.metrics import LINE_PREFIX, RunFiles, StepMetrics, judge


def _step(number: int) -> StepMetrics:
    return StepMetrics(number, 0.123456, f"step-{number}", 1.5, -0.25, 1.234567e-7, 1024)


def test_each_step_is_a_line_on_stdout_and_in_the_file_at_once(tmp_path: Path) -> None:
    out = io.StringIO()
    files = RunFiles(tmp_path / "new/run", out)
    for number in (1, 2):
        files.write(_step(number))
        lines = out.getvalue().splitlines()
        assert len(lines) == number
        assert lines[-1].startswith(LINE_PREFIX)
        record = json.loads(lines[-1].removeprefix(LINE_PREFIX))
        assert record["step"] == number
        assert record["weight_version"] == f"step-{number}"
        assert record["mean_reward"] == 0.1235
        # Small gaps stay visible: rounded to digits that count, not to places.
        assert record["logprob_gap"] == 1.235e-7
    stored = (tmp_path / "new/run/metrics.jsonl").read_text().splitlines()
    assert [LINE_PREFIX + line for line in stored] == out.getvalue().splitlines()


def test_a_second_run_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    RunFiles(tmp_path, io.StringIO()).write(_step(1))
    RunFiles(tmp_path, io.StringIO())
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_the_verdict_compares_the_means_of_the_first_and_last_five_steps() -> None:
    verdict = judge([0.1] * 5 + [0.9] * 10 + [0.3] * 5, 2.0)
    assert verdict.first == pytest.approx(0.1)
    assert verdict.last == pytest.approx(0.3)
    assert verdict.passed
    assert "passed" in str(verdict)
    assert not judge([0.1] * 5 + [0.9] * 10 + [0.19] * 5, 2.0).passed


def test_short_runs_compare_halves_that_do_not_overlap() -> None:
    verdict = judge([0.1, 0.5, 0.4], 2.0)
    assert verdict.first == 0.1
    assert verdict.last == 0.4
    with pytest.raises(ValueError, match="two steps"):
        judge([0.5], 2.0)


def test_a_start_from_nothing_gives_a_number_and_staying_there_fails() -> None:
    nothing, something = judge([0.0] * 10, 2.0), judge([0.0] * 5 + [0.5] * 5, 2.0)
    assert (nothing.passed, something.passed) == (False, True)


def test_the_curve_stays_on_the_picture_and_rises_upwards() -> None:
    places = points([0.0, 0.5, 1.0, 7.0, -1.0])
    assert places[0] == pytest.approx((MARGIN, HEIGHT - MARGIN))
    assert places[2][1] == places[3][1] == MARGIN
    assert places[4] == pytest.approx((WIDTH - MARGIN, HEIGHT - MARGIN))
    assert places[1][1] > places[2][1]
    assert points([0.5])[0] == pytest.approx((MARGIN, HEIGHT / 2))
