"""Envoy's reports, read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_pool.dataplane import stats
from vllm_pool.dataplane.stats import BackendStats


def _host(name: str, *, ejected: bool = False, **counts: int) -> dict[str, Any]:
    # Envoy leaves a value of 0 out.
    return {
        "hostname": name,
        "stats": [
            {"name": key, **({"value": str(value)} if value else {})}
            for key, value in counts.items()
        ],
        "health_status": {"eds_health_status": "HEALTHY"}
        | ({"failed_outlier_check": True} if ejected else {}),
    }


def _report(**clusters: list[dict[str, Any]]) -> str:
    statuses = [{"name": name, "host_statuses": hosts} for name, hosts in clusters.items()]
    return json.dumps({"cluster_statuses": statuses})


def test_both_clusters_are_added_by_replica() -> None:
    text = _report(
        keyed=[_host("a", rq_active=2, rq_total=10, rq_success=7, rq_error=1, rq_timeout=0,
                     cx_connect_fail=3, cx_active=4, rq_pending_active=9)],
        unkeyed=[_host("a", rq_active=1, rq_total=5, rq_success=5, rq_timeout=2, cx_active=1),
                 _host("b", ejected=True)],
        manager=[_host("", rq_total=99)],
    )  # fmt: skip
    assert stats.parse_clusters(text) == {
        "a": BackendStats(
            active=3, total=15, success=12, error=1, timeout=2, connect_failures=3, connections=5
        ),
        "b": BackendStats(ejected=True),
    }


@pytest.mark.parametrize("order", [("keyed", "unkeyed"), ("unkeyed", "keyed")])
def test_who_is_left_out_by_one_cluster_is_left_out(order: tuple[str, str]) -> None:
    first, second = order
    text = _report(**{first: [_host("a", ejected=True)], second: [_host("a")]})
    assert stats.parse_clusters(text)["a"].ejected


def test_a_cluster_without_members_has_no_hosts() -> None:
    assert stats.parse_clusters('{"cluster_statuses": [{"name": "keyed"}]}') == {}
    assert stats.parse_clusters("{}") == {}


@pytest.mark.parametrize(
    "text", ["", "OK", "[]", '{"cluster_statuses": [{}]}', '{"cluster_statuses": [1]}']
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a report|Expecting value"):
        stats.parse_clusters(text)


def test_counters_are_numbers_by_name() -> None:
    text = 'a.b: 12\nc: 0\nh: P0(nan,1) P100(2,3)\nname: "text"\n\nd: -1\n'
    assert stats.parse_counters(text) == {"a.b": 12, "c": 0}


def test_the_admin_is_for_a_block() -> None:
    async def ask() -> None:
        await stats.Admin(Path("/nowhere")).ready()

    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(ask())
