from __future__ import annotations

from pathlib import Path

import pytest

from tandem import crds
from tandem.bundle.layout import Layout, Manifest, checksums
from tandem.crds import Installed, foreign_nodes, outdated, record_of


@pytest.fixture
def crd(tmp_path: Path) -> Path:
    path = tmp_path / "things.example.test.yaml"
    path.write_text("kind: CustomResourceDefinition\n")
    return path


def test_a_crd_that_the_cluster_does_not_have_is_applied(crd: Path) -> None:
    assert outdated([crd], {}) == [crd]


def test_one_with_our_record_of_this_file_and_generation_is_current(crd: Path) -> None:
    assert outdated([crd], {crd.stem: Installed(3, record_of(crd, 3), established=True)}) == []


def test_one_changed_since_by_somebody_else_is_applied_again(crd: Path) -> None:
    found = Installed(4, record_of(crd, 3), established=True)
    assert outdated([crd], {crd.stem: found}) == [crd]


def test_one_that_is_not_served_yet_is_applied_again(crd: Path) -> None:
    found = Installed(3, record_of(crd, 3), established=False)
    assert outdated([crd], {crd.stem: found}) == [crd]


def test_a_changed_file_is_applied_again(crd: Path) -> None:
    found = Installed(1, record_of(crd, 1), established=True)
    crd.write_text("kind: CustomResourceDefinition # newer\n")
    assert outdated([crd], {crd.stem: found}) == [crd]


def test_one_installed_by_helm_has_no_record_and_becomes_ours(crd: Path) -> None:
    assert outdated([crd], {crd.stem: Installed(1, "", established=True)}) == [crd]


def node(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


def test_kueues_crds_are_only_where_kueue_answers_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    layout.crds.mkdir(parents=True)
    for name in ("rayjobs.ray.io", "workloads.kueue.x-k8s.io"):
        (layout.crds / f"{name}.yaml").write_text("{}")
    layout.environment.write_text("{}")
    Manifest("key", checksums(layout)).write(layout)
    monkeypatch.setattr(crds, "Layout", lambda: layout)
    found = {name: [path.stem for path in crds.sources(name)] for name in crds.LOCAL_ENVIRONMENTS}
    assert found == {
        "default": ["rayjobs.ray.io"],
        "kueue": ["rayjobs.ray.io", "workloads.kueue.x-k8s.io"],
    }


def test_a_cluster_of_others_is_told_by_its_nodes() -> None:
    assert foreign_nodes([node("b"), node("a")]) == ["a", "b"]


def test_one_local_node_makes_the_cluster_ours() -> None:
    local = {"metadata": {"name": "local", "labels": {"tandem.dev/local": "true"}}}
    assert foreign_nodes([node("a"), local]) == []


def test_an_api_server_without_nodes_is_nobodys() -> None:
    assert foreign_nodes([]) == []
