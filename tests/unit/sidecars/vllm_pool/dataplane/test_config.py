"""What Envoy is told, as values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_pool.dataplane import config
from vllm_pool.dataplane.config import Backend, PlaneSettings

SETTINGS = PlaneSettings(run_dir=Path("/run/pool"), token="a-secret")  # noqa: S106 - of a test
TWO = [Backend("b", "10.0.0.2", 8000, weight=10), Backend("a", "::1", 8001, draining=True)]


def _table(settings: PlaneSettings = SETTINGS, members: int = 3) -> list[dict[str, Any]]:
    (document,) = config.routes(settings, members)["resources"]
    (host,) = document["virtual_hosts"]
    return list(host["routes"])


def _policies(members: int, **changes: Any) -> list[dict[str, Any]]:
    routes = _table(replace(SETTINGS, **changes), members)
    return [
        one["route"]["retry_policy"] for one in routes
        if one.get("route", {}).get("cluster") in (config.KEYED, config.UNKEYED)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("host", "judge.local", "judge.local"), ("port", 0, "port 0"), ("port", 65536, "port 65536"),
     ("weight", 0, "weight 0"), ("weight", 101, "weight 101")],
)  # fmt: skip
def test_a_backend_that_envoy_would_refuse_is_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Backend("a", "10.0.0.1", 8000), **{field: value})


def test_members_are_one_document_whatever_their_order() -> None:
    document = config.endpoints(TWO, "7")
    assert document == config.endpoints(list(reversed(TWO)), "7")
    (assignment,) = document["resources"]
    (group,) = assignment["endpoints"]
    first, second = group["lb_endpoints"]
    assert first["endpoint"]["hostname"] == "a"
    assert first["health_status"] == "DRAINING"
    assert second["health_status"] == "HEALTHY"
    assert second["load_balancing_weight"] == 10
    assert second["endpoint"]["address"] == {
        "socket_address": {"address": "10.0.0.2", "port_value": 8000}
    }


def test_the_place_of_a_replica_belongs_to_its_id() -> None:
    (here,) = config.endpoints([Backend("a", "10.0.0.1", 1)], "")["resources"]
    (there,) = config.endpoints([Backend("a", "10.0.0.9", 9)], "")["resources"]
    keys = [
        one["endpoints"][0]["lb_endpoints"][0]["metadata"]["filter_metadata"]["envoy.lb"]
        for one in (here, there)
    ]
    assert keys == [{"hash_key": "a"}, {"hash_key": "a"}]


@pytest.mark.parametrize(("members", "tries"), [(0, 0), (1, 0), (2, 1), (4, 3), (5, 4), (50, 4)])
def test_there_are_never_more_tries_than_replicas(members: int, tries: int) -> None:
    policies = _policies(members)
    assert policies
    assert {policy["num_retries"] for policy in policies} == {tries}
    assert config.routes(SETTINGS, members)["version_info"] == f"retries-{tries}"


def test_no_time_is_set_for_a_try_unless_it_is_wanted() -> None:
    assert not any("per_try_timeout" in policy for policy in _policies(3))
    wanted = _policies(3, first_byte_seconds=1.5)
    assert {policy["per_try_timeout"] for policy in wanted} == {"1.500s"}


def test_no_route_limits_the_whole_of_a_request() -> None:
    limits = {one["route"]["timeout"] for one in _table() if "route" in one}
    assert limits == {"0s"}


def test_only_health_comes_before_the_token() -> None:
    table = _table()
    at = next(
        n for n, one in enumerate(table) if one.get("direct_response", {}).get("status") == 401
    )
    assert {one["match"]["path"] for one in table[:at]} == {"/health", "/ready"}
    assert "a-secret" in json.dumps(table[at])
    assert table[at + 1 :] == _table(replace(SETTINGS, token=None))[at:]


def test_the_bootstrap_holds_no_secret() -> None:
    assert "a-secret" not in json.dumps(config.bootstrap(SETTINGS))


def test_envoy_keeps_the_counter_that_bounded_load_needs() -> None:
    # Without it every replica looks idle, and a hot key never spills.
    assert "upstream_rq_active" in config.KEPT_STATS


def test_an_answer_of_5xx_throws_nobody_out() -> None:
    clusters = config.bootstrap(SETTINGS)["static_resources"]["clusters"]
    for cluster in clusters:
        if cluster["name"] == config.MANAGER:
            continue
        outlier = cluster["outlier_detection"]
        assert outlier["split_external_local_origin_errors"] is True
        assert outlier["enforcing_consecutive_5xx"] == 0
        assert outlier["enforcing_consecutive_gateway_failure"] == 0
        assert cluster["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
