"""All that is said of one run, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tandem.explain.facts import Facts
from tandem.explain.findings import Finding, Subject
from tandem.explain.fit import fit
from tandem.explain.kueue import Unit, units_of
from tandem.explain.lint import lint
from tandem.explain.model import Grouping, PodGroup, SubGroup, group_pods
from tandem.explain.nodes import Node
from tandem.explain.pods import Object, PodSet
from tandem.explain.quantity import Resources


@dataclass(frozen=True, slots=True)
class Report:
    """A run as KAI will see it.

    Attributes:
        title: The variant, or where the manifests come from.
        grouping: Its gangs, and the pods that are in none.
        findings: What is wrong, errors first.
        facts: What the cluster offers.
        nodes: How many nodes were looked at; None = none.
        units: What Kueue makes of it; empty for a run in no queue of Kueue's.
    """

    title: str
    grouping: Grouping
    findings: tuple[Finding, ...]
    facts: Facts
    nodes: int | None
    units: tuple[Unit, ...] = ()

    @property
    def errors(self) -> list[Finding]:
        """The findings that keep the run from starting, or end it."""
        return [finding for finding in self.findings if finding.level == "error"]


def report_of(
    title: str, objects: Iterable[Object], facts: Facts, nodes: Sequence[Node] | None = None
) -> Report:
    """Return all that can be said of rendered objects.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: An object is not of its kind's shape.
    """
    rendered = tuple(objects)
    grouping = group_pods(rendered, facts.priorities)
    findings = lint(Subject(rendered, grouping, facts)) + fit(grouping, facts, nodes)
    findings.sort(key=lambda finding: finding.level != "error")
    looked = None if nodes is None else len(nodes)
    return Report(title, grouping, tuple(findings), facts, looked, tuple(units_of(rendered)))


def _amount(resources: Resources) -> dict[str, int]:
    return {"gpus": resources.gpu, "cpuMillicores": resources.cpu, "memoryMB": resources.memory}


def _pods(pods: PodSet) -> dict[str, Any]:
    return {
        "source": pods.source, "role": pods.role, "path": pods.path, "count": pods.count,
        "each": _amount(pods.demand), "claims": list(pods.claims),
    }  # fmt: skip


def _node(node: SubGroup) -> dict[str, Any]:
    placement = node.placement
    return {
        "name": node.name,
        "minMember": node.min_members,
        "minSubGroup": node.min_subgroups,
        "topology": None if placement is None else asdict(placement),
        "pods": [_pods(pods) for pods in node.pods],
        "subGroups": [_node(child) for child in node.children],
    }


def _group(group: PodGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "namespace": group.namespace,
        "source": group.source,
        "external": group.external,
        "copies": group.copies,
        "queue": group.queue,
        "priorityClasses": list(group.priority_classes),
        "preemptible": group.preemptible,
        "stalenessGracePeriod": group.staleness,
        "pods": group.pod_count,
        "gpus": group.gpus,
        "claims": list(group.claims),
        "needed": _amount(group.root.needed()),
        "total": _amount(group.root.total()),
        "tree": _node(group.root),
    }


def _unit(unit: Unit) -> dict[str, Any]:
    return {
        "name": unit.name,
        "queue": unit.queue,
        "priorityClass": unit.priority,
        "podCount": unit.count,
        "comesBack": unit.comes_back,
        "total": _amount(unit.demand),
        "pods": [_pods(pods) for pods in unit.pods],
    }


def as_json(report: Report) -> dict[str, Any]:
    """Return a report for programs; amounts are those of one copy of a gang."""
    grouping = report.grouping
    return {
        "subject": report.title,
        "kai": report.facts.kai,
        "nodes": report.nodes,
        "groups": [_group(group) for group in grouping.groups],
        "workloads": [_unit(unit) for unit in report.units],
        "outside": [
            {**_pods(pods), "scheduler": pods.spec.get("schedulerName", "default-scheduler")}
            for pods in grouping.outside
        ],
        "lost": [_pods(pods) for pods in grouping.lost],
        "ungrouped": [
            {"source": f"{obj['kind']}/{obj['metadata']['name']}", "reason": reason}
            for obj, reason in grouping.ungrouped
        ],
        "findings": [asdict(finding) for finding in report.findings],
    }
