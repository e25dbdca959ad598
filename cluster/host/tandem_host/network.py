"""The bridge that pods hang on, and the kernel settings that it needs."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from typing import Any

from tandem.errors import UserError
from tandem.process import run
from tandem_host import accounting, firewall
from tandem_host.config import CNI_NETWORK, CNI_RESULTS
from tandem_host.record import Record, read_sysctl, write_sysctl
from tandem_host.settings import BRIDGE, CLUSTER_RANGE, NODE_IP, POD_CIDR, Settings

_TIMEOUT = 15.0
_NEEDED_SYSCTLS = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}


_ALIAS = "tandem "


def alias(state: str) -> str:
    """Return the text by which a bridge of ours is known; `ip link` shows it."""
    return f"{_ALIAS}{state}"[:255]


def bridge_state() -> str | None:
    """Return the state folder of the cluster that made the bridge, None when none of ours did."""
    found = bridge()
    text: str = found.get("ifalias", "") if found else ""
    return text.removeprefix(_ALIAS) if text.startswith(_ALIAS) else None


def links() -> list[dict[str, Any]]:
    """Return the machine's network interfaces."""
    found: list[dict[str, Any]] = json.loads(run(["ip", "-json", "link"], timeout=_TIMEOUT))
    return found


def bridge() -> dict[str, Any] | None:
    """Return the interface of the bridge's name, None when there is none."""
    return next((link for link in links() if link["ifname"] == BRIDGE), None)


def up(settings: Settings) -> None:
    """Make the bridge, its address, the kernel settings and our rules; repairs what lacks."""
    if bridge() is None:
        _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("link", "set", BRIDGE, "alias", alias(str(settings.state)), "up")
    prefix = POD_CIDR.partition("/")[2]
    _ip("address", "replace", f"{NODE_IP}/{prefix}", "dev", BRIDGE)
    for name, value in _NEEDED_SYSCTLS.items():
        if read_sysctl(name) != value:
            write_sysctl(name, value)
    firewall.let_pods_out()
    _hang_on(links())


def host_ends(cached: dict[str, Any]) -> list[str]:
    """Return the node's ends of a pod's links, from a result that libcni cached."""
    found = cached.get("result", {}).get("interfaces", [])
    return [i["name"] for i in found if not i.get("sandbox") and i["name"] != BRIDGE]


def _hang_on(present: list[dict[str, Any]]) -> None:
    """Hang running pods on the bridge again: one that was deleted let go of them."""
    loose = {link["ifname"] for link in present if "master" not in link}
    for path in CNI_RESULTS.glob(f"{CNI_NETWORK}-*"):
        with suppress(OSError, ValueError):  # A pod may end while we look.
            for name in host_ends(json.loads(path.read_text(encoding="utf-8"))):
                if name in loose:
                    _ip("link", "set", name, "master", BRIDGE)
                    _ip("link", "set", name, "type", "bridge_slave", "hairpin", "on")


def sound(settings: Settings) -> bool:
    """Return whether bridge and kernel settings are as `up` leaves them."""
    found = bridge()
    return (
        found is not None
        and found.get("ifalias") == alias(str(settings.state))
        and "UP" in found["flags"]
        and all(read_sysctl(name) == value for name, value in _NEEDED_SYSCTLS.items())
    )


def down(record: Record) -> None:
    """Remove the bridge with all that hangs on it, our rules, and restore the settings."""
    found = bridge()
    if found is not None and found.get("ifalias") == alias(record.state):
        for link in links():
            if link.get("master") == BRIDGE:
                # It also goes by itself, with the pod's namespace, at any moment now.
                with suppress(UserError):
                    _ip("link", "delete", link["ifname"])
        _ip("link", "delete", BRIDGE)
    _forget_connections()
    firewall.clean(record.firewall)
    for counter in accounting.KUBE_PROXY:
        if counter not in record.counters:
            accounting.delete(counter)
    for name, value in record.sysctls.items():
        if read_sysctl(name) != value:
            with suppress(OSError):  # A module that is gone takes its settings with it.
                write_sysctl(name, value)


def _forget_connections() -> None:
    """Drop the kernel's memory of connections with pods and Services.

    A later cluster's clients would be led to addresses of this one's pods.
    """
    for side in ("--orig-src", "--orig-dst"):
        # The program ends with 1 when there was nothing to delete: that is no failure.
        subprocess.run(
            ["conntrack", "--delete", side, CLUSTER_RANGE],
            check=False, capture_output=True, timeout=_TIMEOUT,
        )  # fmt: skip


def _ip(*words: str) -> None:
    run(["ip", *words], timeout=_TIMEOUT)
