"""What the model makes of every variant as it renders."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from support.kai_cluster import under_kai
from tandem.explain.inputs import read_facts
from tandem.explain.model import PodGroup, SubGroup
from tandem.explain.report import Report, report_of
from tandem.process import tool_env
from tandem.render import render_variant, variants

LOCAL = {
    "disagg-jobset", "disagg-rayclusters", "disagg-rayclusters-judge", "monolithic-jobset",
    "monolithic-rayjob",
}  # fmt: skip
#: Gangs of a variant, each as the minimums of its leaves; JobSets have a leaf a replica.
GANGS = {
    "prod-monolithic-rayjob": {"RayJob/monolithic": {"headgroup": 1, "workers": 1}},
    "prod-monolithic-jobset": {
        "JobSet/mono": {"driver-replica-0": 1, "rl-head-replica-0": 1, "rl-workers-replica-0": 1}
    },
    "prod-disagg-jobset": {
        "JobSet/run": {
            "driver-replica-0": 1, "gym-head-replica-0": 1, "gym-workers-replica-0": 1,
            "rl-head-replica-0": 1, "rl-workers-replica-0": 1,
        }
    },
    "prod-disagg-rayclusters": {
        "PodGroup/gang": {"rl-head": 1, "rl-workers": 1, "gym-head": 1, "driver": 1},
    },
    "prod-disagg-rayclusters-judge": {
        "PodGroup/gang": {
            "judge": 2, "rl-head": 1, "rl-workers": 1, "gym-head": 1, "driver": 1,
        },
    },
}  # fmt: skip


@cache
def report(variant: str) -> Report:
    return report_of(variant, render_variant(variant), read_facts())


def leaves(group: PodGroup) -> list[SubGroup]:
    return [node for node in group.root.walk()[1:] if not node.children]


def test_every_variant_is_told_of_here() -> None:
    assert LOCAL | GANGS.keys() == set(variants())


@pytest.mark.parametrize("variant", sorted(LOCAL))
def test_on_the_local_cluster_pods_are_placed_one_by_one(variant: str) -> None:
    grouping = report(variant).grouping
    assert grouping.groups == ()
    assert len(grouping.outside) >= 2


@pytest.mark.parametrize("variant", sorted(GANGS))
def test_the_gangs_of_a_variant_are_these(variant: str) -> None:
    found = {
        group.source: {node.name: node.min_members for node in leaves(group)}
        for group in report(variant).grouping.groups
    }
    assert found == GANGS[variant]


@pytest.mark.parametrize("variant", sorted(GANGS))
def test_each_gang_needs_all_its_pods(variant: str) -> None:
    for group in report(variant).grouping.groups:
        assert group.root.needed() == group.root.total()
        assert (group.queue, group.preemptible, group.copies) == ("low-prio", True, 1)


@pytest.mark.parametrize("variant", sorted(GANGS))
def test_a_gang_has_the_gpus_of_its_workers_and_watchers_stay_outside(variant: str) -> None:
    grouping = report(variant).grouping
    judges = 2 * 8 if variant.endswith("-judge") else 0
    assert sum(group.gpus for group in grouping.groups) == 8 + judges
    outside = ("peer-watcher", "judge-balancer", "judge-keeper")
    assert all(any(name in pods.source for name in outside) for pods in grouping.outside)
    assert grouping.lost == ()
    assert grouping.ungrouped == ()


@pytest.mark.parametrize("variant", variants())
def test_no_variant_walks_into_a_trap(variant: str) -> None:
    assert report(variant).errors == []
    assert {finding.rule for finding in report(variant).findings} == set()


@pytest.mark.parametrize("variant", sorted(LOCAL))
def test_kai_takes_the_place_of_the_default_scheduler_by_one_line(variant: str) -> None:
    """What `make check-kai` runs; a component in the wrong place leaves half a group behind."""
    switched = under_kai(variant)
    told = report_of(variant, switched, read_facts())
    assert len(told.grouping.groups) == 1
    assert told.errors == []
    before, after = (
        {group["name"] for obj in objects if obj["kind"] == "JobSet"
         for group in obj["spec"]["replicatedJobs"]}
        for objects in (render_variant(variant), switched)
    )  # fmt: skip
    assert after == before


def test_the_program_explains_a_variant_by_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.explain", "prod-disagg-jobset", "--output", "json"],
        check=False, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=60,
        env=tool_env(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [group["source"] for group in json.loads(done.stdout)["groups"]] == ["JobSet/run"]
