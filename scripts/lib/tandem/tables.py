"""Tables of READMEs, printed from what they tell of.

Those of the sidecars come from the settings that the programs read; a README says where each
goes: between `<!-- environment of ClassName -->` and `<!-- end -->`. That of the gangs, in
kustomize/README.md between `<!-- gangs -->` and `<!-- end -->`, comes from the variants as they
render and the model of KAI's grouping. That of the pool's behaviours, in
sidecars/vllm-pool/CONFORMANCE.md between `<!-- behaviours -->` and `<!-- end -->`, comes from the
tests that hold them.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.explain.inputs import read_facts
from tandem.explain.report import report_of
from tandem.explain.table import gang_table
from tandem.paths import ROOT
from tandem.process import run
from tandem.render import KUSTOMIZE, render_variant, variants
from tandem_common.settings import Settings, environment_table

FOLDER = ROOT / "sidecars"
_TABLE = re.compile(r"(?s)(<!-- environment of (?P<name>\w+) -->\n)(?P<table>.*?)(<!-- end -->)")
_LANES = 2
_EPILOG = """\
examples:
  python -m tandem.tables verify     fail on any table that is not as what it tells of
  python -m tandem.tables update     write them

exit codes: 0 ok, 1 a table differs, 2 usage, 3 a precondition is not met
"""


def settings_of(readme: Path) -> dict[str, type[Settings]]:
    """Return the settings classes of the package that a README stands beside, by name."""
    found: dict[str, type[Settings]] = {}
    sources = readme.parent / "src"
    for module in sorted(sources.glob("*/**/settings.py")):
        loaded = importlib.import_module(
            ".".join(module.relative_to(sources).with_suffix("").parts)
        )
        found |= {
            name: each
            for name, each in vars(loaded).items()
            # A base without a field has nothing to tell.
            if isinstance(each, type) and issubclass(each, Settings) and each.model_fields
        }
    return found


def filled(text: str, known: dict[str, type[Settings]]) -> str:
    """Return a README with its tables as the settings are.

    Raises:
        KeyError: A table is of a class that the package does not have.
    """

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}{environment_table(known[match['name']])}{match[4]}"

    return _TABLE.sub(table, text)


def readmes(folder: Path = FOLDER) -> Iterator[tuple[Path, str, str]]:
    """Yield each README that has tables, its text, and the text that it should have."""
    for path in sorted(folder.glob("*/README.md")):
        text = path.read_text(encoding="utf-8")
        if _TABLE.search(text):
            yield path, text, filled(text, settings_of(path))


def gangs() -> str:
    """Return the table of what forms one gang, a row a variant."""
    facts = read_facts()
    names = variants()
    with ThreadPoolExecutor(_LANES) as pool:
        rendered = list(pool.map(render_variant, names))
    return gang_table(
        report_of(name, objects, facts) for name, objects in zip(names, rendered, strict=True)
    )


def behaviours() -> str:
    """Return the table of what the pool's conformance suite holds, a row a behaviour.

    Raises:
        UserError: A test's behaviour is of no run that there is.
    """
    paths = [str(ROOT / "tests"), *sys.path]
    argv = [sys.executable, "-m", "support.pool_behaviours"]
    return run(argv, timeout=60, env={"PYTHONPATH": os.pathsep.join(paths)})


def placed(text: str, name: str, table: str) -> str:
    """Return a README with a table in the place of its name.

    Raises:
        ValueError: It has no such place, or several.
    """
    place = re.compile(rf"(?s)(<!-- {name} -->\n)(?P<table>.*?)(<!-- end -->)")
    filled, places = place.subn(lambda match: f"{match[1]}{table}{match[3]}", text)
    if places != 1:
        raise ValueError(f"{places} places for the table of {name}")
    return filled


def every_readme() -> Iterator[tuple[Path, str, str]]:
    """Yield as `readmes` does, those with the gangs and the behaviours too."""
    yield from readmes()
    for path, name, table in (
        (KUSTOMIZE / "README.md", "gangs", gangs),
        (FOLDER / "vllm-pool" / "CONFORMANCE.md", "behaviours", behaviours),
    ):
        text = path.read_text(encoding="utf-8")
        yield path, text, placed(text, name, table())


def differences() -> list[Problem]:
    """Return one problem for each README whose tables have drifted."""
    return [
        Problem(f"{path.relative_to(ROOT)}: a table is not as what it tells of", "make update")
        for path, is_now, should_be in every_readme()
        if is_now != should_be
    ]


def update() -> int:
    """Write the tables; return how many files changed."""
    changed = [(path, wanted) for path, is_now, wanted in every_readme() if is_now != wanted]
    for path, wanted in changed:
        path.write_text(wanted, encoding="utf-8")
    return len(changed)


def main() -> int:
    """Run the command line."""
    parser = Parser("tandem.tables", "Tables of READMEs.", _EPILOG)
    parser.add_argument("command", choices=("verify", "update"))
    if parser.parse_args().command == "update":
        console.ok(f"tables: {update()} files changed")
        return ExitCode.OK
    problems = differences()
    if problems:
        raise UserError(problems, ExitCode.FAILURE)
    console.ok("tables: as what they tell of")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
