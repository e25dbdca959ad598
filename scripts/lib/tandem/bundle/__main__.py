"""Command line of `make bundle`."""

from __future__ import annotations

import json
import time

from tandem.bundle.fill import fill
from tandem.bundle.kai import kai_of
from tandem.bundle.layout import Layout, problems_of
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.images import bundle as image_records

_EPILOG = """\
examples:
  python -m tandem.bundle fill             charts and CRDs from the Go modules; quick when current
  python -m tandem.bundle fill --force     make them again
  python -m tandem.bundle verify           every file against its checksum
  python -m tandem.bundle list --output json

exit codes: 0 ok, 1 failure, 2 usage, 3 something is missing or corrupt
"""


def _parser() -> Parser:
    parser = Parser(
        "tandem.bundle", "Charts, CRDs and images for a cluster without registries.", _EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True)
    filler = commands.add_parser("fill", help="bring charts and CRDs up to date")
    filler.add_argument("--force", action="store_true", help="make them again")
    commands.add_parser("verify", help="check every file, images too")
    lister = commands.add_parser("list", help="what the bundle holds")
    lister.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _fill(layout: Layout, *, force: bool) -> int:
    started = time.monotonic()
    filled = fill(layout, force=force)
    done = "filled" if filled.fresh else "current"
    kai = "with KAI" if filled.kai else f"without KAI ({kai_of(layout).why})"
    seconds = time.monotonic() - started
    # Charts and CRDs do without it; whoever needs the images refuses.
    for problem in image_records.survey(layout.root / "images")[1]:
        console.warn(f"{problem.what}; fix: {problem.fix}")
    console.ok(
        f"bundle: {done}: {', '.join(filled.charts)}; {filled.crds} CRDs; {kai} ({seconds:.1f} s)"
    )
    return ExitCode.OK


def verify(layout: Layout) -> None:
    """Check every file of the bundle.

    Raises:
        UserError: Something is missing or corrupt; everything found is named.
    """
    problems: list[Problem] = []
    try:
        problems += problems_of(layout)
    except UserError as error:
        problems += error.problems
    folder = layout.root / "images"
    records, unreadable = image_records.survey(folder)
    problems += unreadable
    files = (image_records.problem_of_file(record, folder) for record in records)
    problems += [problem for problem in files if problem]
    if problems:
        raise UserError(problems)


def list_held(layout: Layout, output: str) -> int:
    """Print what the bundle holds.

    Raises:
        UserError: Some record of an image is unreadable; all that is sound is printed first.
    """
    kai = kai_of(layout)
    charts = sorted(path.name for path in layout.charts.glob("*"))
    crds = sorted(path.stem for path in layout.crds.glob("*.yaml"))
    records, unreadable = image_records.survey(layout.root / "images")
    images = [record.image for record in records]
    if output == "json":
        held = {"charts": charts, "crds": crds, "images": images, "kai": kai.complete}
        print(json.dumps(held, indent=2))
    else:
        for title, names in (("charts", charts), ("crds", crds), ("images", images)):
            for name in names or ["(none)"]:
                print(f"{title:<8}{name}")
        print(f"{'kai':<8}{kai.why}")
    if unreadable:
        raise UserError(unreadable)
    return ExitCode.OK


def main() -> int:
    """Run the command line."""
    args = _parser().parse_args()
    layout = Layout()
    if args.command == "fill":
        return _fill(layout, force=args.force)
    if args.command == "list":
        return list_held(layout, args.output)
    verify(layout)
    console.ok("bundle: every file is as recorded")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
