"""A report for a person: trees and sentences, no line longer than 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from tandem.explain.facts import Facts
from tandem.explain.findings import Finding
from tandem.explain.kueue import Unit
from tandem.explain.model import Placement, PodGroup, SubGroup
from tandem.explain.quantity import Resources
from tandem.explain.report import Report

WIDTH = 100


def plural(count: int, word: str) -> str:
    """Return a count with its word: `1 pod`, `2 pods`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _wrapped(text: str, indent: str, later: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent if later is None else later,
        break_on_hyphens=False,
    )  # fmt: skip


def _amount(resources: Resources) -> str:
    cores, memory = resources.cpu / 1000, resources.memory / 1000
    return f"{plural(resources.gpu, 'GPU')}, {cores:g} cores, {memory:.1f} GB"


def _placement(placement: Placement | None) -> str:
    if placement is None:
        return ""
    kept = [f"one {placement.required}"] if placement.required else []
    kept += [f"one {placement.preferred} if it can be"] if placement.preferred else []
    return f"  in {', '.join(kept)} ({placement.topology})"


def _minimum(node: SubGroup) -> str:
    if node.children:
        count, needed = len(node.children), node.min_subgroups
        if needed is None or needed == count:
            return f"all of {plural(count, 'subgroup')}" if count > 1 else "its subgroup"
        return f"{needed} of {plural(count, 'subgroup')}"
    count = sum(pods.count for pods in node.pods)
    return f"{node.min_members or 0} of {plural(count, 'pod')}"


def _pods(node: SubGroup) -> str:
    parts = []
    for pods in node.pods:
        demand = pods.demand
        each = f"{pods.where}: {plural(demand.gpu, 'GPU')} each" if demand.gpu else pods.where
        parts.append(each + (f", claims {', '.join(pods.claims)}" if pods.claims else ""))
    return "; ".join(parts)


def _shape(node: SubGroup) -> object:
    return (
        node.min_members, node.min_subgroups, node.placement,
        [(id(pods.obj), pods.path, pods.count) for pods in node.pods],
        [_shape(child) for child in node.children],
    )  # fmt: skip


_TO = " … "


def _merged(nodes: Sequence[SubGroup]) -> list[tuple[str, SubGroup]]:
    """Return nodes with their names; equal neighbours without children are one `a-0 … 63`."""
    found = []
    for _, same in groupby(nodes, key=lambda node: node.name if node.children else _shape(node)):
        equal = list(same)
        first, last = equal[0].name, equal[-1].name
        name = first if len(equal) == 1 else f"{first}{_TO}{last.rpartition('-')[2]}"
        found.append((name, equal[0]))
    return found


def _rows(nodes: Sequence[SubGroup], indent: str = "") -> Iterator[tuple[str, SubGroup]]:
    """Yield the tree's rows: the name behind its branch, and the node."""
    merged = _merged(nodes)
    for index, (name, node) in enumerate(merged):
        last = index == len(merged) - 1
        yield f"{indent}{'└─' if last else '├─'} {name}", node
        yield from _rows(node.children, f"{indent}{'   ' if last else '│  '}")


def _tree(group: PodGroup) -> Iterator[str]:
    root, rows = group.root, list(_rows(group.root.children))
    if not rows:
        yield from _wrapped(f"{_minimum(root)}  {_pods(root)}{_placement(root.placement)}", "  ")
        return
    yield from _wrapped(f"{_minimum(root)}{_placement(root.placement)}", "  ", "    ")
    minimums = [_minimum(node) + (" each" if _TO in name else "") for name, node in rows]
    names_wide = max(len(name) for name, _ in rows)
    # Only leaves have pods to their right.
    leaves_wide = max(len(each) for each, (_, node) in zip(minimums, rows, strict=True)
                      if not node.children)  # fmt: skip
    for minimum, (name, node) in zip(minimums, rows, strict=True):
        line = f"  {name:<{names_wide}}  {minimum:<{leaves_wide}}  {_pods(node)}".rstrip()
        yield from _wrapped(line + _placement(node.placement), "", "      ")


def _queue(group: PodGroup, facts: Facts) -> str:
    if not group.queue:
        return "no queue"
    path = " < ".join(queue.name for queue in facts.path(group.queue))
    return f"queue {path or group.queue}"


def _group(group: PodGroup, facts: Facts) -> Iterator[str]:
    made = "brought by the run" if group.external else f"made of {group.source}"
    copies = f", {group.copies} of them, one a pod" if group.copies != 1 else ""
    yield from _wrapped(f"PodGroup {group.name}  {made}{copies}", "", "    ")
    priority = " or ".join(group.priority_classes)
    about = [
        _queue(group, facts), f"priority {priority}",
        "preemptible" if group.preemptible else "not preemptible",
    ]  # fmt: skip
    if group.staleness:
        about.append(f"may be incomplete for {group.staleness}")
    yield from _wrapped("; ".join(about), "  ")
    needed, total = group.root.needed(), group.root.total()
    words = f"starts with {_amount(needed)}"
    if total != needed:
        words += f"; all of it is {_amount(total)}"
    yield from _wrapped(words, "  ")
    yield from _tree(group)


def _unit(unit: Unit, facts: Facts) -> Iterator[str]:
    path = " < ".join(queue.name for queue in facts.path(unit.queue)) or unit.queue
    yield from _wrapped(f"Workload of Kueue's: {unit.name}", "", "    ")
    again = "starts anew by itself" if unit.comes_back else "is over, and has to be started anew"
    about = f"queue {path}; priority class {unit.priority or 'none'}; preempted whole, and then it"
    yield from _wrapped(f"{about} {again}", "  ", "    ")
    yield from _wrapped(
        f"all or nothing: {plural(unit.count, 'pod')}, {_amount(unit.demand)}", "  ", "    "
    )
    for pods in unit.pods:
        each = f": {plural(pods.demand.gpu, 'GPU')} each" if pods.demand.gpu else ""
        yield from _wrapped(f"{pods.count} of {pods.where}{each}", "    ", "      ")


def _finding(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.level}: {finding.rule}: {finding.place}", "", "    ")
    yield from _wrapped(finding.what, "  ", "    ")
    yield from _wrapped(f"why: {finding.reason}", "  ", "    ")
    yield from _wrapped(f"fix: {finding.fix}", "  ", "    ")


def _head(report: Report) -> str:
    groups = report.grouping.groups
    gangs, pods = sum(each.copies for each in groups), sum(each.pod_count for each in groups)
    gpus = sum(each.gpus for each in groups)
    if report.units:
        units, pods = len(report.units), sum(each.count for each in report.units)
        gpus = sum(each.demand.gpu for each in report.units)
        return (
            f"{report.title}: {plural(units, 'Workload')}, {plural(pods, 'pod')}, "
            f"{plural(gpus, 'GPU')}, as the model of Kueue has it"
        )
    if not groups:
        return f"{report.title}: no gang"
    return (
        f"{report.title}: {plural(gangs, 'gang')}, {plural(pods, 'pod')}, {plural(gpus, 'GPU')}, "
        f"as the model of KAI {report.facts.kai} has it"
    )


def _outside(report: Report) -> Iterator[str]:
    grouping = report.grouping
    queued = {id(pods.spec) for unit in report.units for pods in unit.pods}
    for title, sets in (
        ("placed one by one, in no gang", grouping.outside),
        ("for KAI, but in no PodGroup", grouping.lost),
    ):
        others = [pods for pods in sets if id(pods.spec) not in queued]
        if others:
            yield f"{title}:"
            for pods in others:
                scheduler = pods.spec.get("schedulerName", "default-scheduler")
                line = f"{pods.where}: {plural(pods.count, 'pod')}, {scheduler}"
                yield from _wrapped(line, "  ", "    ")
    for obj, reason in grouping.ungrouped:
        yield from _wrapped(
            f"{obj['kind']}/{obj['metadata']['name']}: KAI makes no PodGroup: {reason}", "", "  "
        )


def _verdict(report: Report) -> str:
    looked = "queues" if report.nodes is None else f"queues and {plural(report.nodes, 'node')}"
    if not report.grouping.groups and not report.units:
        return "nothing of it is for KAI or Kueue"
    if report.errors:
        return f"{plural(len(report.errors), 'error')}: it would not run as it is"
    return f"fits, as far as {looked} tell"


def text(report: Report) -> str:
    """Return a report in lines."""
    blocks = [[_head(report)]]
    blocks += [list(_group(group, report.facts)) for group in report.grouping.groups]
    blocks += [list(_unit(unit, report.facts)) for unit in report.units]
    blocks += [list(_outside(report))]
    blocks += [list(_finding(finding)) for finding in report.findings]
    blocks += [[_verdict(report)]]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"
