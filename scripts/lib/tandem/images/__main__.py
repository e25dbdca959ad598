"""Command line of `make images` and `make images-load`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.images import bundle, rootfs
from tandem.images.build import build, status
from tandem.images.engine import CHOICE, detect
from tandem.images.load import load_into_node
from tandem.paths import ROOT

#: The host provider's containerd.
SOCKET = Path("/run/tandem/containerd/containerd.sock")

_EPILOG = f"""\
examples:
  python -m tandem.images build                    everything that has changed
  python -m tandem.images build ray-vllm-cpu       one image and what it stands on
  python -m tandem.images build --all-as-files     a bundle to carry to another machine
  python -m tandem.images list --output json       names, content hashes, states
  python -m tandem.images load                     into the running host cluster
  {CHOICE}=buildah python -m tandem.images build  choose between docker, podman, buildah

exit codes: 0 ok, 1 a build or a load failed, 2 usage,
            3 unknown image, missing input, corrupt bundle, no builder, no disk, no cluster
"""


def _parser() -> Parser:
    parser = Parser(
        "tandem.images",
        "Build the container images of the host cluster and load them into it.",
        _EPILOG,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build what has changed, into the bundle")
    make.add_argument("names", nargs="*", metavar="NAME", help="images; all by default")
    make.add_argument(
        "--all-as-files", action="store_true", help="write big images to .bundle/images too"
    )
    show = commands.add_parser("list", help="show every image and whether it is current")
    show.add_argument("names", nargs="*", metavar="NAME")
    show.add_argument("--output", choices=("text", "json"), default="text")
    load = commands.add_parser("load", help="load the bundle's images into a containerd node")
    load.add_argument("names", nargs="*", metavar="NAME", help="images; all by default")
    load.add_argument(
        "--socket", type=Path, default=SOCKET, help="containerd's socket (default: host cluster)"
    )
    return parser


def _build(names: list[str], *, all_as_files: bool) -> int:
    started = time.monotonic()
    records = build(detect(rootfs.reference()), names, all_as_files=all_as_files)
    seconds = time.monotonic() - started
    console.ok(f"images: {len(records)} current in {bundle.FOLDER} ({seconds:.1f} s)")
    return ExitCode.OK


def _list(names: list[str], output: str) -> int:
    engine = detect(rootfs.reference())
    rows = [
        {
            "name": each.image.name,
            "image": each.image.reference,
            "hash": each.hash,
            "state": each.state,
            "engine": engine.name,
            "bundle": asdict(record) if (record := bundle.read(each.image.name)) else None,
            "problem": each.problem.what if each.problem else None,
        }
        for each in status(engine, names)
    ]
    if output == "json":
        print(json.dumps(rows, indent=2))
        return ExitCode.OK
    print(f"{'image':<46}{'content':<14}state ({engine.name})")
    for row in rows:
        note = f": {row['problem']}" if row["problem"] else ""
        print(f"{row['image']:<46}{row['hash'] or '-':<14}{row['state']}{note}")
    return ExitCode.OK


def _load(names: list[str], socket: Path) -> int:
    if not socket.exists():
        shown = socket.relative_to(ROOT) if socket.is_relative_to(ROOT) else socket
        raise UserError(Problem(f"no containerd listens on {shown}", "make cluster-up"))
    results = load_into_node(socket, names or None)
    fresh = sum(result.fresh for result in results)
    console.ok(f"images: {fresh} loaded, {len(results) - fresh} were there")
    return ExitCode.OK


def main() -> int:
    """Run the command."""
    args = _parser().parse_args()
    if args.command == "build":
        return _build(args.names, all_as_files=args.all_as_files)
    if args.command == "list":
        return _list(args.names, args.output)
    return _load(args.names, args.socket)


if __name__ == "__main__":
    run_main(main)
