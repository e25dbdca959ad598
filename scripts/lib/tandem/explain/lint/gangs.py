"""Traps in PodGroups: those that a run brings along, and how many a run has."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.explain.findings import Hit, Rule, Subject
from tandem.explain.model import MINIMUM_ANNOTATION, PodGroup, SubGroup, is_pod_group, skipped
from tandem.explain.pods import annotations_of, pod_sets
from tandem.policy import GROUP_ANNOTATION, SKIP_ANNOTATION, SUBGROUP_LABEL, name_of


def _external(subject: Subject) -> Iterator[PodGroup]:
    return (group for group in subject.grouping.groups if group.external)


def _leaves(group: PodGroup) -> list[SubGroup]:
    return [node for node in group.root.walk()[1:] if not node.children]


def _missing(subject: Subject) -> Iterator[Hit]:
    for pods in subject.grouping.lost:
        name = pods.annotation(GROUP_ANNOTATION)
        place = f"{pods.source} {pods.path}.metadata.annotations"
        if name is None:
            yield place, f"{pods.role}: {SKIP_ANNOTATION} without {GROUP_ANNOTATION}"
        else:
            yield place, f"{pods.role}: no PodGroup {name} in namespace {pods.namespace}"


def _late(subject: Subject) -> Iterator[Hit]:
    seen: dict[tuple[str, str], str] = {}
    for obj in subject.objects:
        for pods in pod_sets(obj):
            name = pods.annotation(GROUP_ANNOTATION)
            if pods.by_kai and name is not None:
                seen.setdefault((pods.namespace, name), pods.source)
        if is_pod_group(obj):
            key = (str(obj["metadata"].get("namespace", "default")), obj["metadata"]["name"])
            if key in seen:
                yield name_of(obj), f"it comes after {seen[key]}, whose pods name it"


def _unskipped(subject: Subject) -> Iterator[Hit]:
    for pods in subject.pods():
        name = pods.annotation(GROUP_ANNOTATION)
        if name is not None and not skipped(pods):
            place = f"{pods.source} {pods.path}.metadata.annotations"
            yield place, f"{pods.role} names PodGroup {name} without {SKIP_ANNOTATION}"


def _subgroup_missing(subject: Subject) -> Iterator[Hit]:
    for group in _external(subject):
        leaves = [each.name for each in _leaves(group)]
        for pods in group.pods:
            name = pods.label(SUBGROUP_LABEL)
            place = f"{pods.source} {pods.path}.metadata.labels"
            if leaves and name not in leaves:
                there = ", ".join(leaves)
                what = f"names subgroup {name}" if name else "names no subgroup"
                yield place, f"{pods.role} {what}; leaves of {group.name}: {there}"
            elif name and not leaves:
                yield place, f"{pods.role} names subgroup {name}; {group.name} has none"
        for stray in group.strays:
            what = f"the parents of subgroup {stray} do not lead to the top"
            yield f"{group.source} spec.subGroups", what


def _subgroup_empty(subject: Subject) -> Iterator[Hit]:
    for group in _external(subject):
        for node in _leaves(group) or [group.root]:
            if not node.pods:
                what = f"no pod names {'subgroup ' if node is not group.root else ''}{node.name}"
                yield f"{group.source} spec", what


def _shortfalls(group: PodGroup) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, what is counted, the minimum and what is there, of nodes where they differ."""
    for node in group.root.walk():
        if node.children:
            # A root of KAI's own counts the pods below it: its leaves say the same.
            if node.min_subgroups is not None and node.min_subgroups != len(node.children):
                yield node.name, "subgroups", node.min_subgroups, len(node.children)
            continue
        count = sum(pods.count for pods in node.pods)
        # An empty one has a rule of its own.
        if node.pods and (node.min_members or 0) != count:
            yield node.name, "pods", node.min_members or 0, count


def _overridden(group: PodGroup) -> bool:
    owners = (owner for pods in group.pods for owner in pods.owners)
    return any(MINIMUM_ANNOTATION in annotations_of(owner) for owner in owners)


def _minimum_above(subject: Subject) -> Iterator[Hit]:
    for group in subject.grouping.groups:
        # Where KAI counts by itself, the rules for workloads say what is wrong.
        if group.external or _overridden(group):
            for name, what, minimum, count in _shortfalls(group):
                if minimum > count:
                    yield f"{group.source} {name}", f"{minimum} {what} needed, {count} there"


def _minimum_below(subject: Subject) -> Iterator[Hit]:
    for group in subject.grouping.groups:
        for name, what, minimum, count in _shortfalls(group):
            if minimum < count:
                yield f"{group.source} {name}", f"{minimum} of {count} {what} are enough to start"


def _several(subject: Subject) -> Iterator[Hit]:
    runs: dict[str, list[PodGroup]] = {}
    for group in subject.grouping.groups:
        for run in group.run_ids:
            runs.setdefault(run, []).append(group)
    for run, groups in sorted(runs.items()):
        count = sum(group.copies for group in groups)
        if count > 1:
            names = ", ".join(group.source for group in groups)
            yield f"run {run}", f"{count} gangs: {names}"


RULES = (
    Rule(
        "podgroup-missing", "error",
        "KAI leaves pods alone whose PodGroup is not there: Pending for ever, without a word.",
        f"put the PodGroup into the run, in the pods' namespace, or take {SKIP_ANNOTATION} away",
        _missing,
    ),
    Rule(
        "podgroup-late", "error",
        "Objects are applied in their order: until the PodGroup is there KAI leaves its pods "
        "alone, and when its creation fails they stay Pending without a word.",
        "render it first (kustomize: sortOptions with PodGroup among orderFirst)",
        _late,
    ),
    Rule(
        "podgroup-overwritten", "error",
        "KAI's pod-grouper makes a PodGroup of its own of such pods and writes its name over "
        "the one that they bear.",
        f'annotation {SKIP_ANNOTATION}: "true" beside {GROUP_ANNOTATION}',
        _unskipped,
    ),
    Rule(
        "subgroup-missing", "error",
        "Pods of a subgroup that is not there, or is no leaf, are not placed; nor is their gang.",
        f"make label {SUBGROUP_LABEL} and the PodGroup's subGroups agree",
        _subgroup_missing,
    ),
    Rule(
        "subgroup-empty", "error",
        "The gang waits for a minimum that no pod is counted for: nothing is ever placed.",
        f"take the subgroup out, or give its pods label {SUBGROUP_LABEL}",
        _subgroup_empty,
    ),
    Rule(
        "minimum-above-pods", "error",
        "The gang waits for more pods than there will ever be: nothing is ever placed.",
        "write the number that is there",
        _minimum_above,
    ),
    Rule(
        "minimum-below-pods", "warning",
        "The gang starts without the rest, which is placed later or never, pod by pod.",
        "raise the minimum to what is there, unless the run can do without the rest",
        _minimum_below,
    ),
    Rule(
        "several-gangs", "warning",
        "This run is not all-or-nothing: one gang may hold its GPUs and wait for another.",
        "one PodGroup of the run's own, with a subgroup a role (component gang-kai)",
        _several,
    ),
)  # fmt: skip
