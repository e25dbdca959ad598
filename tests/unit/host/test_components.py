"""Argument lists, order and digests of the components."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from tandem_host import components, config, pki
from tandem_host.components import Component, HttpProbe
from tandem_host.layout import Layout
from tandem_host.settings import Ports, Settings

SEVEN = {
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd",
    "kubelet", "kube-proxy",
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", bin=tmp_path / "bin", checkout=tmp_path)


def flags(component: Component) -> dict[str, str]:
    return dict(word.removeprefix("--").partition("=")[::2] for word in component.argv[1:])


def test_the_full_cluster_has_seven_components_each_after_what_it_needs(
    settings: Settings,
) -> None:
    started: set[str] = set()
    for component in components.full_cluster(settings):
        assert set(component.needs) <= started
        started.add(component.name)
    assert started == SEVEN


def test_a_components_name_is_its_binarys(settings: Settings) -> None:
    """Processes are found again by the name of the program that they run."""
    for component in components.full_cluster(settings):
        assert component.argv[0] == str(settings.bin / component.name)


def test_the_tests_control_plane_is_part_of_the_full_cluster(settings: Settings) -> None:
    full = components.full_cluster(settings)
    assert len(components.control_plane(settings)) == 3
    assert all(part in full for part in components.control_plane(settings))


def test_nothing_listens_on_every_address(settings: Settings) -> None:
    """A shared machine's network must not reach the cluster."""
    texts = [word for c in components.full_cluster(settings) for word in c.argv]
    texts += [config.kubelet(settings), config.proxy(settings), config.containerd(settings)]
    assert len(texts) > 50
    assert not [text for text in texts if "0.0.0.0" in text or "[::]" in text]  # noqa: S104
    api = flags(components.apiserver(settings))
    assert api["bind-address"] == api["advertise-address"] == settings.address
    assert json.loads(config.kubelet(settings))["address"] == settings.address


def test_ports_and_address_come_from_the_settings(settings: Settings) -> None:
    other = dataclasses.replace(
        settings, address="127.0.0.1", ports=Ports(api=1, etcd_client=2, controller_manager=3)
    )
    api = components.apiserver(other)
    assert flags(api)["secure-port"] == "1"
    assert flags(api)["etcd-servers"] == "https://127.0.0.1:2"
    assert api.probe == HttpProbe(
        "https://127.0.0.1:1/readyz", Layout(other.state).cert("ca"), "admin"
    )
    assert flags(components.controller_manager(other))["secure-port"] == "3"


def test_the_api_server_has_what_pods_and_aggregation_need(settings: Settings) -> None:
    found = flags(components.apiserver(settings))
    assert found["authorization-mode"] == "Node,RBAC"
    assert found["kubelet-preferred-address-types"] == "InternalIP"
    assert found["shutdown-delay-duration"] == "0s"
    assert found["service-account-issuer"].startswith("https://")
    assert {"requestheader-client-ca-file", "proxy-client-cert-file"} <= set(found)
    # Aggregated servers trust another authority than pods and kubelets do.
    assert found["requestheader-client-ca-file"] != found["client-ca-file"]


def test_etcd_talks_only_to_holders_of_its_own_authoritys_certificates(
    settings: Settings,
) -> None:
    found = flags(components.etcd(settings))
    assert "client-cert-auth" in found
    assert found["trusted-ca-file"] == str(Layout(settings.state).cert(pki.ETCD_CA))
    assert found["listen-client-urls"].startswith("https://127.0.0.1:")


def test_a_digest_changes_with_flags_files_and_binary_and_with_nothing_else(
    settings: Settings,
) -> None:
    settings.bin.mkdir()
    binary = settings.bin / "containerd"
    binary.write_text("1")
    layout = Layout(settings.state)
    config.write(layout.containerd_config, "a")
    first = components.containerd(settings).digest()
    assert components.containerd(settings.with_gpus(1)).digest() == first
    config.write(layout.containerd_config, "b")
    second = components.containerd(settings).digest()
    binary.write_text("22")
    third = components.containerd(settings).digest()
    other = dataclasses.replace(components.containerd(settings), argv=("x",)).digest()
    assert len({first, second, third, other}) == 4


def test_containerds_configuration_keeps_everything_below_our_folders(
    settings: Settings,
) -> None:
    parsed = tomllib.loads(config.containerd(settings))
    plugins = parsed["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == (
        "localhost/tandem/pause:dev"
    )
    assert runtime["netns_mounts_under_state_dir"] is True
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"]["bin_dirs"] == [str(settings.bin)]
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["Root"] == "/run/tandem/runc"
    assert plugins["io.containerd.nri.v1.nri"]["disable"] is True
    assert parsed["root"].startswith(str(settings.state))


@pytest.mark.parametrize(("may_lower", "score"), [(True, -999), (False, 0)])
def test_oom_scores_are_lowered_only_where_that_is_allowed(
    settings: Settings, *, may_lower: bool, score: int
) -> None:
    given = dataclasses.replace(settings, oom_adjust=may_lower)
    assert json.loads(config.kubelet(given))["oomScoreAdj"] == score
    assert json.loads(config.proxy(given))["oomScoreAdj"] == score


def test_the_kubelet_accepts_both_cgroup_versions_and_stays_below_our_cgroup(
    settings: Settings,
) -> None:
    found = json.loads(config.kubelet(settings))
    assert (found["failCgroupV1"], found["cgroupDriver"]) == (False, "cgroupfs")
    assert found["cgroupRoot"] == "/tandem"
    assert found["podLogsDir"].startswith(str(settings.state))


def test_kube_proxy_leaves_the_hosts_settings_alone(settings: Settings) -> None:
    found = json.loads(config.proxy(settings))
    assert set(found["conntrack"].values()) == {0, "0s"}
    assert found["iptables"]["localhostNodePorts"] is False
    assert found["nodePortAddresses"] == ["198.18.0.1/32"]


def test_pods_do_not_get_a_resolver_on_loopback() -> None:
    host = "# made by x\nsearch a.b\nnameserver 127.0.0.53\nnameserver ::1\nnameserver 10.0.0.1\n"
    assert config.resolv_conf(host) == "# made by x\nsearch a.b\nnameserver 10.0.0.1\n"
    assert "nameserver" not in config.resolv_conf("nameserver 127.0.0.1\n")


def test_the_resolver_behind_a_local_one_is_taken() -> None:
    local, real = "nameserver 127.0.0.53\n", "nameserver 10.0.0.1\n"
    assert config.reachable_resolver([local, real]) == real
    assert config.reachable_resolver([real, "nameserver 10.0.0.2\n"]) == real
    assert config.reachable_resolver([local]) == "\n"
    assert config.reachable_resolver([]) == ""


def test_the_users_kubeconfig_holds_its_keys(settings: Settings) -> None:
    pki.ensure(settings)
    user = json.loads(config.kubeconfig(settings, "admin", embed=True))
    assert set(user["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
    assert str(settings.state) not in json.dumps(user)
    component = json.loads(config.kubeconfig(settings, "kubelet"))
    assert component["users"][0]["user"]["client-key"].endswith("kubelet.key")


def test_settings_survive_their_file(settings: Settings) -> None:
    given = dataclasses.replace(settings, gpus=3, oom_adjust=False, ports=Ports(api=7))
    assert Settings.from_json(given.to_json()) == given


def test_writing_the_same_text_again_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep/file"
    config.write(path, "a")
    first = path.stat()
    config.write(path, "a")
    assert path.stat().st_ino == first.st_ino
    config.write(path, "b")
    assert path.read_text() == "b"
    assert path.stat().st_mode & 0o077 == 0
