"""Whether the bundle can install KAI: its chart and every image that the chart asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandem.bundle.layout import Layout
from tandem.images.bundle import survey
from tandem.versions import pinned

#: Images keep their upstream names in a bundle: values need no other registry then.
REGISTRY = "ghcr.io/kai-scheduler/kai-scheduler"
#: Source: chart values of KAI 0.17 (`<service>.image.name`).
IMAGES = (
    "admission",
    "binder",
    "crd-upgrader",
    "operator",
    "podgroupcontroller",
    "podgrouper",
    "queuecontroller",
    "resourcereservation",
    "scheduler",
)


@dataclass(frozen=True, slots=True)
class Kai:
    """KAI's part of the bundle."""

    path: Path | None
    chart: str
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether KAI can be installed from this bundle."""
        return self.path is not None and not self.missing

    @property
    def why(self) -> str:
        """One clause for a person: why it can be installed or why not."""
        if self.path is None:
            return "no chart charts/kai-scheduler*"
        if self.missing:
            return f"chart is there, images are missing: {', '.join(self.missing)}"
        return "chart and images are there"


def kai_of(layout: Layout) -> Kai:
    """Return what the bundle holds of KAI."""
    charts = sorted(layout.charts.glob("kai-scheduler*"))
    path = charts[-1] if charts else None
    # A record that cannot be read is none of an image that is there; others tell about it.
    records, _ = survey(layout.root / "images")
    held = {record.image for record in records}
    wanted = [f"{REGISTRY}/{name}:{pinned('kai-scheduler', 'online')}" for name in IMAGES]
    missing = tuple(image for image in wanted if image not in held) if path else ()
    chart = f"{layout.root.name}/charts/{path.name}" if path else ""
    return Kai(path, chart, missing)
