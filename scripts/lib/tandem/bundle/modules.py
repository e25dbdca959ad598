"""Find the folders of the Go modules that the operators are built from."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.errors import Problem, UserError
from tandem.paths import ROOT
from tandem.process import run
from tandem.tools.build import go_environment

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
