"""The behaviours have names of their own, and what proves that their tests can fail is sound."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support import pool_plane
from support.pool_behaviours import Behaviour, behaviour, failure_of, registered
from support.pool_faults import Fault


def test_the_behaviours_are_many_and_each_has_a_name_of_its_own() -> None:
    names = Counter(one.name for one in registered())
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 45


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
