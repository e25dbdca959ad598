"""Members from EndpointSlices."""

from __future__ import annotations

from typing import Any

from vllm_pool.core.membership import Registration
from vllm_pool.sources.slices import members


def _slice(*endpoints: dict[str, Any], kind: str = "IPv4", **ports: int) -> dict[str, Any]:
    return {
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port} for name, port in ports.items()],
    }


def _endpoint(address: str, pod: str = "", **conditions: bool) -> dict[str, Any]:
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [address], "conditions": conditions, **target}


def test_a_replica_is_known_by_its_pod_ready_or_not() -> None:
    slices = [
        _slice(_endpoint("10.0.0.2", "judge-1", ready=False), http=8000),
        _slice(_endpoint("10.0.0.1", "judge-0", ready=True), http=8000),
    ]
    assert members(slices, "") == [
        Registration("judge-0", "http://10.0.0.1:8000"),
        Registration("judge-1", "http://10.0.0.2:8000"),
    ]


def test_one_that_terminates_is_drained() -> None:
    slices = [_slice(_endpoint("10.0.0.1", "judge-0", terminating=True, serving=True), http=8000)]
    assert members(slices, "")[0].draining is True


def test_the_named_port_is_taken() -> None:
    slices = [_slice(_endpoint("10.0.0.1", "a"), metrics=9, http=8000)]
    assert members(slices, "http")[0].url == "http://10.0.0.1:8000"
    assert members(slices, "other") == []


def test_without_a_pod_the_address_is_the_id() -> None:
    assert members([_slice(_endpoint("fd00::1"), kind="IPv6", http=8000)], "") == [
        Registration("fd00..1", "http://[fd00::1]:8000")
    ]


def test_a_pod_of_two_families_is_one_replica_whatever_the_order() -> None:
    both = [
        _slice(_endpoint("fd00::1", "a"), kind="IPv6", http=8000),
        _slice(_endpoint("10.0.0.1", "a"), http=8000),
    ]
    assert members(both, "") == members(both[::-1], "")
    assert len(members(both, "")) == 1


def test_what_cannot_be_reached_is_left_out() -> None:
    slices: list[dict[str, Any]] = [
        _slice(_endpoint("judge.example", "a"), kind="FQDN", http=8000),
        _slice({"addresses": []}, http=8000),
        {"addressType": "IPv4", "endpoints": None, "ports": None},
    ]
    assert members(slices, "") == []
