"""Kueue's chart, copied out of the module without its CRDs.

Upstream keeps the CRDs among the templates, where a release would own them and an upgrade could
drop them; here they are a step of their own, like everybody's (tandem.crds).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.bundle.modules import copy_chart
from tandem.process import run
from tandem.yamls import load_all

#: Release and namespace of helmfile.yaml: the CRDs name the Service of their conversion webhook.
RELEASE, NAMESPACE = "kueue", "kueue-system"
_TEMPLATE_TIMEOUT_SECONDS = 60


def crds_of(chart: str | Path, *flags: str) -> list[dict[str, Any]]:
    """Return the CRDs among the templates of Kueue's chart.

    Args:
        chart: Folder or address of the chart.
        flags: More for `helm template`, such as its version.
    """
    said = run(
        ["helm", "template", RELEASE, chart, "--namespace", NAMESPACE, *flags],
        timeout=_TEMPLATE_TIMEOUT_SECONDS,
        fix=f"check that {chart} is there and can be reached from here",
    )
    crds = [obj for obj in load_all(said) if obj["kind"] == "CustomResourceDefinition"]
    for crd in crds:
        # They say that Helm manages them, and of which chart: neither is so.
        crd["metadata"].pop("labels", None)
    return crds


def write_chart(module: Path, target: Path, version: str) -> None:
    """Copy the chart.

    Raises:
        UserError: The module's chart is not of the pinned version.
    """
    source = module / "charts" / "kueue"
    # Neither its CRDs nor a dashboard that nobody asked for.
    copy_chart(source, target, version, tool="kueue", without=["crd", "kueueviz"])
