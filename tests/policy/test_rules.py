"""Every rule has an example that breaks it, and no variant breaks any."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.golden import FOLDER as GOLDEN
from tandem.policy import RULES, Cluster, cluster_of, faults_of, pods_of
from tandem.render import render_variant, variants
from tandem.yamls import load_all

BAD = Path(__file__).parent / "bad"


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    text = (GOLDEN / "rl-platform" / "prod.yaml").read_text()
    found = cluster_of(load_all(text))
    assert found.queues == {"high-prio", "low-prio"}
    assert found.accounts == {"rl", "gym", "driver", "pool"}
    return found


def test_each_rule_has_its_example_and_each_example_its_rule() -> None:
    assert {path.stem for path in BAD.glob("*.yaml")} == set(RULES)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_example_breaks_its_rule_and_no_other(rule: str, cluster: Cluster) -> None:
    text = (BAD / f"{rule}.yaml").read_text()
    assert f"rule `{rule}`" in text.splitlines()[0]
    faults = faults_of(load_all(text), cluster)
    assert {fault.rule for fault in faults} == {rule}, [str(f) for f in faults]


@pytest.mark.parametrize("variant", variants())
def test_no_variant_breaks_a_rule(variant: str, cluster: Cluster) -> None:
    objects = render_variant(variant)
    assert sum(len(pods_of(obj)) for obj in objects) >= 2, "rules need something to look at"
    assert [str(fault) for fault in faults_of(objects, cluster)] == []


def test_a_deployment_that_would_count_other_runs_pods_is_refused(cluster: Cluster) -> None:
    objects = render_variant("disagg-rayclusters-judge")
    [balancer] = [obj for obj in objects if obj["metadata"]["name"] == "judge-balancer"
                  and obj["kind"] == "Deployment"]  # fmt: skip
    del balancer["spec"]["selector"]["matchLabels"]["tandem.dev/run-id"]
    [fault] = faults_of(objects, cluster)
    assert (fault.rule, fault.where) == ("run-id", "Deployment/judge-balancer")
    assert "selector" in fault.what


def test_replicas_of_a_deployment_are_counted_in_its_gang(cluster: Cluster) -> None:
    objects = render_variant("prod-disagg-rayclusters-judge")
    [replicas] = [obj for obj in objects if obj["metadata"]["name"] == "judge-replicas"
                  and obj["kind"] == "Deployment"]  # fmt: skip
    replicas["spec"]["replicas"] = 3
    [fault] = faults_of(objects, cluster)
    assert fault.rule == "one-gang"
    assert "judge: minMember is 2, and there are 3" in fault.what
