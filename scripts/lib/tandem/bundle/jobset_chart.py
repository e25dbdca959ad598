"""JobSet's chart, copied out of the module without its CRDs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.bundle.modules import copy_chart
from tandem.yamls import load_all


def crds_of(module: Path) -> list[dict[str, Any]]:
    """Return the CRDs of the module's chart."""
    folder = module / "charts" / "jobset" / "crds"
    return [
        doc
        for path in sorted(folder.glob("*.yaml"))
        for doc in load_all(path.read_text(encoding="utf-8"))
    ]


def write_chart(module: Path, target: Path, version: str) -> None:
    """Copy the chart.

    Raises:
        UserError: The module's chart is not of the pinned version.
    """
    # CRDs are a step of their own.
    source = module / "charts" / "jobset"
    copy_chart(source, target, version, tool="kube", without=["crds"])
