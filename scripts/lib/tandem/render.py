"""Render what would be applied: every variant, and the platform of every environment.

Variants by `kubectl kustomize`. The platform by `helmfile template`: our own chart in
every environment, and those operators whose chart of the pinned version is in the bundle,
with the environment's own values. Charts that only upstream's repositories have are named
as not rendered; nothing is fetched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tandem.bundle.layout import Layout
from tandem.cli import Parser
from tandem.console import console
from tandem.crds import LOCAL_ENVIRONMENTS, releases_of
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import BUILD, ROOT
from tandem.process import run
from tandem.yamls import dump_all, load_all

Object = dict[str, Any]

KUSTOMIZE = ROOT / "kustomize"
OVERLAYS = KUSTOMIZE / "overlays"
RENDERED = BUILD / "rendered"
ENVIRONMENTS = ("default", "kueue", "kind", "nvkind", "prod")
OUR_CHART = "rl-platform"
#: Releases that the bundle has a chart for, with the key of their chart in the values.
BUNDLED = {"jobset": "jobset", "kuberay-operator": "kuberayOperator", "kueue": "kueue"}
_TIMEOUT_SECONDS = 120
_LANES = 2

_EPILOG = """\
examples:
  python -m tandem.render                       everything, into build/rendered
  python -m tandem.render --variant monolithic-rayjob    one variant, to stdout
  python -m tandem.render --output json         what was rendered and what was not

exit codes: 0 ok, 1 something does not render, 2 usage (unknown variant), 3 the bundle is missing
"""


@dataclass(frozen=True, slots=True)
class Platform:
    """The rendered releases of one environment, and those that could not be."""

    environment: str
    releases: dict[str, list[Object]]
    not_rendered: tuple[str, ...]


def variants() -> list[str]:
    """Return the names of the variants (folders below kustomize/overlays)."""
    return sorted(path.parent.name for path in OVERLAYS.glob("*/kustomization.yaml"))


def require_variant(name: str) -> None:
    """Refuse a name that is no variant, listing those that are.

    Raises:
        UserError: There is no such variant.
    """
    if name not in variants():
        raise UserError(
            Problem(f"unknown variant: {name}", f"use one of: {', '.join(variants())}"),
            ExitCode.USAGE,
        )


def kustomize(folder: Path) -> list[Object]:
    """Return the objects of a kustomization.

    Raises:
        UserError: It does not build.
    """
    said = run(["kubectl", "kustomize", folder], timeout=_TIMEOUT_SECONDS)
    return load_all(said)


def render_variant(name: str) -> list[Object]:
    """Return the objects of a variant."""
    require_variant(name)
    return kustomize(OVERLAYS / name)


def split_releases(text: str, charts: Iterable[str]) -> dict[str, list[Object]]:
    """Return the objects of a `helmfile template` by chart, told by Helm's source comments.

    Raises:
        UserError: An object is of none of the charts.
    """
    found: dict[str, list[Object]] = {chart: [] for chart in charts}
    for part in text.split("\n---\n"):
        source = next((ln for ln in part.splitlines() if ln.startswith("# Source: ")), "")
        objects = load_all(part.removeprefix("---\n"))
        if not objects:
            continue
        chart = source.removeprefix("# Source: ").partition("/")[0]
        if chart not in found:
            raise UserError(
                Problem(f"an object comes from no known chart: {source or part[:80]}",
                        "see scripts/lib/tandem/render.py, BUNDLED"),
                ExitCode.FAILURE,
            )  # fmt: skip
        found[chart] += objects
    return found


def render_platform(
    environment: str, only: Iterable[str] | None = None, *, bundled_kai: bool = True
) -> Platform:
    """Return the releases of an environment that can be rendered here.

    Args:
        environment: One of helmfile.yaml.
        only: Names of releases; all that can be rendered by default.
        bundled_kai: Render the local environment with KAI when the bundle holds it; goldens
            do not, since they must not depend on what somebody put into the bundle.
    """
    wanted = {rel["name"] for rel in releases_of(environment)}
    leave_kai_out = environment == "default" and not bundled_kai
    if leave_kai_out:
        wanted.discard("kai-scheduler")
    possible = (wanted & set(BUNDLED)) | {OUR_CHART}
    if environment in LOCAL_ENVIRONMENTS:
        possible = wanted  # its charts are the bundle's
    chosen = sorted(possible & set(only) if only is not None else possible)
    charts = Layout().charts
    places = [
        f"charts.{BUNDLED[name]}.chart={charts / name},charts.{BUNDLED[name]}.version="
        for name in chosen
        if name in BUNDLED and environment not in LOCAL_ENVIRONMENTS
    ]
    if leave_kai_out:
        places.append("kaiScheduler.enabled=false")
    said = run(
        [
            "helmfile", "--quiet", "--environment", environment,
            *[word for place in places for word in ("--state-values-set", place)],
            *[word for name in chosen for word in ("--selector", f"name={name}")],
            "template", "--skip-needs",
        ],
        timeout=_TIMEOUT_SECONDS, cwd=ROOT, fix="make bundle",
    )  # fmt: skip
    return Platform(
        environment=environment,
        releases=split_releases(said, chosen),
        not_rendered=tuple(sorted(wanted - possible)),
    )


def write(objects: Iterable[Object], path: Path) -> None:
    """Write objects as one YAML file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_all(objects), encoding="utf-8")


def render_all(folder: Path, *, bundled_kai: bool = True) -> list[Platform]:
    """Render everything below a folder, emptied first, and return the platforms."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in variants():
        write(render_variant(name), folder / "overlays" / f"{name}.yaml")
    with ThreadPoolExecutor(_LANES) as pool:
        platforms = list(pool.map(partial(render_platform, bundled_kai=bundled_kai), ENVIRONMENTS))
    for platform in platforms:
        for name, objects in platform.releases.items():
            write(objects, folder / "environments" / platform.environment / f"{name}.yaml")
    return platforms


def _parser() -> Parser:
    parser = Parser("tandem.render", "Write everything that would be applied.", _EPILOG)
    parser.add_argument("--variant", help="print this variant only")
    parser.add_argument("--folder", type=Path, default=RENDERED, help="default: build/rendered")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def main() -> int:
    """Run the command line."""
    args = _parser().parse_args()
    if args.variant:
        print(dump_all(render_variant(args.variant)), end="")
        return ExitCode.OK
    with console.phase("render") as phase:
        platforms = render_all(args.folder)
        phase.detail = f"{len(variants())} variants, {len(platforms)} environments"
    if args.output == "json":
        summary = {
            "folder": str(args.folder),
            "variants": variants(),
            "environments": {
                p.environment: {"rendered": sorted(p.releases), "not_rendered": p.not_rendered}
                for p in platforms
            },
        }
        print(json.dumps(summary, indent=2))
        return ExitCode.OK
    for platform in platforms:
        if platform.not_rendered:
            console.note(
                f"{platform.environment}: not rendered, only upstream has the charts: "
                f"{', '.join(platform.not_rendered)}"
            )
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
