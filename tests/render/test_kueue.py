"""A variant in a queue of Kueue's: one Workload, whatever objects it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.errors import ExitCode, UserError
from tandem.explain.kueue import units_of
from tandem.policy import (
    KUEUE_COUNT,
    KUEUE_GROUP,
    KUEUE_PRIORITY,
    KUEUE_QUEUE,
    KUEUE_RETRIABLE,
    pods_of,
)
from tandem.render import kustomize, render_variant, variants
from tandem.run import queueing
from tandem.run.identity import Placing, drop_overlay, write_overlay
from tandem.run.shapes import labels_of, role_of

Object = dict[str, Any]

#: Kueue would not count what a Deployment makes.
WITH_POOL = [name for name in variants() if name.endswith("-judge")]
LOCAL = [n for n in variants() if not n.startswith("prod-") and n not in WITH_POOL]
FOR_KAI = [n for n in variants() if n.startswith("prod-") and n not in WITH_POOL]


@pytest.fixture
def placed() -> Iterator[Any]:
    folders = []

    def place(variant: str, queue: str = "") -> list[Object]:
        folders.append(write_overlay(variant, "q7", Placing(queueing.KUEUE, queue)))
        return kustomize(folders[-1])

    yield place
    for folder in folders:
        drop_overlay(folder)


def kueue_labels(metadata: Object) -> dict[str, str]:
    return {
        key: value
        for key, value in labels_of({"metadata": metadata}).items()
        if key.startswith("kueue.x-k8s.io/")
    }


@pytest.mark.parametrize("queue", ["", "high-prio"])
@pytest.mark.parametrize("variant", LOCAL)
def test_a_run_is_one_workload_with_all_of_its_pods(variant: str, queue: str, placed: Any) -> None:
    objects = placed(variant, queue)
    [unit] = units_of(objects)
    assert (unit.queue, unit.priority) == (queue or "low-prio", queue or "low-prio")
    assert unit.wanted in (None, unit.count)
    inside = {id(pods.obj) for pods in unit.pods}
    for obj in objects:
        if pods_of(obj):
            assert (id(obj) in inside) == (role_of(obj) != "watcher"), obj["metadata"]["name"]
        for pod in pods_of(obj):
            assert pod.spec.get("schedulerName", "default-scheduler") == "default-scheduler"
            # Kueue makes it so; applied again, it would suspend a run that goes on.
        assert "suspend" not in obj.get("spec", {})


def test_a_group_is_named_as_the_run_and_counts_its_pods(placed: Any) -> None:
    templates = [
        pod.metadata
        for obj in placed("disagg-rayclusters")
        for pod in pods_of(obj)
        if kueue_labels(pod.metadata)
    ]
    assert len(templates) == 4
    for metadata in templates:
        assert kueue_labels(metadata) == {
            KUEUE_GROUP: "q7", KUEUE_QUEUE: "low-prio", KUEUE_PRIORITY: "low-prio",
        }  # fmt: skip
        assert metadata["annotations"][KUEUE_COUNT] == "4"
        assert metadata["annotations"][KUEUE_RETRIABLE] == "false"


def test_more_workers_are_counted() -> None:
    objects = render_variant("disagg-rayclusters")
    [rl] = [o for o in objects if o["kind"] == "RayCluster" and o["metadata"]["name"] == "rl"]
    rl["spec"]["workerGroupSpecs"][0]["replicas"] = 16
    patches = queueing.patches_of(objects, group="big")
    assert {each["target"]["name"] for each in patches} == {"rl", "gym", "driver"}
    for each in patches:
        assert "value: '19'" in each["patch"]


@pytest.mark.parametrize("variant", FOR_KAI)
def test_a_variant_for_kai_is_refused_before_anything_is_written(variant: str) -> None:
    with pytest.raises(UserError) as caught:
        write_overlay(variant, "q7", Placing(queueing.KUEUE))
    assert caught.value.code == ExitCode.USAGE
    assert "gang-kai" in caught.value.problems[0].fix


@pytest.mark.parametrize("variant", WITH_POOL)
def test_a_variant_with_a_pool_is_refused(variant: str) -> None:
    with pytest.raises(UserError) as caught:
        write_overlay(variant, "q7", Placing(queueing.KUEUE))
    assert caught.value.code == ExitCode.USAGE
    assert "Deployment/judge-replicas" in caught.value.problems[0].what


@pytest.mark.parametrize("variant", LOCAL)
def test_without_a_scheduler_a_run_is_as_its_variant_says(variant: str) -> None:
    folder = write_overlay(variant, "q8")
    try:
        assert units_of(kustomize(folder)) == []
    finally:
        drop_overlay(folder)
