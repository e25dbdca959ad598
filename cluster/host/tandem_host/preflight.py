"""Everything that a host cluster needs from the machine, checked before anything starts.

`gather` looks, `problems` judges: the second is pure, so that each verdict is tested
without a machine that has the defect. All problems are reported together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tandem.errors import Problem, UserError
from tandem.images import bundle
from tandem_host import cgroups, network, processes
from tandem_host.components import full_cluster
from tandem_host.layout import Layout
from tandem_host.settings import BRIDGE, CLUSTER_RANGE, NODE_IP, Settings

_GIB = 1024**3
#: The first images are unpacked into the node; later starts only write logs and etcd.
COLD_DISK = 15 * _GIB
WARM_DISK = 3 * _GIB
#: The cluster's programs and the caches of their compiler, on top of that.
TOOLS_DISK = 8 * _GIB
MEMORY = 4 * _GIB
#: What a simulated node and its share of the pods add to the control plane, with room to spare.
KWOK_NODE_MEMORY = 3 * 1024**2
#: A socket's path has 107 characters at most; the kubelet's longest is below this folder.
LONGEST_STATE_PATH = 107 - len("/kubelet/pod-resources/4294967295")
#: Images without which no pod starts and no name resolves.
BASIC_IMAGES = ("pause", "coredns")

SYSTEM_PROGRAMS = ("runc", "iptables", "ip6tables", "conntrack", "ipset", "socat", "ethtool", "ip")
CLUSTER_PROGRAMS = ("ctr", "containerd-shim-runc-v2", "bridge", "loopback", "host-local", "portmap")

_CAP_SYS_ADMIN = 21
_CAP_SYS_RESOURCE = 24

#: Each needs to work in a network namespace of its own, which leaves nothing behind.
_KERNEL_PROBES = {
    "network bridges (module bridge)": "ip link add b0 type bridge",
    "virtual network pairs (module veth)": "ip link add v0 type veth peer name v1",
    "address translation (module iptable_nat or nft_chain_nat)": (
        "iptables -t nat -A POSTROUTING -s 198.18.0.0/16 -j MASQUERADE"
    ),
    "connection tracking (module xt_conntrack)": (
        "iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT"
    ),
    "packet marks (module xt_mark)": "iptables -A FORWARD -m mark --mark 1/1 -j ACCEPT",
    "comments in rules (module xt_comment)": "iptables -A FORWARD -m comment --comment x -j ACCEPT",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on a port."""

    port: int
    pid: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine is like."""

    root: bool = True
    admin: bool = True
    lowers_oom_score: bool = True
    missing_tools: tuple[str, ...] = ()
    missing_programs: tuple[str, ...] = ()
    missing_images: tuple[str, ...] = ()
    broken_images: tuple[Problem, ...] = ()
    missing_controllers: tuple[str, ...] = ()
    missing_features: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    foreign_bridge: bool = False
    foreign_route: str = ""
    free_disk: int = 1 << 60
    disk_folder: str = "."
    warm: bool = False
    to_build: int = 0
    free_memory: int = 1 << 60
    kwok_nodes: int = 0
    state_path: str = ""


def problems(facts: Facts) -> list[Problem]:
    """Return everything that keeps the cluster from starting, with what to do about it."""
    return [*_programs(facts), *_machine(facts), *_places(facts), *_room(facts)]


def _programs(facts: Facts) -> Iterator[Problem]:
    if not facts.root:
        yield Problem("the host provider needs root", "sudo make cluster-up PROVIDER=host")
    elif not facts.admin:
        yield Problem(
            "root lacks CAP_SYS_ADMIN here (an unprivileged container?)",
            "run on the machine itself or in a privileged container",
        )
    if facts.missing_tools:
        yield Problem(f"missing in ./bin: {', '.join(facts.missing_tools)}", "make tools")
    if facts.missing_programs:
        yield Problem(
            f"missing system programs: {', '.join(facts.missing_programs)}", "make system"
        )
    if facts.missing_images:
        yield Problem(
            f"missing images in the bundle: {', '.join(facts.missing_images)}", "make images"
        )
    yield from facts.broken_images


def _machine(facts: Facts) -> Iterator[Problem]:
    if facts.missing_controllers:
        yield Problem(
            f"missing cgroup controllers: {', '.join(facts.missing_controllers)}",
            "mount them (cgroup v1: mount -t cgroup -o NAME none /sys/fs/cgroup/NAME) or"
            " enable them on the kernel's command line (cgroup_enable=memory)",
        )
    for feature in facts.missing_features:
        yield Problem(f"this kernel cannot do: {feature}", "modprobe it, or build it in")


def _places(facts: Facts) -> Iterator[Problem]:
    for holder in facts.holders:
        yield _port_problem(holder)
    if facts.foreign_bridge:
        yield Problem(
            f"a network interface {BRIDGE} exists that Tandem did not make",
            f"stop the cluster that it belongs to (k3s, kubeadm, …), or: ip link delete {BRIDGE}",
        )
    if facts.foreign_route:
        yield Problem(
            f"addresses {CLUSTER_RANGE} are in use: {facts.foreign_route}",
            "remove the route, or bring the cluster up on another machine",
        )
    if any(character.isspace() or character in ',"\\' for character in facts.state_path):
        yield Problem(
            f"the checkout's path holds spaces, commas or quotes: {facts.state_path}",
            "move the checkout to a plain path",
        )
    if len(facts.state_path) > LONGEST_STATE_PATH:
        yield Problem(
            f"the path {facts.state_path} has {len(facts.state_path)} characters; sockets below"
            f" it would have too long names with more than {LONGEST_STATE_PATH}",
            "move the checkout to a shorter path",
        )


def _room(facts: Facts) -> Iterator[Problem]:
    needed = (WARM_DISK if facts.warm else COLD_DISK) + facts.to_build
    if facts.free_disk < needed:
        yield Problem(
            f"{_gib(facts.free_disk)} free on the disk of {facts.disk_folder},"
            f" {_gib(needed)} are needed",
            "free space, or: make cluster-down PURGE=1 (deletes the node's images)",
        )
    memory = MEMORY + facts.kwok_nodes * KWOK_NODE_MEMORY
    if facts.free_memory < memory:
        fewer = "; or fewer simulated nodes (KWOK_NODES)" if facts.kwok_nodes else ""
        yield Problem(
            f"{_gib(facts.free_memory)} of memory are free, {_gib(memory)} are needed",
            f"end other programs, or take a larger machine{fewer}",
        )


def _port_problem(holder: Holder) -> Problem:
    if holder.pid is None:
        return Problem(
            f"port {holder.port} is taken by a process that cannot be seen from here",
            f"find it with: ss -ltnp 'sport = :{holder.port}' (as root, outside of containers)",
        )
    return Problem(
        f"port {holder.port} is taken by process {holder.pid} ({holder.command})",
        f"stop that program (kill {holder.pid}), then try again",
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def gather(settings: Settings) -> Facts:
    """Return what the machine is like; changes nothing."""
    layout = Layout(settings.state)
    root = os.geteuid() == 0
    capabilities = _capabilities()
    missing_programs = tuple(name for name in SYSTEM_PROGRAMS if not _which(name))
    parts = full_cluster(settings)
    tools = [Path(part.argv[0]).name for part in parts] + list(CLUSTER_PROGRAMS)
    mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    records, broken = bundle.survey(bundle.FOLDER)
    files = (bundle.problem_of_file(record, bundle.FOLDER) for record in records)
    broken += [problem for problem in files if problem]
    held = {record.name for record in records}
    folder = next(p for p in (settings.state, *settings.state.parents) if p.is_dir())
    have_network = root and not {"ip", "iptables"} & set(missing_programs)
    return Facts(
        root=root,
        admin=bool(capabilities & 1 << _CAP_SYS_ADMIN),
        lowers_oom_score=bool(capabilities & 1 << _CAP_SYS_RESOURCE),
        missing_tools=tuple(n for n in tools if not os.access(settings.bin / n, os.X_OK)),
        missing_programs=missing_programs,
        missing_images=tuple(name for name in BASIC_IMAGES if name not in held),
        broken_images=tuple(broken),
        missing_controllers=tuple(sorted(cgroups.NEEDED - cgroups.controllers(mounts))),
        missing_features=kernel_lacks() if have_network else (),
        # Only root can tell our own components from foreign programs.
        holders=tuple(foreign_holders(settings)) if root else (),
        foreign_bridge=have_network and _foreign_bridge(),
        foreign_route=_foreign_route() if have_network else "",
        free_disk=shutil.disk_usage(folder).free,
        disk_folder=str(folder),
        warm=_is_folder(layout.containerd / "io.containerd.metadata.v1.bolt"),
        free_memory=_available_memory(),
        kwok_nodes=settings.kwok_nodes,
        state_path=str(settings.state),
    )


def before_build(facts: Facts) -> Facts:
    """Return the facts as they count before `make tools` and `make images` have run."""
    return replace(
        facts, missing_tools=(), missing_images=(), broken_images=(),
        to_build=TOOLS_DISK if facts.missing_tools else 0,
    )  # fmt: skip


def beside_another(facts: Facts) -> Facts:
    """Return the facts without what the host cluster of another checkout brings about."""
    return replace(facts, holders=(), foreign_bridge=False, free_memory=Facts().free_memory)


def _is_folder(path: Path) -> bool:
    # The state is root's: to anybody else it looks like none.
    with suppress(PermissionError):
        return path.is_dir()
    return False


def check(settings: Settings) -> Facts:
    """Return the facts, or refuse with every problem at once."""
    facts = gather(settings)
    found = problems(facts)
    if found:
        raise UserError(found)
    return facts


def kernel_lacks() -> tuple[str, ...]:
    """Return the kernel's missing features, tried in a throw-away network namespace."""
    lacking = []
    for feature, command in _KERNEL_PROBES.items():
        done = subprocess.run(
            ["unshare", "--net", *command.split()], check=False, capture_output=True, timeout=20
        )
        if done.returncode != 0:
            lacking.append(feature)
    if not _bridge_netfilter():
        lacking.append("rules for bridged packets (module br_netfilter)")
    filesystems = Path("/proc/filesystems").read_text(encoding="utf-8").split()
    if "overlay" not in filesystems and not _modprobe("overlay"):
        lacking.append("overlay file systems (module overlay)")
    return tuple(lacking)


def _bridge_netfilter() -> bool:
    there = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    return there.exists() or (_modprobe("br_netfilter") and there.exists())


def _modprobe(module: str) -> bool:
    program = _which("modprobe")
    if program is None:
        return False
    return subprocess.run([program, module], check=False, capture_output=True).returncode == 0


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _foreign_bridge() -> bool:
    # One that a dead cluster of another checkout left is taken over.
    return network.bridge() is not None and network.bridge_state() is None


def _foreign_route() -> str:
    """Return the first route into our ranges that leads elsewhere than to our bridge."""
    done = subprocess.run(
        ["ip", "-4", "route", "show", "root", CLUSTER_RANGE],
        check=False, capture_output=True, text=True, timeout=10,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if f"dev {BRIDGE}" not in line:
            return line.strip()
    return ""


def foreign_holders(settings: Settings) -> list[Holder]:
    """Return who listens on our ports and is not part of this cluster."""
    ports = settings.ports
    wanted = {getattr(ports, name) for name in ports.__slots__}
    listening = _listeners(wanted)
    if not listening:
        return []
    ours = {process.pid for process in processes.of_cluster(settings.state)}
    owners = _socket_owners(set(listening.values()))
    found = []
    for port, inode in sorted(listening.items()):
        pid = owners.get(inode)
        if pid not in ours:
            found.append(Holder(port, pid, _command(pid) if pid else ""))
    return found


def _listeners(ports: Iterable[int]) -> dict[int, str]:
    """Return the socket of each of our ports that would keep us from listening on it."""
    wanted, found = set(ports), {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # A kernel without IPv6 has no second table.
            for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
                found.update(listener(line, wanted))
    return found


def listener(line: str, ports: set[int]) -> dict[int, str]:
    """Return port and socket in a line of /proc/net/tcp when it bars one of our ports."""
    words = line.split()
    address, _, port = words[1].rpartition(":")
    listening = words[3] == "0A"
    # We listen on loopback and on the bridge: a server on another address is in no one's way.
    node = "".join(f"{int(part):02X}" for part in reversed(NODE_IP.split(".")))
    bars = address in {"0" * 8, "0100007F", node, "0" * 32}
    if listening and bars and int(port, 16) in ports:
        return {int(port, 16): words[9]}
    return {}


def _socket_owners(inodes: set[str]) -> dict[str, int]:
    """Return the process of each socket."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # Processes end while we look.
            for descriptor in (entry / "fd").iterdir():
                with suppress(OSError):
                    inode = wanted.get(os.readlink(descriptor))  # noqa: PTH115 - no path at all
                    if inode:
                        owners[inode] = int(entry.name)
    return owners


def _command(pid: int) -> str:
    with suppress(OSError):
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        text = raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return text if len(text) <= 100 else f"{text[:97]}…"  # noqa: PLR2004 - one line
    return "?"


def lowers_oom_score() -> bool:
    """Return whether our processes may lower their OOM score."""
    return bool(_capabilities() & 1 << _CAP_SYS_RESOURCE)
