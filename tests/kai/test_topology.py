"""Workers that must share an NVLink domain do, or nothing of the run is placed.

On simulated nodes: two domains of 18 hosts with four GPUs each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.kai_cluster import (
    Workloads,
    bound,
    jobset,
    pod_spec,
    pods,
    refused,
    until,
)
from support.on_cluster import items
from tandem.process import stream
from tandem_host import kwok

pytestmark = pytest.mark.cluster

CLIQUE, PROFILE = "nvidia.com/gpu.clique", "gb300-nvl72"
DOMAINS, HOSTS, GPUS = 2, 18, 4
TOGETHER = {
    "kai.scheduler/topology": "gb300",
    "kai.scheduler/topology-required-placement": CLIQUE,
}


@pytest.fixture(scope="module")
def domains(platform: Path) -> Iterator[dict[str, str]]:
    """Add the simulated nodes, and yield the domain of each."""
    assert platform.is_file()
    count = str(DOMAINS * HOSTS)
    up = ("tandem.cluster", "up", "--provider", "host", "--kwok-nodes")
    stream(*up, count, "--kwok-profile", PROFILE)
    nodes = items("nodes", "--selector", CLIQUE)
    found = {node["metadata"]["name"]: node["metadata"]["labels"][CLIQUE] for node in nodes}
    assert sorted(found.values()).count(min(found.values())) == HOSTS
    yield found
    stream(*up, "0")


def is_placed(name: str, count: int) -> bool:
    return len(bound(name)) == count


def run_of(name: str, workers: int) -> dict[str, Any]:
    simulated: dict[str, Any] = {
        "nodeSelector": {kwok.PROFILE_LABEL: PROFILE},
        "tolerations": [{"key": kwok.TAINT, "operator": "Exists"}],
    }
    return jobset(
        name,
        {"head": (1, pod_spec()), "workers": (workers, pod_spec(gpus=GPUS, **simulated))},
        queue="low-prio", group_annotations={"workers": TOGETHER},
    )  # fmt: skip


def test_a_gang_takes_one_domain_or_nothing(workloads: Workloads, domains: dict[str, str]) -> None:
    too_large = run_of("kai-wide", HOSTS + 1)
    workloads.apply([too_large])
    until(lambda: len(pods("kai-wide")) == HOSTS + 2, "all pods are there")
    until(lambda: len(refused("kai-wide")), "KAI refuses it")
    # Both domains are empty: 36 hosts for 19 workers. It is the domain that is too small.
    assert bound("kai-wide") == []
    workloads.delete(too_large)

    for name in ("kai-one", "kai-two"):
        workloads.apply([run_of(name, HOSTS)])
        until(partial(is_placed, name, HOSTS + 1), f"{name} is placed")
    taken = [
        {domains[node] for node in bound(name) if node in domains}
        for name in ("kai-one", "kai-two")
    ]
    assert [len(each) for each in taken] == [1, 1]
    assert taken[0] != taken[1]
