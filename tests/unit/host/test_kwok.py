"""Simulated nodes: what they are like, what changes when other ones are wanted, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.errors import ExitCode, UserError
from tandem.paths import KWOK
from tandem_host import cluster, components, config, kwok, status
from tandem_host.layout import Layout
from tandem_host.settings import Settings, kwok_profiles


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", bin=tmp_path / "bin", checkout=tmp_path)


def labels(profile: str, count: int) -> list[dict[str, str]]:
    return [node["metadata"]["labels"] for node in kwok.nodes(kwok.profile(profile), count)]


@pytest.mark.parametrize(
    ("name", "gpus", "rack"), [("h100", 8, 4), ("gb200-nvl72", 4, 18), ("gb300-nvl72", 4, 18)]
)
def test_a_profile_has_its_gpus_and_racks(name: str, gpus: int, rack: int) -> None:
    made = kwok.nodes(kwok.profile(name), 2 * rack + 1)
    assert {node["status"]["allocatable"]["nvidia.com/gpu"] for node in made} == {str(gpus)}
    found = [node["metadata"]["labels"]["topology.kubernetes.io/rack"] for node in made]
    assert found == ["rack-000"] * rack + ["rack-001"] * rack + ["rack-002"]


def test_the_eighteen_nodes_of_a_rack_are_one_nvlink_domain() -> None:
    found = [each["nvidia.com/gpu.clique"] for each in labels("gb300-nvl72", 36)]
    assert len(set(found)) == 2
    assert found[:18] == [found[0]] * 18
    assert not any("nvidia.com/gpu.clique" in each for each in labels("h100", 36))


def test_every_profile_makes_nodes_that_no_real_pod_lands_on_and_kwok_manages() -> None:
    assert kwok_profiles() == ["gb200-nvl72", "gb300-nvl72", "h100"]
    for name in kwok_profiles():
        [node] = kwok.nodes(kwok.profile(name), 1)
        assert node["spec"]["taints"] == [
            {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
        ]
        assert node["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"].startswith("NVIDIA-")


def test_a_profile_with_a_wrong_name_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    text = (KWOK / "profiles" / "h100.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("gpus:", "gpu:"), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        kwok.Profile.read(path)
    assert "gpu is unknown, gpus is missing" in caught.value.problems[0].what


def test_only_what_differs_is_made_and_removed() -> None:
    present = kwok.nodes(kwok.profile("h100"), 3)
    more, gone = kwok.changes(kwok.nodes(kwok.profile("h100"), 5), present)
    assert ([node["metadata"]["name"] for node in more], gone) == (["h100-0003", "h100-0004"], [])
    assert kwok.changes(present, present) == ([], [])
    assert kwok.changes(present[:1], present) == ([], ["h100-0001", "h100-0002"])
    assert len(kwok.changes([], present)[1]) == 3
    other = kwok.nodes(kwok.profile("gb300-nvl72"), 1)
    assert kwok.changes(other, present)[1] == ["h100-0000", "h100-0001", "h100-0002"]


def test_a_node_of_another_text_of_its_profile_is_made_anew() -> None:
    [old] = kwok.nodes(kwok.profile("h100"), 1)
    old["metadata"]["annotations"]["kwok.tandem.dev/digest"] = "other"
    made, gone = kwok.changes(kwok.nodes(kwok.profile("h100"), 1), [old])
    assert (len(made), gone) == (1, ["h100-0000"])


def test_kwok_is_a_component_only_where_simulated_nodes_are_wanted(settings: Settings) -> None:
    def names(some: Settings) -> list[str]:
        return [each.name for each in components.full_cluster(some)]

    simulated = settings.with_simulated(30, "h100")
    assert "kwok" not in names(settings)
    assert names(simulated) == [*names(settings), "kwok"]
    # What takes a cluster down knows of it in any case.
    assert [each.name for each in components.possible(settings)] == names(simulated)
    assert components.possible(simulated) == components.full_cluster(simulated)
    assert Layout(settings.state).kwok_config not in config.files(settings)


def test_kwok_listens_on_loopback_and_manages_only_its_nodes(settings: Settings) -> None:
    argv = components.kwok(settings).argv
    assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in argv
    assert any(word.startswith("--server-address=127.0.0.1:") for word in argv)
    assert not any("manage-all" in word for word in argv)


def stages() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(config.kwok_stages()))


def test_a_pod_ends_only_when_it_is_told_to_or_deleted() -> None:
    """A stage that ends pods must ask for our annotation or for a deletion."""
    ending = []
    for stage in stages():
        text = yaml.safe_dump(stage["spec"]["steps"])
        if "Succeeded" in text or "Failed" in text or "delete: true" in text:
            ending.append(stage["metadata"]["name"])
            keys = {
                each["jq"]["key"]
                for each in stage["spec"]["selector"]["matchExpressions"]
                if each["jq"]["operator"] == "Exists"
            }
            assert keys & {
                ".metadata.deletionTimestamp",
                '.metadata.annotations["kwok.tandem.dev/exit-code"]',
            }
    assert sorted(ending) == ["pod-delete", "pod-exit"]
    assert len(stages()) == 5


@pytest.mark.parametrize(
    ("wish", "nodes", "profile"),
    [
        (cluster.Wish(), 30, "gb300-nvl72"),
        (cluster.Wish(kwok_nodes=40), 40, "gb300-nvl72"),
        (cluster.Wish(kwok_profile="h100"), 30, "h100"),
        (cluster.Wish(kwok_nodes=0), 0, "gb300-nvl72"),
    ],
)
def test_what_is_not_asked_for_stays(
    settings: Settings, wish: cluster.Wish, nodes: int, profile: str
) -> None:
    found = wish.over(settings, settings.with_gpus(3).with_simulated(30, "gb300-nvl72"))
    assert (found.gpus, found.kwok_nodes, found.kwok_profile) == (3, nodes, profile)


def test_a_profile_without_nodes_is_refused(settings: Settings) -> None:
    with pytest.raises(UserError) as caught:
        cluster.Wish(kwok_profile="h100").over(settings, settings)
    assert caught.value.code == ExitCode.USAGE
    assert "KWOK_NODES=100 KWOK_PROFILE=h100" in caught.value.problems[0].fix


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kwok-nodes", "many"], "'many' is not a whole number between 0 and 2000"),
        (["--kwok-nodes", "2001"], "'2001' is not a whole number between 0 and 2000"),
        (["--kwok-nodes", "-1"], "write one of them, such as 100"),
        (["--kwok-profile", "a100"], "there is no profile 'a100' of simulated nodes"),
        (["--kwok-profile", "a100"], "choose one of: gb200-nvl72, gb300-nvl72, h100"),
        (["--provider", "existing", "--kwok-nodes", "5"], "PROVIDER=host, or leave out KWOK_NODES"),
    ],
)
def test_wrong_values_are_refused_at_once(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "up", *words],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr


def test_status_tells_of_simulated_nodes_and_of_those_that_lack() -> None:
    sound: dict[str, Any] = {
        "running": True, "supervisor_pid": 2, "node_ready": True, "gpus": 8, "gpus_wanted": 8,
        "dns": True, "rss_mib": 2, "kubeconfig": "k", "components": [], "kwok_profile": "h100",
    }  # fmt: skip
    whole = status.ClusterStatus(**sound, kwok_ready=30, kwok_nodes=30, kwok_wanted=30)
    assert whole.healthy
    assert "simulated   30 of 30 nodes Ready, h100" in status.table(whole)
    some: list[dict[str, Any]] = [
        {"kwok_ready": 29, "kwok_nodes": 30, "kwok_wanted": 30},
        {"kwok_ready": 0, "kwok_nodes": 3, "kwok_wanted": 0},
    ]
    for seen in some:
        lacking = status.ClusterStatus(**sound, **seen)
        assert not lacking.healthy
        assert "simulated nodes are Ready instead of" in lacking.missing(8)[0]
