"""The behaviours of a pool by name: which test holds each, and which fault makes that test fail.

    @behaviour("the query passes as it is", broken_by=faults.drops_the_query)
    def test_every_path_and_query_passes(...): ...

A test that cannot fail proves nothing. So each behaviour names a fault, and the conformance suite
runs the same test once more against a real Envoy that has it, and wants to see it fail.

`python -m support.pool_behaviours` prints the table of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from support.pool_faults import Fault
from support.pool_fronts import fronts
from support.pool_plane import Plane, planes

FOLDER = Path(__file__).parents[1] / "integration" / "sidecars" / "vllm_pool"

#: How any test fails: by an assertion, or since its client waits in vain.
FAILURES: tuple[type[BaseException], ...] = (
    AssertionError, pytest.fail.Exception, TimeoutError,
)  # fmt: skip
Test = TypeVar("Test", bound=Callable[..., None])


@dataclass(frozen=True)
class Behaviour:
    """One behaviour.

    Attributes:
        name: What the pool does, as a sentence.
        test: The test function that holds it.
        case: Values of the test's parameters in the run with the fault.
        fault: What makes the pool not do it.
        raises: How the test may fail beside a failed assertion and a client that waits in vain.
    """

    name: str
    test: Callable[..., None]
    case: Mapping[str, Any]
    fault: Fault
    raises: tuple[type[Exception], ...] = ()

    @property
    def place(self) -> str:
        """The test's file and name."""
        path = Path(self.test.__code__.co_filename)
        return f"{path.parent.name}/{path.name}::{self.test.__name__}"

    @property
    def needs(self) -> set[str]:
        """Names of the fixtures that the test takes."""
        return set(inspect.signature(self.test).parameters) - set(self.case)


def behaviour(
    name: str, *, broken_by: Fault, raises: tuple[type[Exception], ...] = (), **case: Any
) -> Callable[[Test], Test]:
    """Name a behaviour that a test holds.

    Args:
        name: What the pool does; no other behaviour has this name.
        broken_by: A fault that the test must fail on.
        raises: How else it may fail then than by an assertion or a client that waits in vain.
        case: Parameters of that run, from the test's own; the first ones when not named.

    Raises:
        ValueError: The test is never run with these parameters.
    """

    def register(test: Test) -> Test:
        values = {**_first_of(test, case), **case}
        unknown = set(values) - set(inspect.signature(test).parameters)
        if unknown:
            raise ValueError(f"{test.__name__} has no parameters {unknown}")
        found: list[Behaviour] = test.__dict__.setdefault("behaviours", [])
        # Decorators act from the last to the first.
        found.insert(0, Behaviour(name, test, values, broken_by, raises))
        return test

    return register


def _first_of(test: Callable[..., None], case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first parameters of a test that agree with those that are named."""
    chosen: dict[str, Any] = {}
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, sets = mark.args
        names = [names] if isinstance(names, str) else list(names)
        rows = [
            dict(zip(names, _values(one, len(names)), strict=True)) for one in sets
        ]  # fmt: skip
        fitting = [row for row in rows if all(case.get(n, row[n]) == row[n] for n in names)]
        if not fitting:
            raise ValueError(f"{test.__name__} is never run with {dict(case)}")
        chosen |= fitting[0]
    return chosen


def _values(one: Any, count: int) -> Sequence[Any]:
    values = getattr(one, "values", None)
    if isinstance(values, tuple):  # pytest.param
        return values
    return (one,) if count == 1 else tuple(one)


def registered(folder: Path = FOLDER) -> list[Behaviour]:
    """Return all behaviours of the tests in a folder, in the order of the files."""
    return [
        each
        for path in sorted(folder.glob("*/test_*.py"))
        if "@behaviour(" in path.read_text()
        for test in vars(_module(path)).values()
        if callable(test)
        for each in getattr(test, "behaviours", [])
        if Path(test.__code__.co_filename) == path
    ]


def _module(path: Path) -> ModuleType:
    name = f"behaviours_of_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def table(behaviours: Sequence[Behaviour]) -> str:
    """Return a table in Markdown, a row a behaviour."""
    rows = [
        f"| {one.name} | `{one.place}` | {one.fault.name} |"
        for one in behaviours
    ]  # fmt: skip
    head = ["| behaviour | test | fails on a pool that |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


@contextlib.contextmanager
def broken_planes(fault: Fault) -> Iterator[Callable[..., Plane]]:
    """Yield a function that starts data planes with a fault; all end with the block."""
    with fault.applied(), planes() as make, contextlib.ExitStack() as stack:

        def broken(**settings: Any) -> Plane:
            plane = make(**settings)
            if fault.front is not None:
                plane.port = stack.enter_context(fronts(fault.front, plane.loop, plane.port))
            return plane

        yield broken


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


if __name__ == "__main__":
    # Not the names of this program but those of the module that the tests import.
    from support import pool_behaviours

    print(pool_behaviours.table(pool_behaviours.registered()), end="")
