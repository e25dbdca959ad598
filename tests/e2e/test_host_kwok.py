"""Simulated nodes on the real cluster: there, used, kept, and gone without a trace.

Everything but the nodes is real: API server, scheduler, node and Job controller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import host_snapshot
from support.on_cluster import apply, items, until
from tandem.process import stream
from tandem.run.kube import kubectl
from tandem_host import kwok, processes, settings, status
from tandem_host.probes import Api

pytestmark = pytest.mark.cluster

NODES = 30
#: By the Job of the test; the image exists nowhere, and nobody pulls it.
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "simulated", "namespace": "default"},
    "spec": {
        "completions": 4,
        "parallelism": 4,
        "backoffLimit": 0,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {kwok.SIMULATED_LABEL: "true"},
                "tolerations": [{"key": kwok.TAINT, "operator": "Exists"}],
                "initContainers": [{"name": "wait", "image": "example.test/never:1"}],
                "containers": [
                    {
                        "name": "work",
                        "image": "example.test/never:1",
                        "resources": {"limits": {"nvidia.com/gpu": "4"}},
                    }
                ],
            }
        },
    },
}


def up(*words: str) -> None:
    stream("tandem.cluster", "up", "--provider", "host", *words)


@pytest.fixture(scope="module")
def simulated(cluster: Path) -> Iterator[Path]:
    """The cluster with simulated nodes; afterwards without."""
    up("--kwok-nodes", str(NODES), "--kwok-profile", "gb300-nvl72")
    yield cluster
    up("--kwok-nodes", "0")


@pytest.mark.usefixtures("simulated")
def test_the_nodes_are_ready_and_tell_their_racks() -> None:
    found = status.look(settings.current(), "")
    assert found.healthy
    assert (found.kwok_ready, found.kwok_wanted) == (NODES, NODES)
    nodes = items("nodes", f"--selector={kwok.PROFILE_LABEL}=gb300-nvl72")
    cliques = [node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in nodes]
    assert sorted(cliques.count(each) for each in set(cliques)) == [12, 18]
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes} == {"4"}
    # Ready for good: no taint of the node controller's is left.
    assert {taint["key"] for node in nodes for taint in node["spec"]["taints"]} == {kwok.TAINT}


def pods() -> list[dict[str, Any]]:
    return items("pods", "-n", "default", "--selector=job-name=simulated")


def job_status() -> tuple[int, int]:
    [job] = items("jobs", "-n", "default", "--field-selector=metadata.name=simulated")
    return job["status"].get("active", 0), job["status"].get("succeeded", 0)


def ready(name: str) -> str:
    [pod] = [pod for pod in pods() if pod["metadata"]["name"] == name]
    [condition] = [each for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    return str(condition["status"])


def phases() -> list[str]:
    return sorted(pod["status"]["phase"] for pod in pods())


@pytest.mark.usefixtures("simulated")
def test_pods_run_until_they_are_told_to_end_or_deleted() -> None:
    apply(JOB)
    until(lambda: phases() == ["Running"] * 4, "all pods run")
    first = pods()
    assert {pod["spec"]["nodeName"].rpartition("-")[0] for pod in first} == {"gb300-nvl72"}
    # A node that reports again is what would let a stage with an end of its own go on.
    for pod in first:
        kubectl("annotate", "node", pod["spec"]["nodeName"], "example.test/touched=1")
        kubectl("annotate", "pod", pod["metadata"]["name"], "-n", "default", "touched=1")
    # As the node controller says of all pods of a node that reports too late.
    late = first[1]["metadata"]["name"]
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    kubectl("patch", "pod", late, "-n", "default", "--subresource=status", "--type=strategic",
            "-p", json.dumps(unready))  # fmt: skip
    until(lambda: ready(late) == "True", "the pod of the late node is Ready again")
    kubectl("annotate", "pod", first[0]["metadata"]["name"], "-n", "default",
            "kwok.tandem.dev/exit-code=0")  # fmt: skip
    until(lambda: "Succeeded" in phases(), "the pod that was told has ended")
    assert phases() == ["Running"] * 3 + ["Succeeded"]
    until(lambda: job_status() == (3, 1), "the Job goes on with the others")
    kubectl("delete", "job", "simulated", "-n", "default", "--cascade=foreground",
            "--timeout=60s", timeout=70)  # fmt: skip
    assert pods() == []


@pytest.mark.usefixtures("simulated")
def test_a_pod_that_does_not_ask_for_it_lands_on_no_simulated_node() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "real", "namespace": "default"},
        "spec": {
            # More than the real node has, and a simulated one would have.
            "containers": [{"name": "c", "image": "example.test/never:1",
                            "resources": {"requests": {"cpu": "100"}}}],
        },
    }  # fmt: skip
    apply(pod)
    try:
        condition = "--for=jsonpath={.status.conditions[0].reason}=Unschedulable"
        kubectl("wait", "pod/real", "-n", "default", "--timeout=60s", condition, timeout=70)
    finally:
        kubectl("delete", "pod", "real", "-n", "default", "--grace-period=0", "--force")


def test_another_number_makes_and_removes_only_the_difference(simulated: Path) -> None:
    assert simulated.is_file()
    api = Api(settings.current())

    def uids() -> dict[str, str]:
        nodes = items("nodes", f"--selector={kwok.SIMULATED_LABEL}")
        return {node["metadata"]["name"]: node["metadata"]["uid"] for node in nodes}

    before = uids()
    up("--kwok-nodes", "12")
    assert uids() == {name: uid for name, uid in before.items() if name < "gb300-nvl72-0012"}
    up("--kwok-nodes", str(NODES))
    assert kwok.count(api) == (NODES, NODES)


@pytest.mark.usefixtures("cluster")
def test_no_simulated_node_and_no_kwok_is_left_when_none_is_wanted() -> None:
    up("--kwok-nodes", "2", "--kwok-profile", "h100")
    assert "kwok" in {each.name for each in status.look(settings.current(), "").components}
    up("--kwok-nodes", "0")
    assert items("nodes", f"--selector={kwok.SIMULATED_LABEL}") == []
    running = processes.of_cluster(settings.current().state)
    assert processes.main_process(running, "kube-scheduler") is not None
    assert processes.main_process(running, "kwok") is None


def test_down_with_simulated_nodes_leaves_the_machine_as_it_was() -> None:
    was_up = status.look(settings.current(), "").running
    stream("tandem.cluster", "down", "--provider", "host")
    before = host_snapshot.take()
    up("--kwok-nodes", str(NODES), "--kwok-profile", "h100")
    stream("tandem.cluster", "down", "--provider", "host")
    assert host_snapshot.await_same(before) == []
    if was_up:
        up()
