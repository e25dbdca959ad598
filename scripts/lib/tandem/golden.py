"""Goldens: our own manifests as they render, in git, so that a review sees what changes.

Only ours: variants, and the chart rl-platform in each environment. Manifests of upstream
charts are theirs, and are not kept here.
"""

from __future__ import annotations

import difflib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ROOT
from tandem.render import ENVIRONMENTS, OUR_CHART, render_platform, render_variant, variants
from tandem.yamls import dump_all

FOLDER = ROOT / "tests" / "golden"
_ACCEPT = "look at the difference; if it is meant: make update, and commit tests/golden"
_DIFF_LINES = 40
_LANES = 2
_EPILOG = """\
examples:
  python -m tandem.golden verify     fail on any difference
  python -m tandem.golden update     accept what renders now

exit codes: 0 ok, 1 something differs, 2 usage, 3 a precondition is not met
"""


def current() -> dict[str, str]:
    """Return what renders now, by path below tests/golden."""
    found = {f"overlays/{name}.yaml": dump_all(render_variant(name)) for name in variants()}
    with ThreadPoolExecutor(_LANES) as pool:
        ours = partial(render_platform, only=[OUR_CHART], bundled_kai=False)
        platforms = pool.map(ours, ENVIRONMENTS)
        for platform in platforms:
            name = f"{OUR_CHART}/{platform.environment}.yaml"
            found[name] = dump_all(platform.releases[OUR_CHART])
    return found


def kept(folder: Path) -> dict[str, str]:
    """Return the goldens in git, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.yaml"))
    }


def differences(now: dict[str, str], before: dict[str, str]) -> list[Problem]:
    """Return one problem for each golden that is missing, left over, or different."""
    problems = []
    for name in sorted(now.keys() | before.keys()):
        if name not in before:
            problems.append(Problem(f"tests/golden/{name} is missing", _ACCEPT))
        elif name not in now:
            problems.append(Problem(f"tests/golden/{name}: nothing renders it any more", _ACCEPT))
        elif now[name] != before[name]:
            lines = difflib.unified_diff(
                before[name].splitlines(), now[name].splitlines(),
                f"tests/golden/{name}", "as it renders now", lineterm="",
            )  # fmt: skip
            shown = "\n".join(list(lines)[:_DIFF_LINES])
            problems.append(Problem(f"tests/golden/{name} differs:\n{shown}", _ACCEPT))
    return problems


def update(folder: Path) -> int:
    """Write what renders now; return how many files changed."""
    now, before = current(), kept(folder)
    for name in before.keys() - now.keys():
        (folder / name).unlink()
    for name, text in now.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return len(differences(now, before))


def main() -> int:
    """Run the command line."""
    parser = Parser("tandem.golden", "Compare what renders with what git holds.", _EPILOG)
    parser.add_argument("command", choices=("verify", "update"))
    if parser.parse_args().command == "update":
        console.ok(f"goldens: {update(FOLDER)} changed")
        return ExitCode.OK
    problems = differences(current(), kept(FOLDER))
    if problems:
        raise UserError(problems, ExitCode.FAILURE)
    console.ok(f"goldens: {len(kept(FOLDER))} as rendered")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
