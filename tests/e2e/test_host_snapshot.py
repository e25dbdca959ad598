"""The snapshot by which "down leaves nothing" is judged sees each kind of thing left behind.

Each leak is made in namespaces of its own (network, mounts, processes) with scratch folders
in the place of the machine's: nothing reaches the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from support.host_snapshot import Snapshot
from tandem.paths import ROOT

PROGRAM = """
import subprocess, sys
from support import host_snapshot
before = host_snapshot.take()
assert host_snapshot.differences(before, host_snapshot.take()) == []
subprocess.run(["sh", "-ec", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
print(*host_snapshot.differences(before, host_snapshot.take()), sep="\\n")
"""
#: Run before: folders that leaks go into are the scratch namespace's own.
SCRATCH = """
for folder in /run /var/lib /opt /usr/libexec; do mount -t tmpfs scratch $folder; done
mount -t tmpfs scratch /sys/fs/cgroup
ip link set lo up
exec "$@"
"""
LEAKS = {
    "processes": "ln -s $(command -v sleep) /run/kubelet; /run/kubelet 600 &"
    " until grep -q kubelet /proc/$!/cmdline; do sleep 0.1; done",
    "mounts": "mkdir /run/x; mount -t tmpfs x /run/x",
    "mounts: stacked": "mount -t tmpfs scratch /run",
    "mounts: propagation": "mount --make-rshared /run",
    "links": "ip link add v0 type veth peer name v1",
    "links: promiscuity": "ip link set lo promisc on",
    "addresses": "ip address add 198.18.0.1/16 dev lo",
    "addresses: v6": "ip address add fd00:18::1/64 dev lo",
    "routes": "ip route add 198.19.0.0/16 dev lo",
    "routes: v6": "ip -6 route add fd00:19::/64 dev lo",
    "routes: other table": "ip route add 198.19.0.0/16 dev lo table 77",
    "rules": "ip rule add fwmark 0x4000 table 77",
    "rules: v6": "ip -6 rule add fwmark 0x4000 table 77",
    "iptables": "iptables -t mangle -A PREROUTING -j ACCEPT",
    "iptables: policy": "iptables -P FORWARD DROP",
    "ip6tables": "ip6tables -t nat -N KUBE-SERVICES",
    "nftables": "nft add table inet kube-proxy",
    "nftables: empty table": "nft add table ip nat",
    "nftables: rule": "nft 'add table ip x; add chain ip x c; add rule ip x c counter accept'",
    "ipsets": "ipset create KUBE-NODE-PORT bitmap:port range 0-65535",
    "namespaces": "mkdir -p /run/netns; touch /run/netns/cni-1",
    "cgroups": "mkdir -p /sys/fs/cgroup/pids/kubepods/pod1",
    "sockets": f"{sys.executable} -c 'import socket, time; s = socket.socket(socket.AF_UNIX);"
    ' s.bind("/run/containerd.sock"); s.listen(); time.sleep(600)\' &'
    " until ss -Hlnx | grep -q containerd; do sleep 0.1; done",
    "ports": f"{sys.executable} -c 'import socket, time; s = socket.socket();"
    ' s.bind(("127.0.0.1", 10250)); s.listen(); time.sleep(600)\' &'
    " until ss -Hlnt | grep -q 10250; do sleep 0.1; done",
    # The other value: a namespace begins with the machine's, which forwards while a cluster is up.
    "sysctls": "echo $((1 - $(cat /proc/sys/net/ipv4/ip_forward))) >/proc/sys/net/ipv4/ip_forward",
    "sysctls: unlisted": "echo 31 >/proc/sys/net/ipv4/tcp_fin_timeout",
    "paths": "mkdir -p /var/lib/cni/networks/tandem; touch /var/lib/cni/networks/tandem/last",
    "paths: unknown": "mkdir /opt/whatever",
}


def in_scratch(program: str, *words: str) -> str:
    """Run a Python program where nothing reaches the machine, and return its stdout."""
    path = os.pathsep.join(str(ROOT / f) for f in ("tests", "scripts/lib", "cluster/host"))
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
         "sh", "-ec", SCRATCH, "sh", sys.executable, "-c", program, *words],
        check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": path, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("leak", LEAKS)
def test_each_kind_of_trace_is_seen(leak: str) -> None:
    field = leak.partition(":")[0]
    found = in_scratch(PROGRAM, LEAKS[leak]).splitlines()
    assert any(line.startswith(f"{field}: ") for line in found), found


def test_every_part_of_the_snapshot_has_a_leak_that_shows_it() -> None:
    # Packet counters are made by rules of a kernel module that not every machine has.
    assert {f.name for f in fields(Snapshot)} - {"counters"} == {x.partition(":")[0] for x in LEAKS}


RESTORE = """
from tandem_host import network, record, settings
from support import host_snapshot
record.write_sysctl("net/ipv4/conf/all/accept_redirects", "0")
before = host_snapshot.take()
kept = record.take(settings.default(), {})
record.write_sysctl("net/ipv4/ip_forward", "1")
network.down(kept)
print(*host_snapshot.differences(before, host_snapshot.take()), sep="\\n")
"""


def test_settings_that_come_with_forwarding_are_restored_too() -> None:
    # The kernel sets what a host and a router differ in whenever forwarding changes.
    assert in_scratch(RESTORE).split() == []


FIREWALL = """
from support import host_snapshot
from tandem_host import firewall
before = host_snapshot.take()
kept = firewall.saved()
firewall.let_pods_out()
firewall.restore("ipv6", "*mangle\\n:KUBE-X - [0:0]\\nCOMMIT\\n")
assert host_snapshot.differences(before, host_snapshot.take())
firewall.clean(kept)
print(*host_snapshot.differences(before, host_snapshot.take()), sep="\\n")
"""


def test_the_firewall_of_a_machine_without_one_is_empty_again() -> None:
    # The tables too, which iptables makes on first use: a fresh machine has none.
    assert in_scratch(FIREWALL).split() == []


CONTROL_PLANE = """
import sys
from pathlib import Path
from support import host_snapshot
from tandem_host.control_plane import ControlPlane
before = host_snapshot.take()
with ControlPlane(Path(sys.argv[1]), scheduler=True):
    pass
print(*host_snapshot.differences(before, host_snapshot.take()), sep="\\n")
"""


def test_the_control_plane_of_the_tests_leaves_nothing_but_its_folder(tmp_path: Path) -> None:
    # What it leaves, the suites before this one have left already: a later look sees nothing.
    assert in_scratch(CONTROL_PLANE, str(tmp_path / "plane")).split() == []
