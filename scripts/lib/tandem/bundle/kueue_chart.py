"""Kueue's chart, copied out of the module without its CRDs.

Upstream keeps the CRDs among the templates, where a release would own them and an upgrade could
drop them; here they are a step of their own, like everybody's (tandem.crds).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tandem.errors import ExitCode, Problem, UserError
from tandem.process import run
from tandem.yamls import load_all

#: Release and namespace of helmfile.yaml: the CRDs name the Service of their conversion webhook.
RELEASE, NAMESPACE = "kueue", "kueue-system"
_TEMPLATE_TIMEOUT_SECONDS = 60
#: Left out: CRDs, a dashboard that nobody asked for, tests and texts.
_LEFT_OUT = shutil.ignore_patterns("crd", "kueueviz", "tests", "*.md", "*.gotmpl")


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
    shutil.copytree(source, target, ignore=_LEFT_OUT, copy_function=shutil.copyfile)
    # Module folders are read-only; the copy must be deletable.
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    [chart] = load_all((target / "Chart.yaml").read_text(encoding="utf-8"))
    if chart["version"] != version:
        raise UserError(
            Problem(
                f"{source} holds chart version {chart['version']}, versions.yaml pins {version}",
                "align tools/kueue/go.mod and versions.yaml",
            ),
            ExitCode.FAILURE,
        )
