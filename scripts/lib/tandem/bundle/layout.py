"""Where the pieces of the bundle are, and the two small files that describe them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import Problem, UserError
from tandem.paths import BUNDLE

FILL = "make bundle"


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders and files of one bundle."""

    root: Path = BUNDLE

    @property
    def charts(self) -> Path:
        """Folder of the charts, each a folder or a .tgz."""
        return self.root / "charts"

    @property
    def crds(self) -> Path:
        """Folder of the CRDs, one a file, named as the CRD."""
        return self.root / "manifests" / "crds"

    @property
    def environment(self) -> Path:
        """Values for helmfile's default environment: what this bundle makes possible."""
        return self.root / "environment.yaml"

    @property
    def manifest(self) -> Path:
        """Checksums of everything above."""
        return self.root / "manifest.json"

    def files(self) -> Iterator[Path]:
        """Yield every file of charts and manifests, in order."""
        for folder in (self.charts, self.root / "manifests"):
            yield from sorted(path for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle was filled from, and the checksum of each of its files."""

    key: str
    files: dict[str, str]

    def write(self, layout: Layout) -> None:
        """Write it; readers see the old one or the new one, nothing between."""
        draft = layout.manifest.with_suffix(".json.new")
        text = json.dumps({"key": self.key, "files": self.files}, indent=2)
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(layout.manifest)


def sha256_of(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def checksums(layout: Layout) -> dict[str, str]:
    """Return the checksum of each file of charts and manifests, by path in the bundle."""
    return {path.relative_to(layout.root).as_posix(): sha256_of(path) for path in layout.files()}


def read_manifest(layout: Layout) -> Manifest:
    """Return the bundle's manifest.

    Raises:
        UserError: There is none, or it cannot be read.
    """
    if not layout.manifest.is_file():
        raise UserError(Problem(f"the bundle is not filled: {layout.manifest} is missing", FILL))
    try:
        loaded = json.loads(layout.manifest.read_text(encoding="utf-8"))
        return Manifest(str(loaded["key"]), {str(k): str(v) for k, v in loaded["files"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            Problem(f"bundle: {layout.manifest} cannot be read: {error!r}", FILL)
        ) from error


def problems_of(layout: Layout) -> list[Problem]:
    """Return what is wrong with the files of a bundle, each named, compared with its manifest."""
    recorded = read_manifest(layout).files
    found = checksums(layout)
    problems = []
    for name, wanted in sorted(recorded.items()):
        if name not in found:
            problems.append(Problem(f"bundle: {layout.root / name} is missing", FILL))
        elif found[name] != wanted:
            problems.append(
                Problem(
                    f"bundle: {layout.root / name} is corrupt: sha256 {found[name][:12]}…, its "
                    f"record says {wanted[:12]}…",
                    FILL,
                )
            )
    problems += [
        Problem(f"bundle: {layout.root / name} is in no record", FILL)
        for name in sorted(set(found) - set(recorded))
    ]
    if not layout.environment.is_file():
        problems.append(Problem(f"bundle: {layout.environment} is missing", FILL))
    return problems
