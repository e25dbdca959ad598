"""The platform as it renders, in every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.crds import LOCAL_ENVIRONMENTS, releases_of
from tandem.golden import FOLDER as GOLDEN
from tandem.golden import current, differences, kept
from tandem.paths import ROOT
from tandem.render import ENVIRONMENTS, RENDERED, Platform, render_all
from tandem.schemas.generate import generate
from tandem.validate import check, problems_of

ONLY_UPSTREAM = {
    "default": set(),
    "kueue": set(),
    "kind": {"kai-scheduler", "fake-gpu-operator"},
    "nvkind": {"kai-scheduler", "nvidia-device-plugin"},
    "prod": {"kai-scheduler", "gpu-operator"},
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Platform]]:
    folder = tmp_path_factory.mktemp("rendered")
    assert folder != RENDERED
    # What a contributor's bundle holds beyond the pinned charts is not looked at here.
    platforms = render_all(folder, bundled_kai=False)
    return folder, {platform.environment: platform for platform in platforms}


Rendered = tuple[Path, dict[str, Platform]]


def of_kind(platform: Platform, kind: str) -> list[dict[str, Any]]:
    return [o for objects in platform.releases.values() for o in objects if o["kind"] == kind]


def test_everything_that_renders_is_valid(rendered: Rendered) -> None:
    generate()
    results = check([rendered[0]])
    assert len(results) > 100
    assert [str(problem) for problem in problems_of(results)] == []


def test_helmfile_has_these_environments() -> None:
    environments, _ = yaml.safe_load_all((ROOT / "helmfile.yaml").read_text())
    assert tuple(environments["environments"]) == ENVIRONMENTS


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_what_is_not_rendered_is_what_only_upstream_has(
    environment: str, rendered: Rendered
) -> None:
    platform = rendered[1][environment]
    assert set(platform.not_rendered) == ONLY_UPSTREAM[environment]
    kueue = {"kueue"} if environment == "kueue" else set()
    assert set(platform.releases) == {"jobset", "kuberay-operator", "rl-platform"} | kueue
    assert all(platform.releases.values())


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_no_release_holds_a_crd(environment: str, rendered: Rendered) -> None:
    # A release that holds one can drop it, and every object of its kind with it.
    assert of_kind(rendered[1][environment], "Deployment")
    assert of_kind(rendered[1][environment], "CustomResourceDefinition") == []


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_helm_owns_no_key_of_the_webhook_secret(environment: str, rendered: Rendered) -> None:
    secrets = of_kind(rendered[1][environment], "Secret")
    assert "jobset-webhook-server-cert" in {secret["metadata"]["name"] for secret in secrets}
    assert not [secret for secret in secrets if "data" in secret]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_queues_are_there_where_kai_is(environment: str, rendered: Rendered) -> None:
    queues = {q["metadata"]["name"] for q in of_kind(rendered[1][environment], "Queue")}
    kai = environment not in LOCAL_ENVIRONMENTS and any(
        release["name"] == "kai-scheduler" for release in releases_of(environment)
    )
    assert queues == ({"tandem", "research", "high-prio", "low-prio"} if kai else set())


@pytest.mark.parametrize("environment", LOCAL_ENVIRONMENTS)
def test_the_local_platform_leaves_room_on_two_cores(environment: str, rendered: Rendered) -> None:
    total = 0
    for deployment in of_kind(rendered[1][environment], "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert container["image"].startswith("localhost/tandem/")
            assert container["imagePullPolicy"] == "IfNotPresent"
            total += millicores(container["resources"]["requests"]["cpu"])
    assert 0 < total <= 100


def millicores(quantity: object) -> int:
    text = str(quantity)
    return int(text[:-1]) if text.endswith("m") else int(float(text) * 1000)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_no_operator_asks_for_more_cpu_than_its_limit(environment: str, rendered: Rendered) -> None:
    for deployment in of_kind(rendered[1][environment], "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            resources = container["resources"]
            limit = resources["limits"].get("cpu")
            if limit is not None:
                assert millicores(resources["requests"]["cpu"]) <= millicores(limit)


def test_the_local_operators_are_not_throttled(rendered: Rendered) -> None:
    [kuberay] = rendered[1]["default"].releases["kuberay-operator"][-1:]
    [container] = kuberay["spec"]["template"]["spec"]["containers"]
    assert "cpu" not in container["resources"]["limits"]


def test_kueue_holds_back_nobodys_work_but_runs(rendered: Rendered) -> None:
    platform = rendered[1]["kueue"]
    [config] = [
        yaml.safe_load(obj["data"]["controller_manager_config.yaml"])
        for obj in of_kind(platform, "ConfigMap")
        if "controller_manager_config.yaml" in obj["data"] and "kueue" in obj["metadata"]["name"]
    ]
    assert config["manageJobsWithoutQueueName"] is False
    # Without batch/job its webhook would refuse every Job, and with it every JobSet's pods.
    assert set(config["integrations"]["frameworks"]) == {
        "batch/job", "jobset.x-k8s.io/jobset", "ray.io/rayjob", "ray.io/raycluster", "pod",
    }  # fmt: skip
    assert config["waitForPodsReady"]["blockAdmission"] is True
    [namespace] = of_kind(platform, "Namespace")
    ours = {"matchLabels": {"kubernetes.io/metadata.name": namespace["metadata"]["name"]}}
    assert config["managedJobsNamespaceSelector"] == ours
    webhooks = [
        hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for obj in of_kind(platform, kind)
        if "kueue" in obj["metadata"]["name"]
        for hook in obj["webhooks"]
    ]
    pods = [hook for hook in webhooks if hook["rules"][0]["resources"] == ["pods"]]
    assert len(pods) == 2
    for hook in pods:
        assert hook["namespaceSelector"] == ours


def test_a_kueue_that_is_away_breaks_no_discovery(rendered: Rendered) -> None:
    assert of_kind(rendered[1]["kueue"], "ClusterQueue")
    assert of_kind(rendered[1]["kueue"], "APIService") == []


def test_the_namespace_of_runs_outlives_the_release(rendered: Rendered) -> None:
    [namespace] = of_kind(rendered[1]["default"], "Namespace")
    assert namespace["metadata"]["name"] == "tandem"
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_goldens_are_what_renders(rendered: Rendered) -> None:
    assert rendered
    assert [str(problem) for problem in differences(current(), kept(GOLDEN))] == []
