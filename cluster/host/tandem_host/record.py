"""What the machine was like before a cluster began, so that `down` can restore it.

The record lies outside of every checkout (`/run/tandem/host.json`): it also tells a
second checkout whose cluster this is. A copy in the state folder survives a lost one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from tandem_host import accounting
from tandem_host.settings import RUN_FOLDER, Settings

RECORD = RUN_FOLDER / "host.json"
_COPY = "record.json"

#: Settings of the kernel that kubelet, kube-proxy, CNI or we change; restored in this order.
SYSCTLS = (
    "net/ipv4/ip_forward",
    # The kernel changes these by itself whenever forwarding changes: a hardened host's would
    # be lost.
    "net/ipv4/conf/all/accept_redirects",
    "net/ipv4/conf/default/accept_redirects",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

#: Paths outside of our folders that the components make by themselves, inner ones first.
#: Those that were there before stay, and so do files of others in them.
FOREIGN_PATHS = (
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/var/lib/cni/results",
    "/var/lib/cni/cache",
    "/var/lib/cni",
    "/var/log/containers",
    "/run/containerd/s",
    "/run/containerd",
    "/opt/containerd/bin",
    "/opt/containerd/lib",
    "/opt/containerd",
)

_PROC_SYS = Path("/proc/sys")


@dataclass(frozen=True, slots=True)
class Record:
    """The owner of the machine's host cluster and the state of the machine before it."""

    checkout: str
    state: str
    sysctls: dict[str, str] = field(default_factory=dict)
    absent_paths: list[str] = field(default_factory=list)
    firewall: dict[str, str] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the record in a file's text, None when it is damaged."""
        try:
            data: Any = json.loads(text)
            return cls(**data)
        except (ValueError, TypeError):
            return None


def take(settings: Settings, firewall: dict[str, str]) -> Record:
    """Return the record of the machine as it is now."""
    sysctls = {name: read_sysctl(name) for name in SYSCTLS}
    return Record(
        checkout=str(settings.checkout),
        state=str(settings.state),
        sysctls={name: value for name, value in sysctls.items() if value is not None},
        absent_paths=[path for path in FOREIGN_PATHS if not Path(path).exists()],
        firewall=firewall,
        counters=accounting.names(),
    )


def unknown(settings: Settings) -> Record:
    """Return the record for a cluster whose own was lost.

    Marked processes and our bridge still prove that every chain of Kubernetes is ours. What
    the kernel's settings were and which empty folders were there, nobody knows any more:
    they stay as they are.
    """
    return Record(checkout=str(settings.checkout), state=str(settings.state))


def read_sysctl(name: str) -> str | None:
    """Return a kernel setting, None when this kernel has none of that name."""
    try:
        return (_PROC_SYS / name).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def write_sysctl(name: str, value: str) -> None:
    """Change a kernel setting."""
    (_PROC_SYS / name).write_text(value, encoding="utf-8")


def save(record: Record) -> None:
    """Write the record and its copy."""
    text = json.dumps(asdict(record), indent=1)
    for path in (RECORD, Path(record.state) / _COPY):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)


def load() -> Record | None:
    """Return the record of the machine's host cluster, None when there is none."""
    try:
        return Record.parse(RECORD.read_text(encoding="utf-8"))
    except OSError:
        return None


def find(settings: Settings) -> Record | None:
    """Return the record of a cluster, or its copy, None when both are lost."""
    found = load()
    return found if found and found.state == str(settings.state) else load_copy(settings)


def load_copy(settings: Settings) -> Record | None:
    """Return the copy in a cluster's state folder, None when there is none."""
    try:
        return Record.parse((settings.state / _COPY).read_text(encoding="utf-8"))
    except OSError:
        return None


def forget(settings: Settings) -> None:
    """Delete the record and its copy."""
    RECORD.unlink(missing_ok=True)
    (settings.state / _COPY).unlink(missing_ok=True)
