from __future__ import annotations

import pytest

from gym_server.phases import Phase, overdue, progress, span

PHASE = Phase(
    "gym-announced",
    awaits="key `gym_server` in ConfigMap x",
    side="the Gym side",
    look="the pod of the Gym head",
    seconds=600.0,
    variable="DRIVER_GYM_ANNOUNCED_SECONDS",
)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (90, "90 s"), (180, "3 min"), (3600, "60 min")]
)
def test_times_are_told_as_people_read_them(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_progress_line_says_what_is_missing_and_whose_business_it_is() -> None:
    line = progress(PHASE, 15.2, "connection refused")
    assert line == (
        "gym-announced: waiting for key `gym_server` in ConfigMap x (the Gym side), "
        "15 s of 10 min; last: connection refused"
    )
    assert "last" not in progress(PHASE, 15.2, "")


def test_a_deadline_that_has_passed_names_the_side_the_place_and_the_setting() -> None:
    error = overdue(PHASE, "never seen")
    assert error.code == 4
    assert str(error) == (
        "phase gym-announced: the Gym side: no key `gym_server` in ConfigMap x within 10 min; "
        "last: never seen\n"
        "  fix: look at the pod of the Gym head; a start that is only slow needs a higher "
        "DRIVER_GYM_ANNOUNCED_SECONDS"
    )


def test_a_phase_has_a_clock_of_its_own() -> None:
    assert PHASE.begin().seconds == 600.0
