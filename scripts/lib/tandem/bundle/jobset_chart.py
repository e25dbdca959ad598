"""JobSet's chart, copied out of the module without its CRDs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tandem.errors import ExitCode, Problem, UserError
from tandem.yamls import load_all

#: Left out: CRDs (a step of their own), tests and texts.
_LEFT_OUT = shutil.ignore_patterns("crds", "tests", "*.md", "*.gotmpl")


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
    source = module / "charts" / "jobset"
    shutil.copytree(source, target, ignore=_LEFT_OUT, copy_function=shutil.copyfile)
    # Module folders are read-only; the copy must be deletable.
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    [chart] = load_all((target / "Chart.yaml").read_text(encoding="utf-8"))
    found = chart["version"]
    if found != version:
        raise UserError(
            Problem(
                f"{source} holds chart version {found}, versions.yaml pins {version}",
                "align tools/kube/go.mod and versions.yaml",
            ),
            ExitCode.FAILURE,
        )
