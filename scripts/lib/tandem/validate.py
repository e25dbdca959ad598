"""Check rendered manifests against strict schemas; a kind without a schema is an error."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ROOT
from tandem.process import tool_env
from tandem.render import RENDERED, render_all
from tandem.schemas.generate import FOLDER, LOCATION, generate

_EPILOG = """\
examples:
  python -m tandem.validate                     render everything, then check it
  python -m tandem.validate FILE-OR-FOLDER …    check these only
  python -m tandem.validate --output json

exit codes: 0 all valid, 1 something is not valid, 2 usage, 3 a precondition is not met
"""
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Result:
    """What kubeconform says of one object."""

    file: str
    kind: str
    name: str
    status: str
    message: str

    @property
    def ok(self) -> bool:
        """Whether the object is valid; no schema and an empty document are not."""
        return self.status == "statusValid"


def check(paths: list[Path], schemas: Path = FOLDER) -> list[Result]:
    """Return one result for each object in the files.

    Args:
        paths: Files of manifests.
        schemas: Folder that `schemas.generate` filled.

    Raises:
        UserError: kubeconform is missing, or there was no object at all to check.
    """
    words = [
        "kubeconform", "-strict", "-output", "json", "-verbose",
        "-schema-location", f"{schemas}/{LOCATION}", *map(str, paths),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, env=tool_env(),
            timeout=_TIMEOUT_SECONDS,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UserError(Problem("kubeconform is missing in ./bin", "make tools")) from error
    try:
        resources: list[dict[str, Any]] = json.loads(done.stdout).get("resources") or []
    except ValueError as error:
        raise UserError(
            Problem(f"kubeconform failed: {done.stderr.strip()}", "make tools"), ExitCode.FAILURE
        ) from error
    if not resources:
        raise UserError(
            Problem(f"nothing to validate in {', '.join(map(str, paths))}", "make render"),
            ExitCode.FAILURE,
        )
    return [Result(r["filename"], r["kind"], r["name"], r["status"], r["msg"]) for r in resources]


def problems_of(results: list[Result]) -> list[Problem]:
    """Return one problem for each object that is not valid."""
    return [
        Problem(
            f"{Path(r.file).relative_to(ROOT) if Path(r.file).is_relative_to(ROOT) else r.file}: "
            f"{r.kind} {r.name}: {r.message or r.status}",
            "correct the manifest; a kind without a schema needs its CRD in the bundle",
        )
        for r in results
        if not r.ok
    ]


def main() -> int:
    """Run the command line."""
    parser = Parser(
        "tandem.validate",
        "Check manifests against strict schemas of Kubernetes and the pinned CRDs.",
        _EPILOG,
    )
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders of manifests")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    with console.phase("schemas") as phase:
        count, fresh = generate()
        phase.detail = f"{count} kinds{'' if fresh else ', current'}"
    if not args.paths:
        with console.phase("render"):
            render_all(RENDERED)
    results = check(args.paths or [RENDERED])
    problems = problems_of(results)
    if args.output == "json":
        bad = [{"file": r.file, "kind": r.kind, "name": r.name, "message": r.message or r.status}
               for r in results if not r.ok]  # fmt: skip
        print(json.dumps({"checked": len(results), "invalid": bad}, indent=2))
    if problems:
        raise UserError(problems, ExitCode.FAILURE)
    console.ok(f"validate: {len(results)} objects are valid")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
