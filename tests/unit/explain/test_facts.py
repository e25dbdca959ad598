"""What the cluster offers, read from values of our chart or from the objects that it makes."""

from __future__ import annotations

import pytest

from tandem.explain.facts import Facts, Queue, read_platform, version_of
from tandem.explain.inputs import PLATFORM
from tandem.explain.quantity import Resources
from tandem.paths import ROOT
from tandem.yamls import load_all

NONE = Resources(-1, -1, -1)


def test_the_charts_values_and_its_objects_say_the_same() -> None:
    values = read_platform(load_all(PLATFORM.read_text()))
    rendered = ROOT / "tests" / "golden" / "rl-platform" / "prod.yaml"
    objects = read_platform(load_all(rendered.read_text()))
    assert {"high-prio", "low-prio"} <= set(values.leaves)
    assert values == objects


def test_queues_of_a_tree() -> None:
    tree = [
        {"name": "root"},
        {"name": "research", "parent": "root", "limit": {"gpu": 64}},
        {"name": "llm", "parent": "research", "quota": {"gpu": 8, "cpu": 1, "memory": 2}},
        {"name": "alone"},
    ]
    found = read_platform([{"queues": {"tree": tree}}])
    assert found.queues["llm"] == Queue("llm", "research", Resources(8, 1, 2), NONE)
    assert found.queues["research"].limit == Resources(64, -1, -1)
    # A queue without a parent takes no pods, though none is below it.
    assert found.leaves == ["llm"]
    assert [queue.name for queue in found.path("llm")] == ["llm", "research", "root"]
    assert found.path("gone") == []


def test_parents_in_a_circle_end() -> None:
    tree = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]
    found = read_platform([{"queues": {"tree": tree}}])
    assert [queue.name for queue in found.path("a")] == ["a", "b"]


def test_topologies_that_are_switched_off_are_not_there() -> None:
    topologies = {"rack": {"levels": ["a", "b"]}, "off": {"levels": ["c"], "enabled": False}}
    assert read_platform([{"topologies": topologies}]).topologies == {"rack": ("a", "b")}
    obj = {"kind": "Topology", "metadata": {"name": "rack"}}
    found = read_platform([{**obj, "spec": {"levels": [{"nodeLabel": "a"}, {"nodeLabel": "b"}]}}])
    assert found.topologies == {"rack": ("a", "b")}


HELD = {
    "namespace": "tandem",
    "queues": {"runs": ["a", "b"], "namespaces": {"team-b": ["b"]}},
    "limits": {"gpusPerNode": 8},
}


def test_queues_of_namespaces_are_those_that_the_api_server_holds_them_to() -> None:
    found = read_platform([HELD])
    assert found.namespaces == {"tandem": ("a", "b"), "team-b": ("b",)}
    assert found.gpus_per_node == 8
    free = read_platform([{**HELD, "admission": {"enabled": False}}])
    assert free.namespaces == {}
    # The nodes are what they are.
    assert free.gpus_per_node == 8


def test_an_admission_policy_of_others_tells_nothing() -> None:
    policy = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "theirs"}}
    notes = {"tandem.dev/queues": '{"tandem": ["a"]}', "tandem.dev/gpus-per-node": "4"}
    ours = {**policy, "metadata": {"name": "ours", "annotations": notes}}
    found = read_platform([policy, ours])
    assert (found.namespaces, found.gpus_per_node) == ({"tandem": ("a",)}, 4)
    assert read_platform([policy]).namespaces == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("v0.17.1", (0, 17, 1)), ("0.16.2", (0, 16, 2)), ("v0.18.0-rc.1+x", (0, 18, 0))],
)
def test_versions(text: str, expected: tuple[int, int, int]) -> None:
    assert version_of(text) == Facts(kai=text).kai_version == expected


@pytest.mark.parametrize("text", ["", "latest", "v0.17", "v0.17.1.2"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        version_of(text)
