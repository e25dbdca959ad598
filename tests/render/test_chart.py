"""Our chart by itself: lint, and a schema that refuses values which mean nothing."""

from __future__ import annotations

import pytest

from tandem.errors import UserError
from tandem.paths import ROOT
from tandem.process import run
from tandem.yamls import load_all

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
        ("queues.leaves[0].quota.gpu=-2", "quota/gpu"),
        ("queues.leaves[0].preemptMinRuntime=soon", "preemptMinRuntime"),
        ("queues.leaves=null", "leaves"),
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


def test_limits_of_queues_are_always_written() -> None:
    # KAI reads a limit that is not there as none at all.
    objects = load_all(helm("template", "x", str(CHART), "--set", "queues.enabled=true"))
    queues = [obj for obj in objects if obj["kind"] == "Queue"]
    assert len(queues) == 3
    for queue in queues:
        for share in queue["spec"]["resources"].values():
            assert set(share) == {"quota", "limit", "overQuotaWeight"}


def test_only_leaves_have_a_parent() -> None:
    objects = load_all(helm("template", "x", str(CHART), "--set", "queues.enabled=true"))
    parents = {
        obj["metadata"]["name"]: obj["spec"].get("parentQueue")
        for obj in objects
        if obj["kind"] == "Queue"
    }
    assert parents == {"tandem": None, "high-prio": "tandem", "low-prio": "tandem"}
