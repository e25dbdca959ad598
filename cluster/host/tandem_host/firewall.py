"""iptables: one masquerade rule of ours, and the removal of what the cluster left.

`removal` is pure: from the rules now and the rules before it computes exactly what has to
go. A chain or rule that was there before the cluster is never named in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.process import run
from tandem_host.settings import BRIDGE, CLUSTER_RANGE, NODE_IP, POD_CIDR

#: Chains with these prefixes are made by kube-proxy and kubelet, by the CNI plugins, by us.
PREFIXES = ("KUBE-", "CNI-", "TANDEM-")
FAMILIES = {"ipv4": "iptables", "ipv6": "ip6tables"}
_MASQUERADE = "TANDEM-MASQ"
_FORWARD = "TANDEM-FORWARD"
_INPUT = "TANDEM-INPUT"
_TIMEOUT = 30.0

_TARGET = re.compile(r"(?:-j|-g|--jump|--goto) (\S+)")


@dataclass(slots=True)
class Table:
    """One table of `iptables-save`: its chains and its rules (`-A CHAIN …`) in order."""

    chains: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)


def parse(text: str) -> dict[str, Table]:
    """Return the tables in the output of `iptables-save`."""
    tables: dict[str, Table] = {}
    table = Table()
    for line in text.splitlines():
        if line.startswith("*"):
            table = tables.setdefault(line[1:].strip(), Table())
        elif line.startswith(":"):
            table.chains.append(line[1:].split()[0])
        elif line.startswith("-A "):
            table.rules.append(line)
    return tables


def removal(now: str, before: str) -> str:
    """Return input for `iptables-restore --noflush` that removes what the cluster made.

    That is every chain with one of our prefixes that was not there before, and every rule
    elsewhere that jumps to such a chain. Empty when there is nothing to do.
    """
    earlier = parse(before)
    lines: list[str] = []
    for name, table in parse(now).items():
        known = set(earlier.get(name, Table()).chains)
        gone = [c for c in table.chains if c.startswith(PREFIXES) and c not in known]
        if not gone:
            continue
        doomed = set(gone)
        lines.append(f"*{name}")
        # Declaring a chain empties it: after that nothing in them refers to one another.
        lines += [f":{chain} - [0:0]" for chain in gone]
        lines += [
            f"-D {rule[3:]}"
            for rule in table.rules
            if rule.split()[1] not in doomed and _jump(rule) in doomed
        ]
        lines += [f"-X {chain}" for chain in gone]
        lines.append("COMMIT")
    return "\n".join(lines) + "\n" if lines else ""


def _jump(rule: str) -> str | None:
    # A comment may hold anything, also "-j X": the last target of the line is the real one.
    found = _TARGET.findall(rule)
    return found[-1] if found else None


def addition(now: str) -> str:
    """Return input for `iptables-restore --noflush` that lets pods out and to the node.

    Our jumps come first: a host firewall that ends in "reject all" must not cut pods off
    from the API server.
    """
    tables = parse(now)

    def jump(table: str, chain: str, target: str) -> list[str]:
        there = any(
            rule.split()[1] == chain and _jump(rule) == target
            for rule in tables.get(table, Table()).rules
        )
        return [] if there else [f"-I {chain} -j {target}"]

    related = "-m conntrack --ctstate RELATED,ESTABLISHED"
    return "\n".join([
        "*nat",
        f":{_MASQUERADE} - [0:0]",
        f"-A {_MASQUERADE} -s {POD_CIDR} ! -d {CLUSTER_RANGE} -j MASQUERADE",
        *jump("nat", "POSTROUTING", _MASQUERADE),
        "COMMIT",
        "*filter",
        f":{_FORWARD} - [0:0]",
        f"-A {_FORWARD} -i {BRIDGE} -j ACCEPT",
        f"-A {_FORWARD} -o {BRIDGE} {related} -j ACCEPT",
        *jump("filter", "FORWARD", _FORWARD),
        f":{_INPUT} - [0:0]",
        f"-A {_INPUT} -i {BRIDGE} -d {NODE_IP}/32 -j ACCEPT",
        *jump("filter", "INPUT", _INPUT),
        "COMMIT",
        "",
    ])  # fmt: skip


def saved() -> dict[str, str]:
    """Return the rules of both families as text."""
    return {
        family: run([f"{program}-save"], timeout=_TIMEOUT) for family, program in FAMILIES.items()
    }


def let_pods_out() -> None:
    """Install our masquerade and forward chains; harmless when they are there."""
    restore("ipv4", addition(run(["iptables-save"], timeout=_TIMEOUT)))


def clean(before: dict[str, str]) -> None:
    """Remove the cluster's chains and rules, of both families."""
    for family, now in saved().items():
        restore(family, removal(now, before.get(family, "")))
        _drop_empty_tables(family, before.get(family, ""))


def restore(family: str, text: str) -> None:
    """Feed `iptables-restore --noflush`: all of a table's changes or none."""
    if text:
        run([f"{FAMILIES[family]}-restore", "--noflush", "--wait", "10"], timeout=_TIMEOUT,
            stdin=text)  # fmt: skip


def _drop_empty_tables(family: str, before: str) -> None:
    """Delete the tables that iptables-nft made on first use and that are empty again.

    Without the program `nft` they stay: empty tables with policy ACCEPT do nothing.
    """
    if not shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        return
    tables = parse(run([f"{FAMILIES[family]}-save"], timeout=_TIMEOUT))
    nft = {"ipv4": "ip", "ipv6": "ip6"}[family]
    for name in new_and_empty(tables, parse(before)):
        listed = json.loads(run(["nft", "-j", "list", "table", nft, name], timeout=_TIMEOUT))
        if only_chains(listed):
            run(["nft", "delete", "table", nft, name], timeout=_TIMEOUT)


def only_chains(listed: dict[str, Any]) -> bool:
    """Return whether nft's listing of a table holds nothing but chains.

    `iptables-save` shows neither sets nor rules that nft made: they must not be lost.
    """
    return all(set(item) <= {"metainfo", "table", "chain"} for item in listed["nftables"])


def new_and_empty(now: dict[str, Table], before: dict[str, Table]) -> Sequence[str]:
    """Return the tables without any rule or chain of a user's that were not there before."""
    builtin = {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
    return [
        name
        for name, table in now.items()
        if name not in before and not table.rules and set(table.chains) <= builtin
    ]
