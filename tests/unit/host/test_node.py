"""GPUs, labels and cluster DNS as values."""

from __future__ import annotations

from typing import Any

import pytest

from tandem_host import node, status
from tandem_host.settings import DNS_IP

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("present", "needed"),
    [
        ({}, True),
        ({"capacity": {GPU: "8"}, "allocatable": {GPU: "0"}}, True),
        ({"capacity": {GPU: "4"}, "allocatable": {GPU: "4"}}, True),
        ({"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}}, False),
    ],
)
def test_gpus_are_patched_when_they_differ(present: dict[str, Any], *, needed: bool) -> None:
    patch = node.gpu_status_patch({"status": present}, 8)
    wanted = {"status": {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}}}
    assert patch == (wanted if needed else None)


def test_labels_say_how_many_gpus_there_are() -> None:
    patch = node.gpu_label_patch({}, 8)
    assert patch == {"metadata": {"labels": {f"{GPU}.count": "8", f"{GPU}.present": "true"}}}
    assert node.gpu_label_patch(patch, 8) is None
    none = node.gpu_label_patch({}, 0)
    assert none is not None
    assert none["metadata"]["labels"][f"{GPU}.present"] == "false"


def test_ready_and_gpus_of_a_node() -> None:
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert node.is_ready(ready)
    assert not node.is_ready({})
    assert not node.is_ready({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    assert node.allocatable_gpus({"status": {"allocatable": {GPU: "3"}}}) == 3
    assert node.allocatable_gpus({}) == 0


@pytest.mark.parametrize("forward", [True, False])
def test_coredns_has_image_address_and_a_path_for_every_object(*, forward: bool) -> None:
    objects = node.coredns_objects("v9", forward=forward)
    kinds = {o["kind"]: o for o in objects}
    assert len(kinds) == len(objects) == 6
    container = kinds["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "localhost/tandem/coredns:v9"
    assert kinds["Service"]["spec"]["clusterIP"] == DNS_IP
    corefile = kinds["ConfigMap"]["data"]["Corefile"]
    assert ("forward . /etc/resolv.conf" in corefile) is forward
    assert "kubernetes cluster.local" in corefile
    assert node.object_path(kinds["Deployment"]) == node.COREDNS
    assert node.object_path(kinds["ClusterRole"]) == (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/coredns"
    )


def test_a_dns_question_in_bytes() -> None:
    assert node.query("a.bc", 0x0102) == (
        b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x02bc\x00\x00\x01\x00\x01"
    )


def component(name: str = "etcd", **changes: Any) -> status.ComponentStatus:
    sound = {
        "pid": 1, "healthy": True, "uptime_seconds": 1.0, "restarts": 0, "rss_mib": 1,
        "outdated": False, "last_exit": "",
    }  # fmt: skip
    return status.ComponentStatus(name=name, **{**sound, **changes})


def cluster(*components: status.ComponentStatus, **changes: Any) -> status.ClusterStatus:
    sound = {
        "running": True, "supervisor_pid": 2, "node_ready": True, "gpus": 8, "gpus_wanted": 8,
        "dns": True, "rss_mib": 2, "kubeconfig": "k",
    }  # fmt: skip
    return status.ClusterStatus(components=list(components), **{**sound, **changes})


def test_nothing_is_missing_from_a_complete_cluster() -> None:
    assert cluster(component()).missing(8) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (cluster(component(pid=None, healthy=False)), "etcd is not running"),
        (cluster(component(healthy=False)), "etcd does not answer"),
        (cluster(component(outdated=True)), "etcd has old settings"),
        (cluster(supervisor_pid=None), "the supervisor is not running"),
        (cluster(node_ready=False), "the node is not Ready"),
        (cluster(gpus=0), "the node offers 0 GPUs instead of 8"),
        (cluster(dns=False), "the cluster's DNS does not answer"),
    ],
)
def test_each_lack_has_its_words(seen: status.ClusterStatus, words: str) -> None:
    assert seen.missing(8) == [words]


@pytest.mark.parametrize(
    ("seen", "healthy"),
    [
        (cluster(component()), True),
        (cluster(component(), gpus=0, gpus_wanted=0), True),
        # A kubelet that has just started has forgotten them.
        (cluster(component(), gpus=0), False),
        (cluster(component(), gpus=7), False),
        (cluster(component(), gpus=9), False),
        (cluster(component(healthy=False)), False),
        (cluster(component(pid=None)), False),
        (cluster(component(), supervisor_pid=None), False),
        (cluster(component(), node_ready=False), False),
        (cluster(component(), dns=False), False),
        (cluster(component(), running=False), False),
        # It works; `cluster-up` would only start it again with other flags.
        (cluster(component(outdated=True)), True),
    ],
)
def test_healthy_means_that_everything_works_and_every_gpu_is_there(
    seen: status.ClusterStatus, *, healthy: bool
) -> None:
    assert seen.healthy is healthy


def test_the_table_shows_gpus_that_are_missing() -> None:
    assert "Ready, 8 GPUs\n" in status.table(cluster())
    assert "Ready, 0 GPUs INSTEAD OF 8\n" in status.table(cluster(gpus=0))


def test_the_table_shows_a_component_that_is_down() -> None:
    down = component(pid=None, healthy=False, last_exit="signal SIGKILL")
    text = status.table(cluster(component("kubelet"), down, supervisor_pid=None))
    assert "down (signal SIGKILL)" in text
    assert "NOT RUNNING" in text
    assert "no host cluster" in status.table(cluster(running=False))


@pytest.mark.parametrize(("seconds", "text"), [(5.9, "5s"), (65, "1m05s"), (3600 + 120, "1h02m")])
def test_durations(seconds: float, text: str) -> None:
    assert status.duration(seconds) == text
