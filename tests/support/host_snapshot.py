"""What a host cluster could leave on a machine, as a value that two moments can be compared by.

What is looked at does not come from the provider's own lists where that can be avoided: a
trace that the provider does not know of is the one to find. Reading is at the edge; what
the programs print is turned into lines by pure functions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from tandem_host import accounting, processes
from tandem_host.settings import CLUSTER_RANGE, Ports

#: Programs that only a Kubernetes node runs.
PROGRAMS = {
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy",
    "kubelet", "containerd", "containerd-shim-runc-v2", "runc", "pause", "coredns",
}  # fmt: skip
#: Names that a node's programs give to what they make anywhere.
_OF_A_NODE = re.compile(r"kube|cni|containerd|tandem|etcd|runc|nri\b|xtables|netns")
#: Folders whose every entry counts, and those where others write all the time.
_FOLDERS = ("/run", "/var/lib", "/opt", "/usr/libexec")
_BUSY_FOLDERS = ("/etc", "/var/log")
#: Below an entry of a node's, this many levels of folders are listed.
_LEVELS = 4
#: Programs that build images in another terminal come and go.
_OF_BUILDS = re.compile(r"buildah|/containers\b")

_COUNTERS = re.compile(r"\[\d+:\d+\]")
#: Settings under /proc/sys that are no settings: the kernel's own figures.
_FIGURES = re.compile(
    r"^kernel/(random/|ns_last_pid|pty/nr|tainted|perf_event_max_sample_rate)"
    r"|^vm/stat_refresh|^fs/(quota/|.*-(nr|state)$)|_count$"
)
#: Of an address and of a route: all that no clock changes.
_ROUTE = ("family", "table", "type", "dst", "gateway", "dev", "protocol", "metric", "scope")
_RULE = ("family", "priority", "src", "srclen", "dst", "dstlen", "fwmark", "iif", "oif", "table")


@dataclass(frozen=True)
class Snapshot:
    """The traces; every field is sorted text, so that a difference can be read."""

    processes: list[str]
    mounts: list[str]
    links: list[str]
    addresses: list[str]
    routes: list[str]
    rules: list[str]
    iptables: list[str]
    ip6tables: list[str]
    nftables: list[str]
    ipsets: list[str]
    counters: list[str]
    namespaces: list[str]
    cgroups: list[str]
    sockets: list[str]
    ports: list[str]
    sysctls: list[str]
    paths: list[str]


def take() -> Snapshot:
    """Return the traces on this machine now."""
    return Snapshot(
        processes=_processes(),
        mounts=mount_lines(_read("/proc/self/mountinfo")),
        links=link_lines(_ip("link")),
        addresses=address_lines(_ip("address")),
        routes=[
            line
            for family in ("-4", "-6")
            for line in lines_of(_ip(family, "route", "show", "table", "all"), _ROUTE, family)
        ],
        rules=[
            line for family in ("-4", "-6") for line in lines_of(_ip(family, "rule"), _RULE, family)
        ],
        iptables=rule_lines(_run("iptables-save")),
        ip6tables=rule_lines(_run("ip6tables-save")),
        nftables=nft_lines(json.loads(_run("nft", "-j", "list", "ruleset"))),
        ipsets=sorted(_run("ipset", "list", "-name").split()),
        counters=accounting.names(),
        namespaces=sorted(str(path) for path in Path("/run/netns").glob("*")),
        cgroups=sorted(
            path
            for path, _, _ in os.walk("/sys/fs/cgroup")
            if _OF_A_NODE.search(path.removeprefix("/sys/fs/cgroup"))
        ),
        sockets=socket_lines(_read("/proc/net/unix")),
        ports=port_lines(_run("ss", "-Hlntu")),
        sysctls=sorted(f"{name}={value}" for name, value in _sysctls()),
        paths=sorted({*_entries(_FOLDERS, every=True), *_entries(_BUSY_FOLDERS, every=False)}),
    )


def differences(before: Snapshot, now: Snapshot) -> list[str]:
    """Return what came and what went, one line each."""
    found = []
    old, new = asdict(before), asdict(now)
    # A module that the kernel loaded meanwhile brings settings, and a link takes its away.
    old["sysctls"], new["sysctls"] = _of_both(before.sysctls, now.sysctls)
    for field in fields(Snapshot):
        # Counted: the second mount at a place is a trace too.
        was, has = Counter(old[field.name]), Counter(new[field.name])
        found += [f"{field.name}: + {line}" for line in sorted((has - was).elements())]
        found += [f"{field.name}: - {line}" for line in sorted((was - has).elements())]
    return found


def await_same(before: Snapshot, seconds: float = 15.0) -> list[str]:
    """Return the lasting differences: the kernel takes some moments to let go of things."""
    deadline = time.monotonic() + seconds
    while True:
        found = differences(before, take())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def mount_lines(mountinfo: str) -> list[str]:
    """Return place, kind, options and propagation of each mount, from its `mountinfo`."""
    found = []
    for line in mountinfo.splitlines():
        words, _, source = line.partition(" - ")
        _, _, _, root, point, options, *propagation = words.split()
        if not _OF_BUILDS.search(f"{root} {point}"):
            # `shared:5`: that it is shared is a setting, the number is not.
            kinds = [each.partition(":")[0] for each in propagation]
            found.append(" ".join([point, source.split()[0], options, *kinds]))
    return sorted(found)


def link_lines(links: Iterable[dict[str, Any]]) -> list[str]:
    """Return name, bridge and promiscuity of each interface, from `ip -json link`."""
    return sorted(
        " ".join([
            link["ifname"],
            link.get("master", ""),
            "promiscuous" if "PROMISC" in link["flags"] else "",
        ]).rstrip()
        for link in links
    )  # fmt: skip


def address_lines(links: Iterable[dict[str, Any]]) -> list[str]:
    """Return the addresses of both families, from `ip -json address`."""
    return sorted(
        f"{link['ifname']} {address['local']}/{address['prefixlen']}"
        for link in links
        for address in link.get("addr_info", [])
        # Privacy addresses of IPv6 are made anew by the clock.
        if not address.get("temporary")
    )


def lines_of(items: Iterable[dict[str, Any]], keys: tuple[str, ...], family: str) -> list[str]:
    """Return the named values of routes or rules, from `ip -json`."""
    return sorted(
        " ".join(f"{key}={item[key]}" for key in keys if key in item)
        for item in ({"family": family, **each} for each in items)
    )


def rule_lines(saved: str) -> list[str]:
    """Return what `iptables-save` prints, in its order, each line with its table."""
    found, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line
        elif line.startswith((":", "-")):
            found.append(f"{table} {_COUNTERS.sub('', line).rstrip()}")
    return found


def nft_lines(listed: dict[str, Any]) -> list[str]:
    """Return the whole ruleset of nftables, from `nft -j list ruleset`.

    Beside what iptables made, that is the tables, sets and rules which `iptables-save` does
    not show. Handles, counts, elements of sets and stateful objects' values are left out.
    """
    found = []
    for item in listed["nftables"]:
        for kind, value in item.items():
            if kind == "metainfo":
                continue
            kept = {
                key: _without_counts(each)
                for key, each in value.items()
                if key not in {"handle", "index", "elem", "packets", "bytes", "used"}
            }
            found.append(f"{kind} {json.dumps(kept, sort_keys=True)}")
    return sorted(found)


def _without_counts(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_counts(each) for each in value]
    if isinstance(value, dict):
        return {
            key: None if key == "counter" else _without_counts(each) for key, each in value.items()
        }
    return value


def socket_lines(text: str) -> list[str]:
    """Return the paths of a node's Unix sockets that are listened on, from /proc/net/unix."""
    words = (line.split(maxsplit=7) for line in text.splitlines()[1:])
    # Connections to a socket carry its path too; flag 0x10000 is the listener's.
    return sorted(
        {w[7] for w in words if len(w) > 7 and int(w[3], 16) & 0x10000 and _OF_A_NODE.search(w[7])}
    )


def port_lines(text: str) -> list[str]:
    """Return the listeners on a node's ports and on addresses of its pods, from `ss -Hlntu`."""
    ours = {str(port) for port in astuple(Ports())}
    found = []
    for line in text.splitlines():
        protocol, _, _, _, local, *_ = line.split()
        address, _, port = local.rpartition(":")
        if port in ours or _is_the_clusters(address):
            found.append(f"{protocol} {local}")
    return sorted(found)


def _is_the_clusters(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0].strip("[]")) in ip_network(CLUSTER_RANGE)
    except ValueError:
        return False  # `*` is every address


def changed_sysctls(found: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and earlier value of the settings among some differences."""
    for line in found:
        if line.startswith("sysctls: - "):
            name, _, value = line.removeprefix("sysctls: - ").partition("=")
            yield name, value


def _of_both(before: list[str], now: list[str]) -> tuple[list[str], list[str]]:
    """Return the settings that were there at both moments."""
    names = {x.partition("=")[0] for x in before} & {x.partition("=")[0] for x in now}
    return (
        [x for x in before if x.partition("=")[0] in names],
        [x for x in now if x.partition("=")[0] in names],
    )


def _sysctls() -> Iterator[tuple[str, str]]:
    """Yield every setting of the kernel, also those that the provider does not know of."""
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = Path(folder, name)
            setting = str(path.relative_to("/proc/sys"))
            if not _FIGURES.search(setting):
                with suppress(OSError):  # Some are only written to; links come and go.
                    yield setting, path.read_text("utf-8", errors="replace").strip()


def _entries(folders: Iterable[str], *, every: bool) -> Iterator[str]:
    for folder in map(Path, folders):
        if not folder.is_dir():
            continue
        for entry in folder.iterdir():
            if _OF_BUILDS.search(str(entry)):
                continue
            of_a_node = _OF_A_NODE.search(entry.name) is not None
            if every or of_a_node:
                yield str(entry)
            if of_a_node or str(entry) == "/var/log/pods":
                yield from _below(entry, _LEVELS)


def _below(folder: Path, levels: int) -> Iterator[str]:
    if levels and folder.is_dir() and not folder.is_symlink():
        with suppress(OSError):  # A pod's folder may go while we look.
            for entry in folder.iterdir():
                yield str(entry)
                yield from _below(entry, levels - 1)


def _processes() -> list[str]:
    found = [f"{p.program} {p.component}" for p in processes.marked()]
    # Control planes of other tests come and go beside the cluster.
    others = {process.pid for process in processes.marked(processes.TEST_MARK)}
    for entry in Path("/proc").iterdir():
        # Processes end while we look.
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = Path(words[0]).name
            alive = processes.start_ticks(int(entry.name)) is not None
            if name in PROGRAMS and alive and int(entry.name) not in others:
                found.append(f"{name} {entry.name}")
    return sorted(found)


def _ip(*words: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(_run("ip", "-json", *words) or "[]")
    return [item for item in loaded if item]


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _run(*words: str) -> str:
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    assert shutil.which(words[0], path=env["PATH"]), f"{words[0]} is missing (fix: make system)"
    return subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=60, env=env
    ).stdout
