"""A variant with two RayClusters and a driver, as bare as it can be, for tests of components.

The components are real; what they are added to stands in for a variant of that shape.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tandem.paths import ROOT
from tandem.render import kustomize
from tandem.yamls import dump, dump_all

Object = dict[str, Any]

COMPONENTS = ROOT / "kustomize" / "components"


def _pod(role: str) -> Object:
    return {
        "metadata": {"labels": {"tandem.dev/role": role, "tandem.dev/run-id": "run-7"}},
        "spec": {
            "serviceAccountName": role,
            "automountServiceAccountToken": False,
            "containers": [{"name": "ray-head", "image": "ray"}],
        },
    }


def objects(run_id: str = "run-7") -> list[Object]:
    """Return the RayClusters `rl` and `gym`, and the Job `driver`."""
    labels = {"tandem.dev/run-id": run_id}
    sides: dict[str, Object] = {
        name: {"headGroupSpec": {"rayStartParams": {}, "template": _pod(name)}}
        for name in ("rl", "gym")
    }
    sides["rl"]["workerGroupSpecs"] = [{
        "groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
        "rayStartParams": {}, "template": _pod("rl"),
    }]  # fmt: skip
    found: list[Object] = [
        {
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {"name": name, "labels": labels}, "spec": spec,
        }
        for name, spec in sides.items()
    ]  # fmt: skip
    driver = _pod("driver")
    driver["spec"]["restartPolicy"] = "Never"
    found.append({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "driver", "labels": labels},
        "spec": {"backoffLimit": 0, "template": driver},
    })  # fmt: skip
    return found


def write(folder: Path, components: list[str], *, run_id: str = "run-7") -> Path:
    """Write the variant with components, and return its folder."""
    base = folder / "variant"
    base.mkdir(parents=True)
    (base / "objects.yaml").write_text(dump_all(objects(run_id)))
    names = ["crd-schema", *components]
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "tandem",
        "resources": ["objects.yaml"],
        "components": [os.path.relpath(COMPONENTS / name, base.resolve()) for name in names],
    }
    (base / "kustomization.yaml").write_text(dump(overlay))
    return base


def render(folder: Path, components: list[str], *, run_id: str = "run-7") -> list[Object]:
    """Return the variant's objects with components."""
    return kustomize(write(folder, components, run_id=run_id))


def render_renamed(folder: Path, components: list[str], suffix: str) -> list[Object]:
    """Return them from an overlay that renames everything, as runs beside each other do."""
    write(folder, components)
    outer = folder / "renamed"
    outer.mkdir()
    (outer / "kustomization.yaml").write_text(dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../variant"], "nameSuffix": suffix,
    }))  # fmt: skip
    return kustomize(outer)
