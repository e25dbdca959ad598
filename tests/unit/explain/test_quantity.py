"""Quantities, and what a pod asks for."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tandem.explain.pods import demand_of
from tandem.explain.quantity import Resources, parse, resources_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "1"), (2, "2"), (0.5, "0.5"), ("500m", "0.5"), ("4Gi", str(4 * 2**30)),
        ("1e3", "1000"), ("2k", "2000"), ("3M", "3000000"), ("1Ki", "1024"), ("250u", "0.00025"),
        ("1E", str(10**18)),
        ("1n", "1E-9"), ("1G", str(10**9)), ("1T", str(10**12)), ("1P", str(10**15)),
        ("1Mi", str(2**20)), ("1Ti", str(2**40)), ("1Pi", str(2**50)), ("1Ei", str(2**60)),
    ],
)  # fmt: skip
def test_quantities(text: str | float, expected: str) -> None:
    assert parse(text) == Decimal(expected)


@pytest.mark.parametrize("text", ["", "much", "4GiB", "NaN", "inf", "m"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse(text)


def test_amounts_are_in_the_units_of_queues_and_rounded_up() -> None:
    found = resources_of({"nvidia.com/gpu": "8", "cpu": "1500m", "memory": "1Gi", "other": "x"})
    assert found == Resources(gpu=8, cpu=1500, memory=1074)
    assert resources_of({"cpu": "0.1m"}) == Resources(cpu=1)
    assert resources_of({}) == Resources(0, 0, 0)


def test_how_often_one_amount_goes_into_another() -> None:
    room = Resources(gpu=8, cpu=10_000, memory=100)
    assert Resources(gpu=3, cpu=1000).times_in(room) == 2
    assert Resources(cpu=6000).times_in(room) == 1
    assert Resources(gpu=1, memory=200).times_in(room) == 0
    assert Resources().times_in(room) is None


def container(cpu: int, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ([], 3), ([container(2)], 3), ([container(5)], 5),
        ([container(1, restartPolicy="Always")], 4),
        # A sidecar runs beside the init containers that come after it.
        ([container(1, restartPolicy="Always"), container(5)], 6),
        ([container(5), container(1, restartPolicy="Always")], 5),
    ],
)  # fmt: skip
def test_a_pod_asks_for_its_containers_or_the_most_that_its_start_needs(
    init: list[dict[str, Any]], expected: int
) -> None:
    spec = {"initContainers": init, "containers": [container(1), container(2)]}
    assert demand_of(spec).cpu == expected * 1000


def test_a_limit_without_a_request_is_one() -> None:
    resources = {"limits": {"nvidia.com/gpu": 8, "cpu": 2}, "requests": {"cpu": 1}}
    assert demand_of({"containers": [{"resources": resources}]}) == Resources(gpu=8, cpu=1000)
