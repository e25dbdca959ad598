"""The table of what forms one gang."""

from __future__ import annotations

import pytest

from support.kai_objects import (
    facts,
    jobset,
    member,
    podgroup,
    raycluster,
    replicated_job,
    template,
    worker_group,
    workload,
)
from tandem import tables
from tandem.explain.report import Report, report_of
from tandem.explain.table import gang_table


def report(*objects: dict[str, object]) -> Report:
    return report_of("variant", objects, facts())


def row(*objects: dict[str, object]) -> list[str]:
    lines = gang_table([report(*objects)]).splitlines()
    assert len(lines) == 3
    assert {line.count("|") for line in lines} == {7}
    return [cell.strip() for cell in lines[2].strip("|").split("|")]


def test_replicas_of_a_replicated_job_are_told_together() -> None:
    jobs = [replicated_job("head", template()), replicated_job("w", template(8), replicas=4)]
    assert row(jobset(*jobs)) == [
        "`variant`", "**1**: JobSet `mono`", "`head` 1, `w` 4", "5", "32", "`low-prio`",
    ]  # fmt: skip


def test_several_gangs_stand_below_each_other() -> None:
    other = workload("Job", template())
    other["metadata"]["labels"]["kai.scheduler/queue"] = "small"
    assert row(raycluster(worker_group(template(8), replicas=2)), other) == [
        "`variant`", "**2**: RayCluster `rl`<br>Job `job`", "`headgroup` 1, `workers` 2<br>-", "4",
        "16", "`low-prio`, `small`",
    ]  # fmt: skip


def test_leaves_of_a_podgroup_are_told() -> None:
    tree = ({"name": "rl", "minSubGroup": 1}, {"name": "rl-head", "parent": "rl", "minMember": 1})
    group = podgroup(*tree, minSubGroup=1)
    assert row(group, workload("Job", member("rl-head")))[1:3] == [
        "**1**: PodGroup `gang`", "`rl-head` 1",
    ]  # fmt: skip


def test_another_scheduler_forms_no_gang() -> None:
    assert row(workload("Job", template(scheduler="default-scheduler")))[1:] == [
        "none: another scheduler places pod by pod", "-", "-", "-", "-",
    ]  # fmt: skip


def test_the_table_goes_between_its_marks() -> None:
    text = "a\n<!-- gangs -->\nold\n<!-- end -->\nb\n"
    filled = tables.placed(text, "gangs", "new\n")
    assert filled == "a\n<!-- gangs -->\nnew\n<!-- end -->\nb\n"
    assert tables.placed(filled, "gangs", "new\n") == filled


@pytest.mark.parametrize("text", ["nothing", "<!-- gangs -->\n<!-- end -->\n" * 2])
def test_a_readme_has_one_place_for_it(text: str) -> None:
    with pytest.raises(ValueError, match="places for the table"):
        tables.placed(text, "gangs", "new\n")


def test_a_drifted_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "gangs", lambda: "of another time\n")
    [problem] = tables.differences()
    assert problem.what.startswith("kustomize/README.md: ")
    assert problem.fix == "make update"
