from __future__ import annotations

from pathlib import Path

import pytest

from tandem.bundle.layout import Layout, Manifest, checksums, problems_of, read_manifest
from tandem.errors import UserError


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / ".bundle")
    for name in ("charts/one/Chart.yaml", "charts/two.tgz", "manifests/crds/a.yaml"):
        path = layout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    layout.environment.write_text("{}")
    Manifest("key", checksums(layout)).write(layout)
    return layout


def test_a_bundle_as_recorded_has_no_problems(layout: Layout) -> None:
    assert len(read_manifest(layout).files) == 3
    assert problems_of(layout) == []


def test_a_corrupt_a_missing_and_a_stray_file_are_named_together(layout: Layout) -> None:
    (layout.charts / "two.tgz").write_text("cut short")
    (layout.crds / "a.yaml").unlink()
    (layout.crds / "b.yaml").write_text("new")
    layout.environment.unlink()
    found = problems_of(layout)
    assert [problem.what.split(" is ")[-1].split(":")[0] for problem in found] == [
        "corrupt", "missing", "in no record", "missing",
    ]  # fmt: skip
    assert {problem.fix for problem in found} == {"make bundle"}
    for name in ("two.tgz", "a.yaml", "b.yaml", "environment.yaml"):
        assert any(name in problem.what for problem in found)


@pytest.mark.parametrize("text", [None, "", "{}", '{"key": 1, "files": []}', "not json"])
def test_a_manifest_that_cannot_be_read_is_one_clear_error(
    layout: Layout, text: str | None
) -> None:
    if text is None:
        layout.manifest.unlink()
    else:
        layout.manifest.write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json") as caught:
        problems_of(layout)
    assert caught.value.code == 3
    assert caught.value.problems[0].fix == "make bundle"
