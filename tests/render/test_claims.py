"""Components that claim devices (DRA) for the workers, under any name of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tandem.policy import Pod, pods_of
from tandem.render import OVERLAYS, kustomize
from tandem.yamls import dump

Object = dict[str, Any]

COMPONENTS = OVERLAYS.parent / "components"
VARIANTS = [
    "prod-monolithic-rayjob", "prod-monolithic-jobset", "prod-disagg-rayclusters",
    "prod-disagg-jobset",
]  # fmt: skip
CLAIMS = {"rdma-roce": "roce", "dra-computedomain": "imex"}


def render(folder: Path, variant: str, component: str) -> list[Object]:
    """Return a variant with a component, renamed from outside."""
    inner, outer = folder / "inner", folder / "outer"
    for each in (inner, outer):
        each.mkdir()

    def path(target: Path) -> str:
        return os.path.relpath(target, inner.resolve())

    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (inner / "kustomization.yaml").write_text(dump({
        **head, "namespace": "tandem", "resources": [path(OVERLAYS / variant)],
        "components": [path(COMPONENTS / name) for name in ("crd-schema", component)],
    }))  # fmt: skip
    (outer / "kustomization.yaml").write_text(dump({
        **head, "resources": ["../inner"], "nameSuffix": "-x2",
        "components": [path(COMPONENTS / "name-references")],
    }))  # fmt: skip
    return kustomize(outer)


def is_worker(pod: Pod) -> bool:
    role = str(pod.metadata["labels"].get("tandem.dev/role"))
    return (role, str(pod.spec["containers"][0]["name"])) == ("rl", "ray-worker")


@pytest.mark.parametrize("component", CLAIMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_workers_and_nobody_else_claim_it(variant: str, component: str, tmp_path: Path) -> None:
    objects = render(tmp_path, variant, component)
    pods = [pod for obj in objects for pod in pods_of(obj)]
    claimed = CLAIMS[component]
    workers = [pod for pod in pods if is_worker(pod)]
    assert workers
    for pod in workers:
        [claim] = pod.spec["resourceClaims"]
        assert claim["name"] == claimed
        # What makes the template has its name: another run's is another one.
        kind = "ResourceClaimTemplate" if component == "rdma-roce" else "ComputeDomain"
        [made] = [obj for obj in objects if obj["kind"] == kind]
        assert claim["resourceClaimTemplateName"] == made["metadata"]["name"]
        assert made["metadata"]["name"].endswith("-x2")
        if kind == "ComputeDomain":
            template = made["spec"]["channel"]["resourceClaimTemplate"]
            assert template["name"] == made["metadata"]["name"]
        [ray] = pod.spec["containers"]
        assert ray["resources"]["claims"] == [{"name": claimed}]
        assert ray["resources"]["limits"]["nvidia.com/gpu"] == 8, "the rest is as it was"
        assert ray["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all("resourceClaims" not in pod.spec for pod in pods if not is_worker(pod))


def test_both_go_together(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    names = ("crd-schema", *CLAIMS)
    (tmp_path / "kustomization.yaml").write_text(dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "namespace": "tandem",
        "resources": [os.path.relpath(OVERLAYS / "prod-disagg-jobset", root)],
        "components": [os.path.relpath(COMPONENTS / name, root) for name in names],
    }))  # fmt: skip
    [worker] = [
        pod for obj in kustomize(tmp_path) for pod in pods_of(obj) if is_worker(pod)
    ]  # fmt: skip
    claims = {claim["name"] for claim in worker.spec["resourceClaims"]}
    assert claims == set(CLAIMS.values())
    assert {each["name"] for each in worker.containers[-1]["resources"]["claims"]} == claims
