"""Command line of `make tools` and `make tools-check`."""

from __future__ import annotations

import json
import time

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.tools.build import make_tools
from tandem.tools.check import check

_EPILOG = """\
examples:
  python -m tandem.tools make              bring ./bin to the pinned versions
  python -m tandem.tools make etcd kuberay only these groups
  python -m tandem.tools check             wanted and found, exit 3 when they differ
  python -m tandem.tools check --output json

exit codes: 0 ok, 1 a build failed, 2 usage, 3 a tool is missing or of another version
"""


def _parser() -> Parser:
    parser = Parser("tandem.tools", "Build or unpack every pinned program into ./bin.", _EPILOG)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="bring ./bin to the pinned versions")
    make.add_argument("groups", nargs="*", help="only these groups (folders of tools/, wheels)")
    look = commands.add_parser("check", help="compare wanted and found versions")
    look.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _make(groups: list[str]) -> int:
    started = time.monotonic()
    made = make_tools(groups)
    fresh = [m for m in made if m.fresh]
    if fresh:
        print(f"{'group':<36}{'seconds':>8}  programs")
        for m in fresh:
            print(f"{m.group:<36}{m.seconds:>8.0f}  {' '.join(m.programs)}")
    seconds = time.monotonic() - started
    console.ok(f"tools: {len(fresh)} made, {len(made) - len(fresh)} current ({seconds:.1f} s)")
    return ExitCode.OK


def _check(output: str) -> int:
    findings = check()
    if output == "json":
        print(json.dumps([f.as_dict() for f in findings], indent=2))
    else:
        print(f"{'program':<28}{'wanted':<12}{'found':<12}")
        for f in findings:
            mark = "ok" if f.ok else "DIFFERS"
            print(f"{f.program:<28}{f.wanted or '-':<12}{f.found or 'missing':<12}{mark}")
    if all(f.ok for f in findings):
        return ExitCode.OK
    bad = ", ".join(f.program for f in findings if not f.ok)
    raise UserError(Problem(f"missing or of another version: {bad}", "make tools"))


def main() -> int:
    """Run the command."""
    args = _parser().parse_args()
    return _make(args.groups) if args.command == "make" else _check(args.output)


if __name__ == "__main__":
    run_main(main)
