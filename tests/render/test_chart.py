"""Our chart by itself: lint, and a schema that refuses values which mean nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import UserError
from tandem.paths import ROOT
from tandem.policy import pods_of
from tandem.process import run
from tandem.render import render_variant
from tandem.yamls import dump, load_all

CHART = ROOT / "charts" / "rl-platform"


def helm(*words: str) -> str:
    return run(["helm", *words], timeout=60)


@pytest.mark.parametrize("queues", ["true", "false"])
def test_lint_is_clean(queues: str) -> None:
    helm("lint", "--strict", str(CHART), "--set", f"queues.enabled={queues}")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("namespase=x", "namespase"),
        ("roles[0]=Upper", "roles/0"),
        ("priorityClasses[0].value=2000000000", "value"),
        ("queues.tree[0].quota.gpu=-2", "quota/gpu"),
        ("queues.tree[0].quota.gpu=-0.5", "quota/gpu"),
        ("queues.tree[0].limit.gpus=1", "gpus"),
        ("queues.tree[0].overQuotaWeight.gpu=-1", "overQuotaWeight/gpu"),
        ("queues.tree[0].preemptMinRuntime=soon", "preemptMinRuntime"),
        ("queues.tree[0].parrent=x", "parrent"),
        ("queues.tree=null", "tree"),
        ("queues.runs=null", "runs"),
        ("queues.namespaces.team-b=low-prio", "namespaces/team-b"),
        ("limits.gpusPerNode=-1", "gpusPerNode"),
        ("admission.queueOf=some", "queueOf"),
        ("admission.failurePolicy=Deny", "failurePolicy"),
        ("admission.validationActions[0]=Refuse", "validationActions/0"),
        ("topologies.rack.levels[0]=no label", "levels/0"),
        ("monitoring.enable=true", "enable"),
        ("sharedRoles.peer-watcher[0].verbs[0]=*", "verbs"),
        ("sharedRoles.peer-watcher[0].resources[0]=*", "resources"),
    ],
)
def test_values_that_mean_nothing_are_refused(value: str, word: str) -> None:
    with pytest.raises(UserError) as caught:
        helm(
            "template", "x", str(CHART), "--set-json" if value.endswith("null") else "--set", value
        )
    assert word in str(caught.value)


def test_pools_are_watched_where_prometheus_operator_is() -> None:
    assert "monitoring.coreos.com" not in helm("template", "x", str(CHART))
    words = ("--set", "monitoring.enabled=true", "--set", "monitoring.labels.release=stack")
    by_kind = {each["kind"]: each for each in load_all(helm("template", "x", str(CHART), *words))}
    files = CHART / "files" / "pools"
    [written] = load_all((files / "alerts.yaml").read_text())
    rules, monitor = by_kind["PrometheusRule"], by_kind["PodMonitor"]
    # Also the texts: what is in braces is Prometheus' to fill in, not Helm's.
    assert rules["spec"] == written
    dashboard = by_kind["ConfigMap"]["data"]["vllm-pools.json"]
    assert json.loads(dashboard) == json.loads((files / "dashboard.json").read_text())
    assert rules["metadata"]["labels"]["release"] == "stack"
    pods = [
        pod
        for obj in render_variant("disagg-rayclusters-judge")
        for pod in pods_of(obj)
        if monitor["spec"]["selector"]["matchLabels"].items() <= pod.metadata["labels"].items()
    ]
    assert len(pods) == 3
    scraped = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    for pod in pods:
        ports = {p["name"] for c in pod.containers for p in c.get("ports", [])}
        assert ports & scraped, pod.where


KUEUE = ("--set", "queues.kueue.enabled=true", "--set", "queues.kueue.capacity.gpu=20")


def kueue_of(*words: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the specs of Kueue's rendered objects by kind and name."""
    objects = load_all(helm("template", "x", str(CHART), *KUEUE, *words))
    return {
        (obj["kind"], obj["metadata"]["name"]): obj.get("spec") or obj
        for obj in objects
        if obj["apiVersion"].startswith("kueue.x-k8s.io/")
    }


def quotas(spec: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    [group] = spec["resourceGroups"]
    [flavor] = group["flavors"]
    assert group["coveredResources"] == [each["name"] for each in flavor["resources"]]
    return {
        each["name"].removeprefix("nvidia.com/"): (each["nominalQuota"], each.get("borrowingLimit"))
        for each in flavor["resources"]
    }


def test_kueue_gets_the_tree_with_what_nobody_is_promised_at_the_endless_leaf() -> None:
    found = kueue_of()
    assert {kind: sorted(name for each, name in found if each == kind) for kind, _ in found} == {
        "Cohort": ["research", "tandem"],
        "ClusterQueue": ["high-prio", "low-prio"],
        "LocalQueue": ["high-prio", "low-prio"],
        "WorkloadPriorityClass": ["high-prio", "low-prio"],
        "ResourceFlavor": ["tandem"],
    }
    high, low = found["ClusterQueue", "high-prio"], found["ClusterQueue", "low-prio"]
    assert quotas(high) == {"gpu": ("20", None), "cpu": ("1M", None), "memory": ("1P", None)}
    assert quotas(low)["gpu"] == ("0", None)
    assert high["cohortName"] == low["cohortName"] == "research"
    assert found["Cohort", "research"]["parentName"] == "tandem"
    assert high["preemption"] == {
        "withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any",
    }  # fmt: skip
    assert high["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "tandem"}}
    assert found["LocalQueue", "low-prio"] == {"clusterQueue": "low-prio"}
    values = [found["WorkloadPriorityClass", name]["value"] for name in ("high-prio", "low-prio")]
    assert values == [200, 100]


def test_every_gpu_belongs_to_one_queue_of_kueues_and_quantities_are_canonical(
    tmp_path: Path,
) -> None:
    # Kueue writes its objects whole; another form of a number would be its own from then on.
    site = {
        "runs": ["sub"],
        "tree": [
            queue("sub", "team", quota=amounts(4, 64500, 2000000), limit=amounts(8, -1, -1)),
            queue("team", "dep", quota=amounts(6, 64500, -1)),
            queue("dep", "top", quota=amounts(6, -1, -1), limit=amounts(10, -1, -1)),
            queue("other", "top", quota=amounts(1, 64000, 0)),
            queue("top"),
        ],
    }
    found = kueue_of("-f", values(tmp_path, queues=site))
    shares = {name: quotas(spec) for (kind, name), spec in found.items() if "Co" in kind[:2]}
    shares |= {name: quotas(spec) for (kind, name), spec in found.items() if kind == "ClusterQueue"}
    assert {name: share["gpu"] for name, share in shares.items()} == {
        "sub": ("4", "4"), "team": ("2", None), "dep": ("0", "4"), "other": ("1", None),
        "top": ("13", None),
    }  # fmt: skip
    assert shares["sub"]["cpu"] == ("64500m", None)
    assert shares["other"]["cpu"] == ("64", None)
    assert shares["sub"]["memory"] == ("2T", None)


def test_without_kueue_there_is_nothing_of_it() -> None:
    assert "kueue.x-k8s.io" not in helm("template", "x", str(CHART))


#: Values that KAI would take, and what Kueue cannot make of them.
KUEUE_REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no capacity": (
        {"queues": {"kueue": {"capacity": {"gpu": 0}}}},
        ("queues.kueue.capacity.gpu: 0 leaves nothing for", "how many GPUs the cluster has"),
    ),
    "two without a number": (
        {"queues": {"runs": ["a"], "tree": [
            {"name": "top", "quota": {"gpu": -1, "cpu": -1, "memory": -1},
             "limit": {"gpu": -1, "cpu": -1, "memory": -1}},
            *({"name": name, "parent": "top", "quota": {"gpu": -1, "cpu": -1, "memory": -1},
               "limit": {"gpu": -1, "cpu": -1, "memory": -1}} for name in ("a", "b")),
        ]}},
        ("queues.tree[1].quota.gpu of a, queues.tree[2].quota.gpu of b: -1 each",
         "give all but one a number"),
    ),
    "more than there is, and parts of a GPU": (
        {"queues": {"runs": ["a"], "tree": [
            {"name": "top", "quota": {"gpu": 21.5, "cpu": -1, "memory": -1},
             "limit": {"gpu": 24, "cpu": -1, "memory": -1}},
            {"name": "a", "parent": "top", "quota": {"gpu": 1, "cpu": -1, "memory": -1},
             "limit": {"gpu": -1, "cpu": -1, "memory": -1}},
        ]}},
        ("queues.kueue.capacity.gpu: 20 is less than is promised: top 21.5 = 21.5",
         "queues.tree[0].quota.gpu: 21.5 is part of a GPU", "write 21 or 22",
         "queues.tree[0].limit.gpu: 24 of root top is more than its quota of 21.5"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KUEUE_REFUSED)
def test_what_kueue_cannot_be_told_is_refused(case: str, tmp_path: Path) -> None:
    given, words = KUEUE_REFUSED[case]
    path = values(tmp_path, **given)
    with pytest.raises(UserError) as caught:
        helm("template", "x", str(CHART), *KUEUE[:2], "-f", path,
             *(KUEUE[2:] if "kueue" not in given["queues"] else ()))  # fmt: skip
    for word in words:
        assert word in str(caught.value)


def queues_of(*words: str) -> dict[str, dict[str, Any]]:
    """Return the specs of the rendered queues by name."""
    objects = load_all(helm("template", "x", str(CHART), "--set", "queues.enabled=true", *words))
    return {obj["metadata"]["name"]: obj["spec"] for obj in objects if obj["kind"] == "Queue"}


def test_limits_of_queues_are_always_written() -> None:
    # KAI reads a limit that is not there as none at all.
    queues = queues_of()
    assert len(queues) == 4
    for queue in queues.values():
        assert set(queue["resources"]) == {"gpu", "cpu", "memory"}
        for share in queue["resources"].values():
            assert set(share) == {"quota", "limit", "overQuotaWeight"}


def test_a_department_stands_between_root_and_leaves() -> None:
    assert {name: queue.get("parentQueue") for name, queue in queues_of().items()} == {
        "tandem": None, "research": "tandem", "high-prio": "research", "low-prio": "research",
    }  # fmt: skip


def test_a_tree_of_any_depth_in_any_order_is_rendered_whole(tmp_path: Path) -> None:
    site = {
        "runs": ["sub"],
        "tree": [
            queue("sub", "team", priority=7, preemptMinRuntime="4h", reclaimMinRuntime="30m",
                  quota=amounts(0.5, 64000, 2000000), limit=amounts(8, -1, -1),
                  overQuotaWeight={"gpu": 2.5}),
            queue("team", "dep", quota=amounts(0.5, 64000, -1)),
            queue("dep", "top", quota=amounts(16, -1, -1)),
            queue("other", "top", quota=amounts(0.2, 0, 0)),
            queue("top", quota=amounts(16.2, -1, -1), limit=amounts(64, -1, -1)),
        ],
    }  # fmt: skip
    queues = queues_of("-f", values(tmp_path, queues=site))
    assert list(queues) == ["sub", "team", "dep", "other", "top"]
    assert queues["sub"] == {
        "parentQueue": "team",
        "priority": 7,
        "preemptMinRuntime": "4h",
        "reclaimMinRuntime": "30m",
        "resources": {
            "gpu": {"quota": 0.5, "limit": 8, "overQuotaWeight": 2.5},
            "cpu": {"quota": 64000, "limit": -1, "overQuotaWeight": 1},
            # As a whole number: 2e+06 would be right for YAML alone.
            "memory": {"quota": 2000000, "limit": -1, "overQuotaWeight": 1},
        },
    }
    text = helm("template", "x", str(CHART), "--set", "queues.enabled=true", "-f",
                values(tmp_path, queues=site))  # fmt: skip
    assert "quota: 2000000\n" in text


def amounts(gpu: float, cpu: float, memory: float) -> dict[str, float]:
    return {"gpu": gpu, "cpu": cpu, "memory": memory}


ENDLESS = amounts(-1, -1, -1)
NOTHING = amounts(0, 0, 0)


def queue(name: str, parent: str = "", **more: Any) -> dict[str, Any]:
    above = {"parent": parent} if parent else {}
    return {"name": name, **above, "quota": ENDLESS, "limit": ENDLESS, **more}


def values(folder: Path, **tops: Any) -> str:
    path = folder / "values.yaml"
    path.write_text(dump(tops), encoding="utf-8")
    return str(path)


def tree(*queues: dict[str, Any], runs: tuple[str, ...] = ("leaf",)) -> dict[str, Any]:
    return {"queues": {"runs": list(runs), "tree": [*queues]}}


#: Values, and the path, the value and the fix that the one refusal names.
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown parent": (
        tree(queue("top"), queue("leaf", "dep")),
        ("queues.tree[1].parent: dep is no queue", "(leaf, top)", "or add it"),
    ),
    "loop of two": (
        tree(queue("top"), queue("leaf", "top"), queue("a", "b"), queue("b", "a")),
        ("queues.tree[2].parent: b closes a loop: a -> b -> a", "take one of the parents away"),
    ),
    "its own parent": (
        tree(queue("top"), queue("leaf", "top"), queue("a", "a")),
        ("queues.tree[2].parent: a closes a loop: a -> a",),
    ),
    "two of one name": (
        tree(queue("top"), queue("leaf", "top"), queue("leaf", "top")),
        ("queues.tree[2].name: leaf is the name of queues.tree[1]", "rename"),
    ),
    "quotas of children over the parent's": (
        tree(
            queue("leaf", "top", quota=amounts(6, 0, 0)),
            queue("b", "top", quota=amounts(4.5, 0, 0)),
            queue("top", quota=amounts(8, 0, 0)),
        ),
        ("queues.tree[2].quota.gpu: 8 of top", "leaf 6 + b 4.5 = 10.5", "raise it to 10.5"),
    ),
    "memory of children over the parent's": (
        tree(
            queue("leaf", "top", quota=amounts(0, 0, 2000000)),
            queue("top", quota=amounts(0, 0, 1000000)),
        ),
        ("queues.tree[1].quota.memory: 1000000 of top", "leaf 2000000", "raise it to 2000000"),
    ),
    "a child without a limit to its quota": (
        tree(queue("top", quota=amounts(-1, 64000, -1)), queue("leaf", "top")),
        ("queues.tree[0].quota.cpu: 64000 of top", "leaf -1", "or the parent -1"),
    ),
    "a quota over its own limit": (
        tree(queue("top"), queue("leaf", "top", quota=amounts(9, 0, 0), limit=amounts(8, -1, -1))),
        ("queues.tree[1].quota.gpu: 9", "limit of 8 (queues.tree[1].limit.gpu)", "at most"),
    ),
    "an endless quota over a limit": (
        tree(queue("top"), queue("leaf", "top", limit=amounts(8, -1, -1))),
        ("queues.tree[1].quota.gpu: -1", "limit of 8"),
    ),
    "a limit over the parent's": (
        tree(
            queue("leaf", "top", quota=NOTHING, limit=amounts(9, -1, -1)),
            queue("top", quota=NOTHING, limit=amounts(8, -1, -1)),
        ),
        ("queues.tree[0].limit.gpu: 9", "top can have, 8 (queues.tree[1].limit.gpu)", "write -1"),
    ),
    "cores for millicores": (
        tree(queue("top"), queue("leaf", "top", quota=amounts(0, 64, 0))),
        ("queues.tree[1].quota.cpu: 64", "thousandths of a core", "64 cores are 64000"),
    ),
    "gigabytes for megabytes": (
        tree(queue("top"), queue("leaf", "top", quota=NOTHING, limit=amounts(-1, -1, 512))),
        ("queues.tree[1].limit.memory: 512", "megabytes", "64 GB are 64000"),
    ),
    "a leaf that is a parent": (
        tree(queue("top"), queue("leaf", "top"), queue("below", "leaf")),
        ("queues.runs[0]: leaf is the parent of below", "Pending", "the leaves (below)"),
    ),
    "runs in a root": (
        tree(queue("top"), queue("leaf", "top"), queue("alone"), runs=("leaf", "alone")),
        ("queues.runs[1]: alone has no parent", "Pending", "the leaves (leaf)"),
    ),
    "runs in no queue": (
        tree(queue("top"), queue("leaf", "top"), runs=("leave",)),
        ("queues.runs[0]: leave is no queue", "name one of: leaf"),
    ),
    "a namespace of no queue": (
        {"queues": {"namespaces": {"team-b": ["low-prio", "nope"]}}},
        ("queues.namespaces.team-b[1]: nope is no queue", "name one of: high-prio, low-prio"),
    ),
    "a namespace of a parent": (
        {"queues": {"namespaces": {"team-b": ["research"]}}},
        ("queues.namespaces.team-b[0]: research is the parent of high-prio, low-prio",),
    ),
    "the namespace of the chart's own": (
        {"queues": {"namespaces": {"tandem": ["low-prio"]}}},
        ("queues.namespaces.tandem: it is the namespace", "queues.runs"),
    ),
    "a namespace of the cluster itself": (
        {"queues": {"namespaces": {"kube-system": ["low-prio"]}}},
        ("queues.namespaces.kube-system: pods of the cluster", "a namespace of theirs"),
    ),
    "refusing and warning": (
        {"admission": {"validationActions": ["Deny", "Warn"]}},
        ("admission.validationActions: Deny, Warn", "either Deny or Warn"),
    ),
    "hosts above what they are in": (
        {"topologies": {"rack": {"levels": ["kubernetes.io/hostname", "example.com/rack"]}}},
        ("topologies.rack.levels[0]: kubernetes.io/hostname", "above example.com/rack", "last"),
    ),
}


@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.parametrize("fault", REFUSED)
def test_values_that_mean_nothing_together_are_refused(
    fault: str, enabled: str, tmp_path: Path
) -> None:
    given, words = REFUSED[fault]
    with pytest.raises(UserError) as caught:
        helm("template", "x", str(CHART), "--set", f"queues.enabled={enabled}", "-f",
             values(tmp_path, **given))  # fmt: skip
    said = str(caught.value)
    assert "1 of the values mean nothing together" in said, said
    for word in words:
        assert word in said


def test_all_of_it_is_refused_at_once(tmp_path: Path) -> None:
    given = tree(
        queue("leaf", "dep", quota=amounts(8, 64, 0)),
        queue("top", quota=amounts(4, -1, -1)),
        queue("b", "top", quota=amounts(5, 0, 0)),
        runs=("leaf", "b", "top"),
    )
    with pytest.raises(UserError) as caught:
        helm("template", "x", str(CHART), "-f", values(tmp_path, **given))
    said = str(caught.value)
    assert "4 of the values" in said
    for path in ("tree[0].parent", "tree[0].quota.cpu", "tree[1].quota.gpu", "runs[2]"):
        assert f"  - queues.{path}: " in said


def test_parts_that_add_up_to_the_whole_are_taken(tmp_path: Path) -> None:
    # 0.1 + 0.2 is more than 0.3 for a processor.
    site = tree(
        queue("top", quota=amounts(0.3, 0, 0)),
        queue("leaf", "top", quota=amounts(0.1, 0, 0)),
        queue("b", "top", quota=amounts(0.2, 0, 0)),
    )
    assert set(queues_of("-f", values(tmp_path, **site))) == {"top", "leaf", "b"}


def test_topologies_go_from_wide_to_narrow_and_can_be_switched_off() -> None:
    def levels(*words: str) -> dict[str, list[str]]:
        objects = load_all(helm("template", "x", str(CHART), *words))
        return {
            obj["metadata"]["name"]: [level["nodeLabel"] for level in obj["spec"]["levels"]]
            for obj in objects
            if obj["kind"] == "Topology"
        }

    kai = ("--set", "queues.enabled=true")
    hosts = "kubernetes.io/hostname"
    assert levels() == {}, "they need KAI's CRDs"
    assert levels(*kai) == {
        "gb300": ["nvidia.com/gpu.clique", hosts],
        "rack": ["topology.kubernetes.io/rack", hosts],
    }
    assert set(levels(*kai, "--set", "topologies.rack.enabled=false")) == {"gb300"}


def admission(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy and the binding of runs."""
    objects = load_all(helm("template", "x", str(CHART), *words))
    [policy] = (o for o in objects if o["kind"] == "ValidatingAdmissionPolicy")
    [binding] = (o for o in objects if o["kind"] == "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    return policy, binding


def faults_looked_for(*words: str) -> set[str]:
    """Return the rules that the policy has; each is of the object, and of the one before."""
    policy, _ = admission(*words)
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    found = [
        set(re.findall(r'"([a-z-]+): " \+', variables[name])) for name in ("faults", "faultsBefore")
    ]
    assert found[0] == found[1]
    return found[0]


QUEUES = {"queue-missing", "queue-unknown", "queue-not-a-leaf", "queue-not-of-namespace"}
KAI = ("--set", "queues.enabled=true")


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        ((), set()),
        (("--set", "limits.gpusPerNode=8"), {"no-node-for-pod"}),
        (KAI, {*QUEUES, "gpus-outside-queues", "unknown-topology"}),
        ((*KAI, "--set", "admission.queueOf=kai"), {*QUEUES, "unknown-topology"}),
        ((*KAI, "--set", "admission.topologies=false"), {*QUEUES, "gpus-outside-queues"}),
    ],
)
def test_the_api_server_looks_for_what_the_values_tell_of(
    words: tuple[str, ...], rules: set[str]
) -> None:
    # The run's id always: that needs nothing of the cluster.
    assert faults_looked_for(*words) == {"run-id-missing", *rules}


def test_admission_holds_the_namespaces_that_have_a_list() -> None:
    policy, binding = admission(*KAI, "--set", "queues.namespaces.team-b={low-prio}")
    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["tandem", "team-b"]}
    ]
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert policy["spec"]["failurePolicy"] == "Fail"


def test_admission_can_be_tried_and_switched_off() -> None:
    _, binding = admission("--set", "admission.validationActions={Warn,Audit}")
    assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
    objects = load_all(helm("template", "x", str(CHART), "--set", "admission.enabled=false"))
    assert not [o for o in objects if o["kind"].startswith("Validating")]
