"""The platform as it renders, in every environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.crds import releases_of
from tandem.golden import FOLDER as GOLDEN
from tandem.golden import current, differences, kept
from tandem.paths import ROOT
from tandem.render import ENVIRONMENTS, RENDERED, Platform, render_all
from tandem.schemas.generate import generate
from tandem.validate import check, problems_of

ONLY_UPSTREAM = {
    "default": set(),
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


def test_helmfile_has_the_four_environments() -> None:
    environments, _ = yaml.safe_load_all((ROOT / "helmfile.yaml").read_text())
    assert tuple(environments["environments"]) == ENVIRONMENTS


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_what_is_not_rendered_is_what_only_upstream_has(
    environment: str, rendered: Rendered
) -> None:
    platform = rendered[1][environment]
    assert set(platform.not_rendered) == ONLY_UPSTREAM[environment]
    assert set(platform.releases) == {"jobset", "kuberay-operator", "rl-platform"}
    assert all(platform.releases.values())


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_no_release_holds_a_crd(environment: str, rendered: Rendered) -> None:
    # A release that holds one can drop it, and every object of its kind with it.
    assert of_kind(rendered[1][environment], "Deployment")
    assert of_kind(rendered[1][environment], "CustomResourceDefinition") == []


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_helm_owns_no_key_of_the_webhook_secret(environment: str, rendered: Rendered) -> None:
    [secret] = of_kind(rendered[1][environment], "Secret")
    assert secret["metadata"]["name"] == "jobset-webhook-server-cert"
    assert "data" not in secret


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_queues_are_there_where_kai_is(environment: str, rendered: Rendered) -> None:
    queues = {q["metadata"]["name"] for q in of_kind(rendered[1][environment], "Queue")}
    kai = environment != "default" and any(
        release["name"] == "kai-scheduler" for release in releases_of(environment)
    )
    assert queues == ({"tandem", "research", "high-prio", "low-prio"} if kai else set())


def test_the_local_platform_leaves_room_on_two_cores(rendered: Rendered) -> None:
    total = 0
    for deployment in of_kind(rendered[1]["default"], "Deployment"):
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


def test_the_namespace_of_runs_outlives_the_release(rendered: Rendered) -> None:
    [namespace] = of_kind(rendered[1]["default"], "Namespace")
    assert namespace["metadata"]["name"] == "tandem"
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_goldens_are_what_renders(rendered: Rendered) -> None:
    assert rendered
    assert [str(problem) for problem in differences(current(), kept(GOLDEN))] == []
