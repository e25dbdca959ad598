"""The generated chart takes the upstream chart's values, by helm itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tandem.bundle.kuberay_chart import write_chart
from tandem.errors import UserError
from tandem.process import run
from tandem.yamls import load_all

PROBE = {"httpGet": {"path": "/", "port": 1}, "initialDelaySeconds": 9, "periodSeconds": 9,
         "failureThreshold": 9}  # fmt: skip
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
     "metadata": {"name": "things.ray.io"}},
    {"apiVersion": "v1", "kind": "ServiceAccount",
     "metadata": {"name": "kuberay-operator", "namespace": "default"}},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
     "metadata": {"name": "kuberay-operator"},
     "subjects": [{"kind": "ServiceAccount", "name": "kuberay-operator", "namespace": "default"}]},
    {"apiVersion": "apps/v1", "kind": "Deployment",
     "metadata": {"name": "kuberay-operator", "namespace": "default"},
     "spec": {"template": {"spec": {"containers": [
         {"name": "kuberay-operator", "image": "x", "args": ["--feature-gates=A=true"],
          "livenessProbe": PROBE, "readinessProbe": PROBE}]}}}},
]  # fmt: skip


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    write_chart(copy.deepcopy(OBJECTS), tmp_path / "chart", "v1.2.3")
    return tmp_path / "chart"


def template(chart: Path, *values: str) -> dict[str, Any]:
    said = run(
        ["helm", "template", "x", chart, "--namespace", "elsewhere",
         *[word for value in values for word in ("--set", value)]],
        timeout=60,
    )  # fmt: skip
    return {obj["kind"]: obj for obj in load_all(said)}


def container(chart: Path, *values: str) -> dict[str, Any]:
    pod = template(chart, *values)["Deployment"]["spec"]["template"]["spec"]
    found: dict[str, Any] = pod["containers"][0]
    return found


def test_it_holds_no_crds(chart: Path) -> None:
    assert "CustomResourceDefinition" not in template(chart)
    assert not (chart / "crds").exists()


def test_everything_goes_to_the_releases_namespace(chart: Path) -> None:
    found = template(chart)
    assert found["Deployment"]["metadata"]["namespace"] == "elsewhere"
    assert found["ClusterRoleBinding"]["subjects"][0]["namespace"] == "elsewhere"


def test_the_version_is_the_default_tag(chart: Path) -> None:
    assert container(chart)["image"] == "quay.io/kuberay/operator:v1.2.3"


def test_values_by_their_upstream_names(chart: Path) -> None:
    found = container(
        chart,
        "image.repository=a/b", "image.tag=c", "image.pullPolicy=Never",
        "resources.requests.cpu=5m", "readinessProbe.periodSeconds=1", "env[0].name=A",
    )  # fmt: skip
    assert found["image"] == "a/b:c"
    assert found["imagePullPolicy"] == "Never"
    assert found["resources"]["requests"] == {"cpu": "5m"}
    assert found["readinessProbe"]["periodSeconds"] == 1
    assert found["env"] == [{"name": "A"}]


def test_the_batch_scheduler_becomes_an_argument(chart: Path) -> None:
    assert (
        "--batch-scheduler=kai-scheduler"
        in container(chart, "batchScheduler.name=kai-scheduler")["args"]
    )
    assert not any("--batch-scheduler" in arg for arg in container(chart)["args"])


def test_a_template_in_an_object_is_refused(tmp_path: Path) -> None:
    bad = [{"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "{{ oops }}"}}]
    with pytest.raises(UserError, match="ConfigMap a"):
        write_chart(bad, tmp_path / "bad", "v1")
