"""`make verify`: everything that is generated or pinned agrees with what it comes from."""

from __future__ import annotations

from tandem import golden, requirements, tables
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ROOT
from tandem.verify.versions import RULES, disagreements, uncovered
from tandem.versions import all_pinned

_EPILOG = """\
examples:
  python -m tandem.verify              versions, locks, tables of READMEs, goldens
  python -m tandem.verify versions     only these: no tools and no network needed
  python -m tandem.verify versions requirements

exit codes: 0 ok, 1 something has drifted, 2 usage, 3 a precondition is not met
"""


def _versions() -> list[Problem]:
    return disagreements(RULES, ROOT, all_pinned) + uncovered(RULES, ROOT)


def _requirements() -> list[Problem]:
    return requirements.problems_of(requirements.FOLDER)


def _goldens() -> list[Problem]:
    return golden.differences(golden.current(), golden.kept(golden.FOLDER))


def _tables() -> list[Problem]:
    return tables.differences()


CHECKS = {
    "versions": _versions,
    "requirements": _requirements,
    "tables": _tables,
    "goldens": _goldens,
}


def main() -> int:
    """Run the checks; what all of them found is said together."""
    parser = Parser(
        "tandem.verify", "Compare what is generated or pinned with what it comes from.", _EPILOG
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of: {', '.join(CHECKS)}")
    wanted = parser.parse_args().checks
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
    drifted: list[Problem] = []
    hindered: list[Problem] = []
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        try:
            found = check()
        except UserError as error:  # A tool is missing: the other checks do without it.
            hindered += error.problems
            continue
        drifted += found
        if not found:
            console.ok(f"verify: {name}")
    if drifted or hindered:
        raise UserError(drifted + hindered, ExitCode.FAILURE if drifted else ExitCode.PRECONDITION)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
