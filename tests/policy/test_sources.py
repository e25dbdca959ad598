"""Rules of the tree itself: how manifests are laid out, and what may be named where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandem.paths import ROOT
from tandem.yamls import load_all

KUSTOMIZE = ROOT / "kustomize"
MANIFESTS = sorted(KUSTOMIZE.rglob("*.yaml"))
OVERLAYS = sorted((KUSTOMIZE / "overlays").glob("*/kustomization.yaml"))
COMPONENTS = sorted(
    path
    for path in (KUSTOMIZE / "components").rglob("kustomization.yaml")
    if load_all(path.read_text())[0]["kind"] == "Component"
)
#: Components that no variant of ours lists, or only as a part of another one;
#: tests/render/test_run_components.py, test_claims.py and test_gang.py have them.
OFFERED = {
    "components/dra-computedomain",
    "components/endpoint-registry/rayjob",
    "components/gang-kai/rayclusters/follow",
    "components/gang-kai/watcher",
    "components/kwok",
    "components/name-references",
    "components/peer-watcher/rayjob",
    "components/rdma-roce",
    "components/scheduler-kueue",
    "components/scheduler-kueue/rayclusters",
    "components/topology-gb300",
    "components/topology-rack",
}
IMAGES = KUSTOMIZE / "components" / "images"
#: A patch longer than this is a base or a component in disguise.
PATCH_LINES = 60


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_there_is_something_to_look_at() -> None:
    assert len(OVERLAYS) >= 2
    assert len(COMPONENTS) >= 5


@pytest.mark.parametrize("path", MANIFESTS, ids=names(MANIFESTS))
def test_one_object_a_file_and_the_file_is_named_by_its_kind(path: Path) -> None:
    documents = load_all(path.read_text())
    assert len(documents) == 1
    kind = documents[0]["kind"].lower()
    if path.name == "kustomization.yaml":
        assert kind in ("kustomization", "component")
    elif path.name.endswith(".patch.yaml"):
        assert path.name.startswith(f"{kind}-")
        assert len(path.read_text().splitlines()) <= PATCH_LINES
    else:
        assert path.stem == kind


@pytest.mark.parametrize("path", OVERLAYS, ids=names(OVERLAYS))
def test_an_overlay_is_a_base_components_and_at_most_two_patches(path: Path) -> None:
    [overlay] = load_all(path.read_text())
    assert len(overlay.get("patches", [])) <= 2
    known = {"apiVersion", "kind", "namespace", "resources", "labels", "components", "patches"}
    # Only the outermost kustomization says in which order objects come.
    assert set(overlay) <= known | {"sortOptions"}
    assert any("/base/" in resource for resource in overlay["resources"])
    assert "../../components/crd-schema" in overlay["components"]


@pytest.mark.parametrize("path", COMPONENTS, ids=names(COMPONENTS))
def test_a_component_says_why_it_is_there_and_is_used(path: Path) -> None:
    assert path.read_text().startswith("# ")
    wanted = f"components/{path.parent.relative_to(KUSTOMIZE / 'components').as_posix()}"
    used = any(wanted in overlay.read_text() for overlay in OVERLAYS)
    assert used != (wanted in OFFERED)


def test_images_are_named_in_the_images_component_and_nowhere_else() -> None:
    elsewhere = [path for path in MANIFESTS if not path.is_relative_to(IMAGES)]
    assert len(elsewhere) >= 5
    for path in elsewhere:
        for image in re.findall(r"(?m)^\s*(?:- )?image:\s*(\S+)", path.read_text()):
            assert "/" not in image, f"{path}: {image}"
            assert ":" not in image, f"{path}: {image}"
        assert "newName" not in path.read_text()


def test_every_variant_has_its_row_in_the_readme() -> None:
    readme = (KUSTOMIZE / "README.md").read_text()
    for path in [*OVERLAYS, *COMPONENTS]:
        name = path.parent.relative_to(KUSTOMIZE).as_posix().split("/", 1)[1]
        assert f"`{name}`" in readme, f"{name} is missing in kustomize/README.md"
