"""What the snapshot makes of what the kernel and its programs print."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from support.host_snapshot import (
    Snapshot,
    address_lines,
    changed_sysctls,
    differences,
    lines_of,
    mount_lines,
    nft_lines,
    port_lines,
    rule_lines,
    socket_lines,
)

EMPTY = Snapshot(**{field.name: [] for field in fields(Snapshot)})


def test_what_came_and_what_went_is_named_with_its_part() -> None:
    before = replace(EMPTY, mounts=["/a", "/b"], routes=["default"])
    now = replace(EMPTY, mounts=["/a", "/a"], routes=["default"])
    assert differences(before, now) == ["mounts: + /a", "mounts: - /b"]
    assert differences(before, before) == []


def test_settings_count_when_they_were_there_before_and_are_still() -> None:
    before = replace(EMPTY, sysctls=["kernel/panic=0", "net/ipv4/conf/gone/forwarding=1"])
    now = replace(EMPTY, sysctls=["kernel/panic=10", "net/bridge/bridge-nf-call-iptables=1"])
    found = differences(before, now)
    assert found == ["sysctls: + kernel/panic=10", "sysctls: - kernel/panic=0"]
    assert list(changed_sysctls(found)) == [("kernel/panic", "0")]


def test_a_mount_is_known_by_place_kind_options_and_propagation() -> None:
    text = """\
22 27 0:21 / /proc rw,nosuid shared:12 master:3 - proc proc rw
23 27 0:22 / /run/x rw - tmpfs scratch rw,size=4k
24 27 0:23 / /root/.cache/tandem/buildah/root/overlay rw - overlay overlay rw
"""
    assert mount_lines(text) == ["/proc proc rw,nosuid shared master", "/run/x tmpfs rw"]
    assert mount_lines(text) == mount_lines(text.replace("shared:12", "shared:99"))


def test_addresses_of_both_families_without_those_that_a_clock_changes() -> None:
    links: list[dict[str, Any]] = [
        {
            "ifname": "eth0",
            "addr_info": [
                {"local": "10.0.0.2", "prefixlen": 24, "valid_life_time": 3600},
                {"local": "fd00::2", "prefixlen": 64},
                {"local": "fd00::aaaa", "prefixlen": 64, "temporary": True},
            ],
        },
        {"ifname": "down"},
    ]
    assert address_lines(links) == ["eth0 10.0.0.2/24", "eth0 fd00::2/64"]


def test_a_route_is_the_same_while_its_clock_runs() -> None:
    def shown(expires: int) -> list[str]:
        route = {"dst": "default", "gateway": "fe80::1", "dev": "eth0", "expires": expires}
        return lines_of([route], ("family", "dst", "gateway", "dev"), "-6")

    assert shown(1800) == shown(60) == ["family=-6 dst=default gateway=fe80::1 dev=eth0"]


def test_firewall_rules_carry_their_table_and_no_counters() -> None:
    text = """\
# Generated on Monday
*nat
:POSTROUTING ACCEPT [12:345]
-A POSTROUTING -j KUBE-POSTROUTING
COMMIT
*filter
-A FORWARD -j ACCEPT
COMMIT
"""
    assert rule_lines(text) == [
        "*nat :POSTROUTING ACCEPT",
        "*nat -A POSTROUTING -j KUBE-POSTROUTING",
        "*filter -A FORWARD -j ACCEPT",
    ]


def ruleset(packets: int, handle: int, verdict: str = "accept") -> dict[str, Any]:
    return {
        "nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "inet", "name": "t", "handle": handle}},
            {"set": {"family": "inet", "name": "s", "table": "t", "elem": ["10.0.0.1"] * packets}},
            {
                "rule": {
                    "family": "inet",
                    "table": "t",
                    "chain": "c",
                    "handle": handle,
                    "expr": [{"counter": {"packets": packets, "bytes": 1}}, {verdict: None}],
                }
            },
        ]
    }


def test_the_nftables_ruleset_without_what_traffic_changes() -> None:
    assert nft_lines(ruleset(1, 2)) == nft_lines(ruleset(7, 9))
    assert nft_lines(ruleset(1, 2)) != nft_lines(ruleset(1, 2, "drop"))
    assert [line.partition(" ")[0] for line in nft_lines(ruleset(1, 2))] == ["rule", "set", "table"]


def test_listening_sockets_of_a_node_and_none_of_others() -> None:
    text = """\
Num       RefCount Protocol Flags    Type St Inode Path
ffff0001: 00000002 00000000 00010000 0001 01 1001 /run/tandem/containerd/containerd.sock
ffff0002: 00000003 00000000 00000000 0001 03 1002 /run/tandem/containerd/containerd.sock
ffff0003: 00000002 00000000 00010000 0001 01 1003 /run/dbus/system_bus_socket
ffff0004: 00000002 00000000 00000000 0002 01 1004
"""
    assert socket_lines(text) == ["/run/tandem/containerd/containerd.sock"]


def test_listeners_on_a_nodes_ports_and_addresses() -> None:
    text = """\
tcp LISTEN 0 128       127.0.0.1:10248      0.0.0.0:*
tcp LISTEN 0 128               *:10250            *:*
tcp LISTEN 0 128      198.18.0.1:40001      0.0.0.0:*
udp UNCONN 0 0   198.18.3.4%cni0:68         0.0.0.0:*
tcp LISTEN 0 128            [::]:22            [::]:*
tcp LISTEN 0 128       127.0.0.1:40000      0.0.0.0:*
"""
    assert [line.split()[1] for line in port_lines(text)] == [
        "*:10250",
        "127.0.0.1:10248",
        "198.18.0.1:40001",
        "198.18.3.4%cni0:68",
    ]
