"""Every behaviour of the pool can be seen to fail: its test, run against a pool with its fault."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import pool_plane
from support.pool_behaviours import Behaviour, behaviour, broken_planes, registered
from support.pool_faults import Fault

BEHAVIOURS = registered()
#: How any test fails: by an assertion, or since its client waits in vain.
FAILURES: tuple[type[BaseException], ...] = (
    AssertionError, pytest.fail.Exception, TimeoutError,
)  # fmt: skip
#: How long a test waits for what the fault keeps from coming.
IMPATIENT = 1.0


def test_the_behaviours_are_many_and_each_has_a_name_of_its_own() -> None:
    names = Counter(one.name for one in BEHAVIOURS)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 45


# What a test that fails leaves open is of no interest here.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("one", BEHAVIOURS, ids=[each.name for each in BEHAVIOURS])
def test_a_pool_with_the_fault_fails_the_test(
    one: Behaviour, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pool_plane, "SOON", IMPATIENT)
    said = failure_of(one, tmp_path)
    # What hangs on the failed test, sockets above all, ends with it.
    gc.collect()
    assert said is not None, f"{one.test.__name__} passes on a pool that {one.fault.name}"
    print(f"{one.fault.name}: {said}")


def failure_of(one: Behaviour, tmp_path: Path) -> str | None:
    """Return how a test fails on a pool with the fault; None when it passes.

    Whatever is no failure of the test, such as an Envoy that refuses its documents, is raised.
    """
    with broken_planes(one.fault) as make:
        fixtures: dict[str, Callable[[], Any]] = {
            "make_plane": lambda: make, "plane": make, "tmp_path": lambda: tmp_path,
        }  # fmt: skip
        given = {name: fixtures[name]() for name in one.needs}
        try:
            one.test(**given, **one.case)
        except (*FAILURES, *one.raises) as failure:
            return f"{type(failure).__name__}: {failure}"[:300]
    return None


def test_a_fault_that_the_test_does_not_see_is_told(tmp_path: Path) -> None:
    def blind(plane: pool_plane.Plane) -> None:
        assert plane.pool(1)

    assert failure_of(Behaviour("x", blind, {}, Fault("does nothing wrong")), tmp_path) is None


def test_what_the_test_stands_on_is_no_failure_of_it(tmp_path: Path) -> None:
    def refused(document: dict[str, Any]) -> None:
        document["odd"] = 1

    def sees_nothing(plane: pool_plane.Plane) -> None:
        raise AssertionError(plane)

    broken = Fault("does not start", bootstrap=refused)
    with pytest.raises(pool_plane.HarnessError, match="odd"):
        failure_of(Behaviour("x", sees_nothing, {}, broken), tmp_path)


@pytest.mark.parametrize("case", [{"status": 3}, {"nothing": 1}])
def test_a_behaviour_is_of_a_run_that_there_is(case: dict[str, Any]) -> None:
    @pytest.mark.parametrize("status", [1, 2])
    def test(status: int) -> None:
        assert status

    with pytest.raises(ValueError, match=r"never run with|no parameters"):
        behaviour("x", broken_by=Fault("y"), **case)(test)
