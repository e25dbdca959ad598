"""A gang lives on when the first of its pods has succeeded."""

from __future__ import annotations

import time

import pytest

from support.kai_cluster import (
    NAMESPACE,
    Workloads,
    bound,
    jobset,
    pod_spec,
    pods,
    until,
)
from support.on_cluster import items

pytestmark = pytest.mark.cluster

#: KAI's staleness grace where none is given is a minute; here it is given.
GRACE_SECONDS = 5
#: Long enough for an eviction to show.
LOOK_SECONDS = 75


def test_the_first_success_evicts_nobody(workloads: Workloads) -> None:
    quick = pod_spec(command=["/bin/sh", "-c", "sleep 3"])
    stays = pod_spec(gpus=1)
    workloads.apply([
        jobset(
            "kai-ends", {"quick": (1, quick), "stays": (2, stays)}, queue="low-prio",
            annotations={"kai.scheduler/staleness-grace-period": f"{GRACE_SECONDS}s"},
        )
    ])  # fmt: skip
    until(lambda: len(bound("kai-ends")) == 3, "it is placed")
    first = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods("kai-ends")}
    until(
        lambda: any(pod["status"].get("phase") == "Succeeded" for pod in pods("kai-ends")),
        "the quick pod succeeds",
    )
    deadline = time.monotonic() + GRACE_SECONDS + LOOK_SECONDS
    while time.monotonic() < deadline:
        now = {pod["metadata"]["uid"] for pod in pods("kai-ends")}
        assert now == set(first), [
            event.get("message")
            for event in items("events", "-n", NAMESPACE)
            if event.get("involvedObject", {}).get("name") in first.values()
        ]
        time.sleep(1)
