from __future__ import annotations

from pathlib import Path

import pytest

from tandem.bundle.kai import IMAGES, REGISTRY, kai_of
from tandem.bundle.layout import Layout
from tandem.images.bundle import Record, write
from tandem.versions import pinned

TAG = pinned("kai-scheduler", "online")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / ".bundle")
    layout.charts.mkdir(parents=True)
    return layout


def add_images(layout: Layout, names: tuple[str, ...]) -> None:
    for name in names:
        record = Record(f"kai-{name}", f"{REGISTRY}/{name}:{TAG}", "hash")
        write(record, layout.root / "images")


def test_without_a_chart_there_is_no_kai(layout: Layout) -> None:
    add_images(layout, IMAGES)
    assert not kai_of(layout).complete
    assert "no chart" in kai_of(layout).why


def test_a_chart_without_all_its_images_is_not_enough(layout: Layout) -> None:
    (layout.charts / f"kai-scheduler-{TAG}.tgz").touch()
    add_images(layout, IMAGES[1:])
    kai = kai_of(layout)
    assert not kai.complete
    assert kai.missing == (f"{REGISTRY}/{IMAGES[0]}:{TAG}",)
    assert IMAGES[0] in kai.why


def test_chart_and_images_make_it_complete(layout: Layout) -> None:
    (layout.charts / f"kai-scheduler-{TAG}.tgz").touch()
    add_images(layout, IMAGES)
    kai = kai_of(layout)
    assert kai.complete
    assert kai.chart == f".bundle/charts/kai-scheduler-{TAG}.tgz"
