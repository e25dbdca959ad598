"""Fill the bundle: charts and CRDs out of Go modules, then the record of all of it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.bundle import jobset_chart, kuberay_chart, kueue_chart
from tandem.bundle.kai import kai_of
from tandem.bundle.layout import Layout, Manifest, checksums, problems_of, read_manifest
from tandem.bundle.modules import module_folder
from tandem.errors import UserError, require_space
from tandem.process import run
from tandem.versions import pinned
from tandem.yamls import dump, load_all

JOBSET_MODULE = ("kube", "sigs.k8s.io/jobset")
KUBERAY_MODULE = ("kuberay", "github.com/ray-project/kuberay/ray-operator")
KUEUE_MODULE = ("kueue", "sigs.k8s.io/kueue")
#: Charts that this program writes; anything else in charts/ is left alone.
OUR_CHARTS = ("jobset", "kuberay-operator", "kueue")
_SHOW_TIMEOUT_SECONDS = 60
#: Some ten times what charts and CRDs take, old and new ones side by side.
ROOM_GIB = 0.1


@dataclass(frozen=True, slots=True)
class Filled:
    """What `fill` found or did."""

    fresh: bool
    charts: list[str]
    crds: int
    kai: bool


def _key() -> str:
    """Return a hash of what the bundle is made from: versions and this package."""
    digest = hashlib.sha256()
    for name in ("jobset", "kuberay", "kueue", "kubectl"):
        digest.update(f"{name}={pinned(name)}\n".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _environment(layout: Layout) -> str:
    """Return the values that tell helmfile's default environment what the bundle has."""
    kai = kai_of(layout)
    values: dict[str, Any] = {"kaiScheduler": {"enabled": kai.complete}}
    if kai.complete:
        values["charts"] = {"kaiScheduler": {"chart": kai.chart}}
    header = f"# Written by `python -m tandem.bundle fill`. KAI: {kai.why}.\n"
    return header + dump(values)


def _write_crds(crds: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for crd in crds:
        (folder / f"{crd['metadata']['name']}.yaml").write_text(dump(crd), encoding="utf-8")


def _replace(new: Path, old: Path) -> None:
    old.parent.mkdir(parents=True, exist_ok=True)
    if old.exists():
        shutil.rmtree(old)
    new.rename(old)


def _fill(layout: Layout) -> None:
    """Make everything beside the old, then put it in its place piece by piece."""
    draft = layout.root / ".new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        kuberay = kuberay_chart.render(module_folder(*KUBERAY_MODULE))
        jobset = module_folder(*JOBSET_MODULE)
        kueue = module_folder(*KUEUE_MODULE)
        crds = kuberay_chart.crds_of(kuberay) + jobset_chart.crds_of(jobset)
        crds += kueue_chart.crds_of(kueue / "charts" / "kueue")
        kai = kai_of(layout)
        if kai.complete and kai.path is not None:
            shown = run(["helm", "show", "crds", kai.path], timeout=_SHOW_TIMEOUT_SECONDS)
            crds += load_all(shown)
        _write_crds(crds, draft / "crds")
        jobset_version = pinned("jobset").removeprefix("v")
        jobset_chart.write_chart(jobset, draft / "jobset", jobset_version)
        kueue_chart.write_chart(kueue, draft / "kueue", pinned("kueue").removeprefix("v"))
        kuberay_chart.write_chart(kuberay, draft / "kuberay-operator", pinned("kuberay"))
        for name in OUR_CHARTS:
            _replace(draft / name, layout.charts / name)
        _replace(draft / "crds", layout.crds)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_current(layout: Layout, key: str) -> bool:
    try:
        return read_manifest(layout).key == key and not problems_of(layout)
    except UserError:
        return False  # missing or unreadable: filled anew below


def fill(layout: Layout, *, force: bool = False) -> Filled:
    """Bring the bundle's charts and CRDs up to date.

    Args:
        layout: The bundle.
        force: Make everything again even when nothing has changed.

    Raises:
        UserError: A Go module or a tool is missing, or the disk is full.
    """
    key = _key()
    environment = _environment(layout)
    fresh = force or not _is_current(layout, key)
    if not fresh:
        fresh = layout.environment.read_text(encoding="utf-8") != environment
    if fresh:
        require_space(layout.root, ROOM_GIB, "the bundle")
        # Gone while pieces change: an interrupted fill must not look complete.
        layout.manifest.unlink(missing_ok=True)
        _fill(layout)
        layout.environment.write_text(environment, encoding="utf-8")
        Manifest(key, checksums(layout)).write(layout)
    return Filled(
        fresh=fresh,
        charts=sorted(path.name for path in layout.charts.iterdir()),
        crds=len(list(layout.crds.glob("*.yaml"))),
        kai=kai_of(layout).complete,
    )
