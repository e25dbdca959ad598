"""Component crd-schema: a patch of one entry of a list leaves the others alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.render import KUSTOMIZE, kustomize

POD: dict[str, Any] = {
    "containers": [
        {
            "name": "main",
            "image": "one",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 1, "name": "one"}],
            "volumeMounts": [{"mountPath": "/a", "name": "a"}],
        },
        {"name": "side", "image": "two"},
    ],
    "initContainers": [{"name": "wait", "image": "three"}],
    "volumes": [{"name": "a", "emptyDir": {}}],
}
PATCH: dict[str, Any] = {
    "containers": [
        {
            "name": "main",
            "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
            "ports": [{"containerPort": 2, "name": "two"}],
            "volumeMounts": [{"mountPath": "/b", "name": "b"}],
        }
    ],
    "initContainers": [{"name": "check", "image": "four"}],
    "volumes": [{"name": "b", "emptyDir": {}}],
}


def raycluster(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "headGroupSpec": {"template": {"spec": pod}},
        "workerGroupSpecs": [{"groupName": "workers", "template": {"spec": pod}}],
    }


def shapes(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    def obj(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}

    job = {"name": "head", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "RayJob": obj("ray.io/v1", "RayJob", {"rayClusterSpec": raycluster(pod)}),
        "RayCluster": obj("ray.io/v1", "RayCluster", raycluster(pod)),
        "JobSet": obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [job]}),
    }


def pods(obj: dict[str, Any]) -> list[dict[str, Any]]:
    spec = obj["spec"]
    if obj["kind"] == "JobSet":
        return [job["template"]["spec"]["template"]["spec"] for job in spec["replicatedJobs"]]
    cluster = spec.get("rayClusterSpec", spec)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def build(folder: Path, kind: str, *, schema: bool) -> list[dict[str, Any]]:
    files = {"object": shapes(POD)[kind], "patch": shapes(PATCH)[kind]}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    overlay: dict[str, Any] = {"resources": ["object.json"], "patches": [{"path": "patch.json"}]}
    if schema:
        # kustomize takes only paths below or beside; a copy keeps the test in its folder.
        text = (KUSTOMIZE / "components" / "crd-schema" / "schema.json").read_text()
        (folder / "schema.json").write_text(text)
        overlay["openapi"] = {"path": "schema.json"}
    (folder / "kustomization.yaml").write_text(json.dumps(overlay))
    [obj] = kustomize(folder)
    return pods(obj)


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster", "JobSet"])
def test_lists_are_merged_by_their_keys(tmp_path: Path, kind: str) -> None:
    found = build(tmp_path, kind, schema=True)
    assert found
    for pod in found:
        by_name = {c["name"]: c for c in pod["containers"]}
        assert set(by_name) == {"main", "side"}
        main = by_name["main"]
        assert main["image"] == "one"
        assert {e["name"]: e["value"] for e in main["env"]} == {"A": "1", "B": "3", "C": "4"}
        assert {p["containerPort"] for p in main["ports"]} == {1, 2}
        assert {m["mountPath"] for m in main["volumeMounts"]} == {"/a", "/b"}
        assert {c["name"] for c in pod["initContainers"]} == {"wait", "check"}
        assert {v["name"] for v in pod["volumes"]} == {"a", "b"}


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster", "JobSet"])
def test_without_it_they_would_be_replaced(tmp_path: Path, kind: str) -> None:
    for pod in build(tmp_path, kind, schema=False):
        assert {c["name"] for c in pod["containers"]} == {"main"}
