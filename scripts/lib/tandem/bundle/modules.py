"""Find the folders of the Go modules that the operators are built from, and copy their charts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import ROOT
from tandem.process import run
from tandem.tools.build import go_environment
from tandem.yamls import load_all

_LIST_TIMEOUT_SECONDS = 120
_DOWNLOAD_TIMEOUT_SECONDS = 600


def module_folder(tool: str, module: str) -> Path:
    """Return the folder of one module as `tools/<tool>/go.mod` pins it.

    Raises:
        UserError: The module is in no go.mod, or it cannot be downloaded.
    """
    folder = ROOT / "tools" / tool
    env = go_environment()
    said = run(
        ["go", "-C", folder, "list", "-m", "-f", "{{.Dir}}", module],
        timeout=_LIST_TIMEOUT_SECONDS, env=env, fix="make tools",
    ).strip()  # fmt: skip
    if not said:
        # The build cache may outlive the module cache, or ./bin may have been copied here.
        got = run(
            ["go", "-C", folder, "mod", "download", "-json", module],
            timeout=_DOWNLOAD_TIMEOUT_SECONDS, env=env,
            fix="check that Go modules can be downloaded here (GOPROXY) and that the disk of Go's "
            "module cache has room, then run this again",
        )  # fmt: skip
        said = str(json.loads(got)["Dir"])
    path = Path(said)
    if not path.is_dir():
        raise UserError(Problem(f"the folder of Go module {module} is gone: {path}", "make tools"))
    return path


def copy_chart(
    source: Path, target: Path, version: str, *, tool: str, without: Sequence[str]
) -> None:
    """Copy a module's chart, so that it can be changed and deleted: module folders are read-only.

    Args:
        source: The chart's folder in the module.
        target: Folder that is to be.
        version: What its Chart.yaml has to say, without `v`.
        tool: Folder of tools/ that pins the module.
        without: What is left out beside tests and texts, such as its CRDs.

    Raises:
        UserError: The module's chart is not of that version.
    """
    left_out = shutil.ignore_patterns(*without, "tests", "*.md", "*.gotmpl")
    shutil.copytree(source, target, ignore=left_out, copy_function=shutil.copyfile)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    [chart] = load_all((target / "Chart.yaml").read_text(encoding="utf-8"))
    if chart["version"] != version:
        raise UserError(
            Problem(
                f"{source} holds chart version {chart['version']}, versions.yaml pins {version}",
                f"align tools/{tool}/go.mod and versions.yaml",
            ),
            ExitCode.FAILURE,
        )
