"""A run that holds what is another's by right goes whole, and comes back whole."""

from __future__ import annotations

import pytest

from support.kai_cluster import (
    Queues,
    Workloads,
    bound,
    jobset,
    pod_spec,
    pods,
    refused,
    until,
)

pytestmark = pytest.mark.cluster


def test_low_prio_is_reclaimed_as_a_whole_gang(workloads: Workloads, queues: Queues) -> None:
    # The first process of a container that handles no SIGTERM ends by SIGKILL, as a failure; one
    # that obeys with code 0 is a success to its Job, which then makes no pod in its place.
    command = ["sleep", "infinity"]
    head = pod_spec(priorityClassName="rl-head", command=command)
    worker = pod_spec(gpus=4, command=command)
    low = jobset("kai-low", {"head": (1, head), "workers": (2, worker)}, queue=queues.last)
    workloads.apply([low])
    until(lambda: len(bound("kai-low")) == 3, "the low run is placed")
    before = {pod["metadata"]["uid"] for pod in pods("kai-low")}

    high = jobset(
        "kai-high", {"head": (1, head), "workers": (1, pod_spec(gpus=4))}, queue=queues.first
    )
    workloads.apply([high])
    until(lambda: len(bound("kai-high")) == 2, "the high run is placed")
    # One worker of four GPUs would have been enough; a gang goes whole, its head too.
    until(
        lambda: before.isdisjoint(pod["metadata"]["uid"] for pod in pods("kai-low")),
        "all pods of the low run are evicted",
    )
    until(lambda: len(refused("kai-low")) == 3, "its new pods wait")
    assert bound("kai-low") == []

    workloads.delete(high)
    until(lambda: len(bound("kai-low")) == 3, "the low run is back")


def test_in_one_queue_the_more_important_gang_goes_first(
    workloads: Workloads, queues: Queues
) -> None:
    worker = pod_spec(gpus=4)
    workloads.apply([jobset("kai-a", {"workers": (2, worker)}, queue=queues.first)])
    until(lambda: len(bound("kai-a")) == 2, "the first run is placed")
    workloads.apply(
        [jobset("kai-b", {"workers": (1, worker)}, queue=queues.first, priority="rl-head")]
    )
    until(lambda: len(bound("kai-b")) == 1, "it is placed")
    until(lambda: not bound("kai-a"), "the other is gone, whole")
