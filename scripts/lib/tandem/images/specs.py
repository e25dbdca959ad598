"""Which images there are, and the hash that decides whether one has to be built.

The hash covers the Dockerfile, every file that its COPY lines name (read from the
Dockerfile itself, so that nothing is declared twice), the build arguments and the hash of
the image below. Two checkouts with the same content get the same hash.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import ROOT
from tandem.versions import pinned

#: Everything of ours is named under it; no registry has this name, so nothing is ever pulled.
PREFIX = "localhost/tandem"
#: Where the Dockerfiles are: `<folder>/<name>/Dockerfile`.
DOCKERFILES = Path("cluster/host/images")
#: Part of every hash: raise it when images have to be built anew for another reason.
RECIPE = "1"
HASH_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the repository."""

    name: str
    tag: str
    #: The image that it stands on: a name of this list, "debian", or None for nothing.
    base: str | None = None
    #: Goes into nodes (a base does not).
    for_nodes: bool = True
    #: Kept as a file in the bundle. Not so for an image of gigabytes: it would lie on the disk
    #: three times, so it is streamed from the builder's store into the node.
    as_file: bool = True
    #: Free disk in GiB that building it may need.
    disk_gib: float = 0.5
    #: Folder of its Dockerfile, where that is not `DOCKERFILES/<name>`.
    folder: Path | None = None

    @property
    def repository(self) -> str:
        """Name without tag."""
        return f"{PREFIX}/{self.name}"

    @property
    def reference(self) -> str:
        """Name and stable tag, as manifests write it."""
        return f"{self.repository}:{self.tag}"

    @property
    def dockerfile(self) -> Path:
        """Path of the Dockerfile in the repository."""
        return (self.folder or DOCKERFILES / self.name) / "Dockerfile"


def all_images() -> tuple[Image, ...]:
    """Return every image, each after the one it stands on."""
    return (
        Image("pause", "dev"),
        Image("coredns", pinned("coredns")),
        Image("jobset", pinned("jobset")),
        Image("kuberay-operator", pinned("kuberay")),
        Image("kueue", pinned("kueue")),
        Image("base", "dev", base="debian", for_nodes=False, as_file=False, disk_gib=1.5),
        Image("sidecars", "dev", base="base", disk_gib=1, folder=Path("sidecars")),
        Image("ray", "dev", base="base", for_nodes=False, as_file=False, disk_gib=2),
        Image("ray-vllm-cpu", "dev", base="ray", as_file=False, disk_gib=11),
        Image("ray-gym-cpu", "dev", base="ray", as_file=False, disk_gib=5),
    )


def select(names: Sequence[str], *, with_bases: bool) -> list[Image]:
    """Return the images of these names, all when there are none, in the order to build.

    Raises:
        UserError: A name is not one of ours.
    """
    images = {image.name: image for image in all_images()}
    unknown = sorted(set(names) - set(images))
    if unknown:
        raise UserError(
            [Problem(f"unknown image {name!r}", f"one of: {', '.join(images)}") for name in unknown]
        )
    wanted = set(names or images)
    if with_bases:
        for image in reversed(images.values()):
            if image.name in wanted and image.base in images:
                wanted.add(image.base)
    return [image for image in images.values() if image.name in wanted]


def _instructions(dockerfile: str) -> Iterator[list[str]]:
    """Yield the words of each instruction; comments and continuations are gone by then."""
    logical = ""
    for line in dockerfile.splitlines():
        if line.lstrip().startswith("#"):
            continue
        logical += line.rstrip().removesuffix("\\") + " "
        if line.rstrip().endswith("\\"):
            continue
        keyword = logical.split(maxsplit=1)[:1]
        if keyword and keyword[0].upper() in ("COPY", "ADD"):
            yield shlex.split(logical)
        logical = ""


def copied_paths(dockerfile: str) -> list[str]:
    """Return the paths of the build context that a Dockerfile copies into the image."""
    paths: list[str] = []
    for words in _instructions(dockerfile):
        flags = [word for word in words[1:] if word.startswith("--")]
        if any(flag.startswith("--from=") for flag in flags):
            continue
        plain = [word for word in words[1:] if not word.startswith("--")]
        paths += plain[:-1]
    return paths


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(
        file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )


def content_hash(
    image: Image, *, base_hash: str, arguments: Mapping[str, str], root: Path = ROOT
) -> str:
    """Return the hash of everything that goes into an image.

    Raises:
        UserError: The Dockerfile names files that do not exist.
    """
    dockerfile = (root / image.dockerfile).read_text(encoding="utf-8")
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        digest.update("\0".join(parts).encode() + b"\n")

    add("recipe", RECIPE, image.reference)
    add("dockerfile", dockerfile)
    add("base", base_hash)
    for key in sorted(arguments):
        add("argument", key, arguments[key])
    missing: list[str] = []
    for copied in copied_paths(dockerfile):
        source = root / copied
        if not source.exists():
            missing.append(copied)
            continue
        for file in _files(source):
            with file.open("rb") as content:
                inner = hashlib.file_digest(content, "sha256").hexdigest()
            executable = "x" if file.stat().st_mode & 0o100 else "-"
            add("file", file.relative_to(root).as_posix(), executable, inner)
    if missing:
        raise UserError(
            [
                Problem(
                    f"image {image.name} needs {path}, which does not exist",
                    "make tools" if path.startswith("bin/") else f"restore it: git checkout {path}",
                )
                for path in missing
            ],
            ExitCode.PRECONDITION,
        )
    return digest.hexdigest()[:HASH_LENGTH]
