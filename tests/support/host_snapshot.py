"""What a host cluster could leave on a machine, as a value that two moments can be compared by."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tandem_host import accounting, processes
from tandem_host.record import FOREIGN_PATHS, SYSCTLS, read_sysctl
from tandem_host.settings import RUN_FOLDER

#: Programs that only a Kubernetes node runs.
PROGRAMS = {
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy",
    "kubelet", "containerd", "containerd-shim-runc-v2", "pause", "coredns",
}  # fmt: skip
_COUNTERS = re.compile(r"\[\d+:\d+\]")


@dataclass(frozen=True)
class Snapshot:
    """The traces; every field is sorted text, so that a difference can be read."""

    processes: list[str]
    mounts: list[str]
    links: list[str]
    addresses: list[str]
    routes: list[str]
    iptables: list[str]
    ip6tables: list[str]
    namespaces: list[str]
    cgroups: list[str]
    sockets: list[str]
    ports: list[str]
    sysctls: list[str]
    counters: list[str]
    paths: list[str]


def take() -> Snapshot:
    """Return the traces on this machine now."""
    return Snapshot(
        processes=_processes(),
        mounts=sorted(_mounts()),
        links=sorted(link["ifname"] for link in json.loads(_run("ip", "-json", "link"))),
        addresses=sorted(_run("ip", "-o", "-4", "address").splitlines()),
        routes=sorted(_run("ip", "-4", "route").splitlines()),
        iptables=_rules("iptables-save"),
        ip6tables=_rules("ip6tables-save"),
        namespaces=sorted(str(path) for path in Path("/run/netns").glob("*")),
        cgroups=sorted(path for path, _, _ in os.walk("/sys/fs/cgroup") if "tandem" in path
                       or "kube" in path),
        sockets=sorted(
            line.split()[7]
            for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
            if len(line.split()) > 7 and re.search("containerd|kubelet|tandem|nri", line)
        ),
        ports=sorted(
            {line.split()[3] for line in _run("ss", "-Hltn").splitlines()
             if re.search(r":(6443|2379|238[01]|102\d\d|10338)$", line.split()[3])}
        ),
        sysctls=[f"{name}={read_sysctl(name)}" for name in SYSCTLS],
        counters=accounting.names(),
        paths=sorted(str(p) for p in [*map(Path, FOREIGN_PATHS), RUN_FOLDER] if p.exists()),
    )  # fmt: skip


def differences(before: Snapshot, now: Snapshot) -> list[str]:
    """Return what came and what went, one line each."""
    found = []
    old, new = asdict(before), asdict(now)
    for field in fields(Snapshot):
        found += [f"{field.name}: + {x}" for x in new[field.name] if x not in old[field.name]]
        found += [f"{field.name}: - {x}" for x in old[field.name] if x not in new[field.name]]
    return found


def await_same(before: Snapshot, seconds: float = 5.0) -> list[str]:
    """Return the lasting differences: the kernel takes some moments to let go of things."""
    deadline = time.monotonic() + seconds
    while True:
        found = differences(before, take())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def _rules(program: str) -> list[str]:
    lines = _run(program).splitlines()
    return [_COUNTERS.sub("", line) for line in lines if not line.startswith("#")]


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    # Builds of images in another terminal mount and unmount as they go.
    return {line.split()[4] for line in lines if "buildah" not in line}


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
