"""Each rule finds what its failing examples show, and nothing in its passing ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.kai_objects import (
    PLATFORM,
    facts,
    jobset,
    member,
    podgroup,
    replicated_job,
    template,
    workload,
)
from tandem.explain.facts import Facts, read_platform
from tandem.explain.findings import Finding, Subject
from tandem.explain.lint import RULES, lint
from tandem.explain.model import group_pods
from tandem.yamls import load_all

FIXTURES = Path(__file__).parent / "fixtures"
LEAVES = "high-prio, low-prio, small"
NAMES = [rule.name for rule in RULES]


def site_of(documents: Iterable[dict[str, Any]]) -> Facts:
    """What the cluster offers; a document `Site` says what is special in an example."""
    site = next((doc for doc in documents if doc["kind"] == "Site"), {})
    platform = read_platform(site.get("objects") or [PLATFORM])
    known = facts()
    return replace(
        known, kai=site.get("kai", "v0.17.1"), chart_values=site.get("chartValues", {}),
        scheduler_staleness=platform.scheduler_staleness,
    )  # fmt: skip


def findings_in(path: Path) -> list[Finding]:
    documents = load_all(path.read_text())
    objects = tuple(doc for doc in documents if doc["kind"] != "Site")
    assert objects, "rules need something to look at"
    offered = site_of(documents)
    return lint(Subject(objects, group_pods(objects, offered.priorities), offered))


def examples(kind: str) -> list[str]:
    return sorted(
        path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob(f"*/{kind}*.yaml")
    )


def test_each_rule_has_its_examples_and_each_example_its_rule() -> None:
    assert len(set(NAMES)) == len(NAMES)
    there = {path.name for path in FIXTURES.iterdir()}
    assert there == set(NAMES)
    for name in NAMES:
        assert {"bad.yaml", "good.yaml"} <= {path.name for path in (FIXTURES / name).iterdir()}
    assert len(examples("")) == len(examples("bad")) + len(examples("good"))


@pytest.mark.parametrize("example", examples("bad"))
def test_a_failing_example_breaks_its_rule_and_no_other_that_is_an_error(example: str) -> None:
    rule = example.partition("/")[0]
    found = findings_in(FIXTURES / example)
    assert rule in {finding.rule for finding in found}
    others = [f for f in found if f.rule != rule and f.level == "error"]
    assert others == []


@pytest.mark.parametrize("example", examples("good"))
def test_a_passing_example_breaks_no_rule_that_is_an_error_nor_its_own(example: str) -> None:
    rule = example.partition("/")[0]
    found = findings_in(FIXTURES / example)
    assert [f for f in found if f.rule == rule or f.level == "error"] == []


@pytest.mark.parametrize("example", examples("bad"))
def test_a_finding_names_a_place_and_what_is_there(example: str) -> None:
    for finding in findings_in(FIXTURES / example):
        assert finding.place
        assert finding.what
        assert "None" not in finding.place + finding.what


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_says_why_and_what_to_do(rule: Any) -> None:
    assert rule.reason.endswith(".")
    assert len(rule.fix) > 5
    assert not rule.fix.endswith(".")


@pytest.mark.parametrize(
    ("example", "place", "what"),
    [
        ("jobset-start-order/bad", "JobSet/mono spec.replicatedJobs[1].dependsOn",
         "workers depends on head"),
        ("uneven-waves/bad", "JobSet/mono spec.replicatedJobs[0].template.spec",
         "the last wave has 2 of 4 pods (10 in all)"),
        ("queue-unknown/bad", "Job/job metadata.labels[kai.scheduler/queue]",
         f"no queue mid-prio; leaf queues: {LEAVES}"),
        ("queue-not-of-namespace/bad", "Job/job metadata.labels[kai.scheduler/queue]",
         "queue high-prio is not for namespace team-b, whose queues are: low-prio, small"),
        ("run-id-missing/bad", "Job/job metadata.labels[tandem.dev/run-id]", "no run id"),
        ("queue-not-a-leaf/bad", "Job/job metadata.labels[kai.scheduler/queue]",
         f"queue tandem has others below it: {LEAVES}; leaf queues: {LEAVES}"),
        ("subgroup-missing/bad", "Job/v spec.template.metadata.labels",
         "pod names subgroup v; leaves of gang: w"),
        ("podgroup-late/bad", "PodGroup/gang", "it comes after Job/job, whose pods name it"),
        ("several-gangs/bad", "run r1", "2 gangs: RayCluster/rl, RayCluster/gym"),
        ("non-preemptible-beyond-quota/bad", "Job/job metadata.labels[kai.scheduler/queue]",
         "needs 8 GPUs, and the quota of low-prio is 0"),
    ],
)  # fmt: skip
def test_the_words_of_a_finding(example: str, place: str, what: str) -> None:
    rule = example.partition("/")[0]
    [finding] = [f for f in findings_in(FIXTURES / f"{example}.yaml") if f.rule == rule]
    assert (finding.place, finding.what) == (place, what)


def test_errors_come_first() -> None:
    levels = [finding.level for path in sorted(FIXTURES.glob("queue-missing/bad-podgroup.yaml"))
              for finding in findings_in(path)]  # fmt: skip
    assert levels == sorted(levels)
    assert "error" in levels


def test_a_leaf_that_writes_no_minimum_has_none() -> None:
    objects = (podgroup({"name": "w"}, minSubGroup=1), workload("Job", member("w", 8)))
    grouping = group_pods(objects, {})
    [finding] = lint(Subject(objects, grouping, facts()))
    assert finding.rule == "minimum-below-pods"
    assert finding.what == "0 of 1 pods are enough to start"


def test_completions_without_parallelism_come_one_by_one() -> None:
    objects = (jobset(replicated_job("w", template(8), completions=3)),)
    assert lint(Subject(objects, group_pods(objects, {}), facts())) == []


def test_pods_of_another_scheduler_may_come_before_a_podgroup_that_they_name() -> None:
    other = workload("Job", member("w", scheduler="default-scheduler"))
    objects = (other, podgroup({"name": "w", "minMember": 1}, minSubGroup=1))
    found = lint(Subject(objects, group_pods(objects, {}), facts()))
    assert [finding.rule for finding in found] == ["subgroup-empty"]
