"""Variants as they render."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tandem.policy import pods_of
from tandem.render import OVERLAYS, kustomize, render_variant, require_variant, variants
from tandem.versions import pinned


def rayjob(variant: str) -> dict[str, Any]:
    [obj] = render_variant(variant)
    assert obj["kind"] == "RayJob"
    return obj


def test_the_default_variant_is_the_local_one() -> None:
    assert kustomize(OVERLAYS) == render_variant("disagg-rayclusters")


@pytest.mark.parametrize("variant", variants())
def test_a_variants_objects_are_in_the_namespace_of_runs(variant: str) -> None:
    objects = render_variant(variant)
    assert objects
    for obj in objects:
        assert obj["metadata"].get("namespace") == "tandem", obj["metadata"]["name"]


def test_the_local_variant_needs_nothing_that_is_not_built_here() -> None:
    pods = pods_of(rayjob("monolithic-rayjob"))
    assert len(pods) == 2
    for pod in pods:
        for container in pod.containers:
            assert container["image"] == "localhost/tandem/ray-vllm-cpu:dev"
        assert pod.spec["schedulerName"] == "default-scheduler"
        assert "imagePullSecrets" not in pod.spec


def test_the_local_variant_fits_two_cores_beside_the_platform() -> None:
    requests = [
        container["resources"]["requests"]
        for pod in pods_of(rayjob("monolithic-rayjob"))
        for container in pod.containers
    ]
    cpu = sum(int(r["cpu"].removesuffix("m")) for r in requests)
    memory = sum(int(r["memory"].removesuffix("Gi")) for r in requests)
    assert cpu <= 600
    assert memory <= 6


def test_the_ray_version_is_the_images() -> None:
    spec = rayjob("monolithic-rayjob")["spec"]["rayClusterSpec"]
    assert spec["rayVersion"] == pinned("ray")


def ray_modes(obj: dict[str, Any]) -> set[str]:
    """How the containers of an object that use Ray are told to show who they are."""
    return {
        env["value"]
        for pod in pods_of(obj)
        for container in pod.containers
        for env in container.get("env", [])
        if env["name"] == "RAY_AUTH_MODE"
    }


@pytest.mark.parametrize("variant", variants())
def test_pods_and_operator_agree_on_rays_authentication(variant: str) -> None:
    seen = set()
    for obj in render_variant(variant):
        spec = obj.get("spec", {})
        cluster = spec.get("rayClusterSpec") or (spec if obj["kind"] == "RayCluster" else None)
        if obj["kind"] == "JobSet":
            # Nobody between the pods: all that they have to agree with is each other.
            [mode] = ray_modes(obj)
        elif cluster is None:
            continue
        else:
            mode = cluster.get("authOptions", {"mode": "disabled"})["mode"]
        assert ray_modes(obj) == {mode}
        assert all(ray_modes(each) <= {mode} for each in render_variant(variant))
        seen.add(mode)
    assert len(seen) == 1


def test_the_local_variant_asks_for_a_token() -> None:
    cluster = rayjob("monolithic-rayjob")["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"


def test_the_production_variant_is_a_gang_with_gpus() -> None:
    obj = rayjob("prod-monolithic-rayjob")
    pods = pods_of(obj)
    assert {pod.spec["schedulerName"] for pod in pods} == {"kai-scheduler"}
    assert {pod.metadata["labels"]["kai.scheduler/queue"] for pod in pods} == {"low-prio"}
    assert [pod.spec["imagePullSecrets"] for pod in pods] == [[{"name": "nvcr-secret"}]] * 2
    worker = pods[1].containers[0]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert worker["image"].startswith("nvcr.io/nvidia/nemo-rl:")


def test_both_variants_come_from_one_base() -> None:
    local, prod = rayjob("monolithic-rayjob"), rayjob("prod-monolithic-rayjob")
    for key in ("submissionMode", "shutdownAfterJobFinishes", "backoffLimit"):
        assert local["spec"][key] == prod["spec"][key]


@pytest.mark.parametrize(
    "words",
    [
        ["tandem.render", "--variant", "no-such-variant"],
        ["tandem.deploy", "up", "--variant", "no-such-variant"],
    ],
)
def test_an_unknown_variant_is_refused_with_those_there_are(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "unknown variant: no-such-variant" in done.stderr
    assert ", ".join(variants()) in done.stderr
    assert "Traceback" not in done.stderr


def test_require_variant_takes_the_names_of_folders() -> None:
    for name in variants():
        require_variant(name)
