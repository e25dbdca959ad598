"""A Slurm to try things on, by hand.

export PYTHONPATH=scripts/lib:tests
python -m support.slurm_lab up --nodes 6
python -m support.slurm_lab exec srun -N2 hostname
python -m support.slurm_lab down
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from support.slurm_lab.lab import Lab, best_proctrack
from support.slurm_lab.settings import Settings
from tandem.errors import ExitCode, Problem, UserError

_FOLDER = Path("/var/tmp/slurmlab")  # noqa: S108 - nodes share it


def main(argv: Sequence[str] | None = None) -> int:
    """Do one thing with the lab."""
    args = _parser().parse_args(argv)
    try:
        return _do(args)
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.code
    except (AssertionError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.FAILURE


def _do(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if args.command == "up":
        settings = Settings(
            nodes=args.nodes, gpus=args.gpus, proctrack=best_proctrack(),
            slurmd_timeout=args.slurmd_timeout, kill_wait=args.kill_wait,
        )  # fmt: skip
        Lab(folder, settings, lasting=True).up()
        return ExitCode.OK
    lab = Lab.at(folder)
    if args.command == "down":
        lab.down()
        shutil.rmtree(lab.folder)
    elif args.command == "exec":
        _foreground(lab, args.argv, None)
    elif args.command == "node":
        _foreground(lab, args.argv, args.node)
    elif args.command == "idle":
        lab.wait_idle()
    elif args.command == "tidy":
        lab.tidy()
    else:
        {"crash": lab.crash, "revive": lab.revive, "cut": lab.cut, "heal": lab.heal}[args.command](
            args.node
        )
    return ExitCode.OK


def _foreground(lab: Lab, argv: Sequence[str], node: int | None) -> NoReturn:
    """Become a program that runs in there, with this terminal."""
    if not argv:
        raise UserError(Problem("no program was given", "exec sinfo"), ExitCode.USAGE)
    words, env = lab.command(argv, node=node, cwd=Path.cwd())
    sys.stdout.flush()
    os.execvpe(words[0], words, env)  # noqa: S606 - a list, no shell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="support.slurm_lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="of the lab: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring it up; ends when all nodes are idle")
    up.add_argument("--nodes", type=int, default=6)
    up.add_argument("--gpus", type=int, default=4, help="per node")
    up.add_argument("--slurmd-timeout", type=int, default=5, help="seconds to DOWN")
    up.add_argument("--kill-wait", type=int, default=5, help="seconds from TERM to KILL")
    commands.add_parser("down", help="end all of it, and remove its folder")
    commands.add_parser("idle", help="wait until no job is there and all nodes are idle")
    commands.add_parser("tidy", help="cancel all jobs and bring all nodes back")
    inside = commands.add_parser("exec", help="run a program on the controller's host")
    inside.add_argument("argv", nargs=argparse.REMAINDER)
    node = commands.add_parser("node", help="run a program on a node")
    node.add_argument("node", type=int)
    node.add_argument("argv", nargs=argparse.REMAINDER)
    for name, what in (
        ("crash", "end a node at once"), ("revive", "boot one that has crashed"),
        ("cut", "take a node off the network"), ("heal", "put it back"),
    ):  # fmt: skip
        commands.add_parser(name, help=what).add_argument("node", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
