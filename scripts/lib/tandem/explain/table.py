"""The table "what forms one gang" of kustomize/README.md: a row a variant, from the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tandem.explain.model import PodGroup
from tandem.explain.report import Report

_HEAD = (
    "| variant | gangs | subgroups, each with the pods that it needs | pods | GPUs | queue |",
    "| --- | --- | --- | --- | --- | --- |",
)
_NONE = "-"


def _subgroups(group: PodGroup) -> str:
    """Return the leaves with their minimums; the replicas of a replicatedJob are one."""
    needed: Counter[str] = Counter()
    for node in group.root.walk()[1:]:
        if not node.children:
            needed[re.sub(r"-replica-\d+$", "", node.name)] += node.min_members or 0
    return ", ".join(f"`{name}` {count}" for name, count in needed.items()) or _NONE


def _cells(report: Report) -> list[str]:
    groups = report.grouping.groups
    if not groups:
        return ["none: another scheduler places pod by pod", _NONE, _NONE, _NONE, _NONE]
    count = sum(group.copies for group in groups)
    gangs = [
        f"{kind} `{name}`" for kind, _, name in (group.source.partition("/") for group in groups)
    ]
    queues = dict.fromkeys(f"`{group.queue}`" for group in groups)
    return [
        "<br>".join([f"**{count}**: {gangs[0]}", *gangs[1:]]),
        "<br>".join(map(_subgroups, groups)),
        str(sum(group.pod_count for group in groups)),
        str(sum(group.gpus for group in groups)),
        ", ".join(queues),
    ]


def gang_table(reports: Iterable[Report]) -> str:
    """Return the table in Markdown, a row a report."""
    rows = [f"| `{report.title}` | {' | '.join(_cells(report))} |" for report in reports]
    return "\n".join([*_HEAD, *rows]) + "\n"
