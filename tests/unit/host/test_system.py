"""Mounts, cgroups and links: finding ours in the kernel's lists."""

from __future__ import annotations

from pathlib import Path

from tandem_host import cgroups, mounts, network, teardown

MOUNTINFO = """\
22 27 0:21 / /proc rw - proc proc rw
40 27 0:22 / /home/me/t/.cluster/host/kubelet/pods/a/volumes/token rw - tmpfs tmpfs rw
41 40 0:23 / /home/me/t/.cluster/host/kubelet/pods/a/volumes/token/inner rw - tmpfs tmpfs rw
42 27 0:24 / /home/me/t/.cluster/hostile rw - tmpfs tmpfs rw
43 27 0:25 / /run/tandem/with\\040space rw - tmpfs tmpfs rw
"""
HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"


def test_mounts_below_our_folders_inner_ones_first() -> None:
    volume = "/home/me/t/.cluster/host/kubelet/pods/a/volumes/token"
    assert mounts.below(MOUNTINFO, [Path("/home/me/t/.cluster/host"), Path("/run/tandem")]) == [
        "/run/tandem/with space",
        f"{volume}/inner",
        volume,
    ]


def test_cgroup_hierarchies_of_each_kind_of_machine() -> None:
    assert [str(p) for p in cgroups.hierarchies(HYBRID)] == [
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/systemd",
        "/sys/fs/cgroup/unified",
    ]
    assert not cgroups.unified(HYBRID)
    assert cgroups.controllers(HYBRID) >= {"cpu", "name=systemd"}
    assert cgroups.unified(UNIFIED)
    assert [str(p) for p in cgroups.hierarchies(UNIFIED)] == ["/sys/fs/cgroup"]


def test_the_nodes_ends_of_a_pods_links() -> None:
    cached = {
        "result": {
            "interfaces": [
                {"name": "cni0"},
                {"name": "veth1"},
                {"name": "eth0", "sandbox": "/run/netns/x"},
            ]
        }
    }
    assert network.host_ends(cached) == ["veth1"]
    assert network.host_ends({}) == []


def test_folders_go_only_as_far_as_they_are_empty(tmp_path: Path) -> None:
    (tmp_path / "a/empty/deep").mkdir(parents=True)
    (tmp_path / "a/kept").mkdir()
    (tmp_path / "a/kept/file").touch()
    teardown.remove_empty(tmp_path / "a")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["kept"]
    (tmp_path / "a/kept/file").unlink()
    teardown.remove_empty(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    teardown.remove_empty(tmp_path / "never")
