"""Images in the bundle: `.bundle/images/<name>.json`, and `<name>.tar` beside it.

The record says which content the image has and where it is: in the file, or (an image of
gigabytes, whose file would be one copy too many) in the store of the engine that built it.
A file is checked against size and sha256 before anything is done with it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.errors import Problem, UserError
from tandem.images import specs
from tandem.paths import BUNDLE

FOLDER = BUNDLE / "images"
REBUILD = "make images (an image of a bundle that was fetched: fetch it again)"


@dataclass(frozen=True, slots=True)
class Record:
    """One image of the bundle."""

    name: str
    #: Name and stable tag, as manifests write it.
    image: str
    #: Hash of the content: a node that has it is not loaded again.
    hash: str
    #: Bytes and checksum of the file; 0 and "" without one.
    size: int = 0
    sha256: str = ""
    #: Engine whose store holds the image when there is no file.
    engine: str = ""

    @property
    def by_hash(self) -> str:
        """Name with the content hash as tag."""
        return f"{self.image.rpartition(':')[0]}:{self.hash}"

    def file(self, folder: Path) -> Path:
        """Return where the image's file is, if it has one."""
        return folder / f"{self.name}.tar"


def sha256_of(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write(record: Record, folder: Path = FOLDER) -> None:
    """Write a record; readers see the old one or the new one, nothing between."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{record.name}.json"
    draft = target.with_suffix(".json.new")
    draft.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    draft.replace(target)


def _fix(path: Path) -> str:
    """Return what mends a file of the bundle: only images of ours can be made anew."""
    if any(image.name == path.stem and image.for_nodes for image in specs.all_images()):
        return "make images"
    # Both at once: a file without its record would be the next problem.
    both = [path.with_suffix(suffix) for suffix in (".json", ".tar")]
    words = " ".join(shlex.quote(str(each)) for each in both if each.exists())
    return (
        f"delete it: rm {words} (make images makes no image {path.stem}; when it came with a "
        "bundle that was fetched, fetch that again)"
    )


def _parse(path: Path) -> Record | Problem:
    try:
        loaded: Any = json.loads(path.read_text(encoding="utf-8"))
        record = Record(**loaded)
        texts = (record.name, record.image, record.hash, record.sha256, record.engine)
        sound = all(isinstance(text, str) for text in texts) and isinstance(record.size, int)
    except (OSError, ValueError, TypeError) as error:
        return Problem(f"bundle: {path} cannot be read: {error}", _fix(path))
    if not sound or record.name != path.stem or ":" not in record.image.rpartition("/")[2]:
        return Problem(f"bundle: {path} does not describe an image of that name", _fix(path))
    return record


def read(name: str, folder: Path = FOLDER) -> Record | None:
    """Return the record of one image, or None without one or when it is unreadable."""
    path = folder / f"{name}.json"
    parsed = _parse(path) if path.exists() else None
    return parsed if isinstance(parsed, Record) else None


def survey(folder: Path = FOLDER) -> tuple[list[Record], list[Problem]]:
    """Return every sound record of the bundle, and what is wrong with the others.

    One problem for each record that is unreadable and for each file without a record.
    """
    parsed = [_parse(path) for path in sorted(folder.glob("*.json"))]
    problems = [each for each in parsed if isinstance(each, Problem)]
    problems += [
        Problem(f"bundle: {tar} has no {tar.with_suffix('.json').name} beside it", _fix(tar))
        for tar in sorted(folder.glob("*.tar"))
        if not tar.with_suffix(".json").exists()
    ]
    return [each for each in parsed if isinstance(each, Record)], problems


def read_all(folder: Path = FOLDER) -> list[Record]:
    """Return every record of the bundle.

    Raises:
        UserError: One is unreadable, or a file has no record; all of them are named.
    """
    records, problems = survey(folder)
    if problems:
        raise UserError(problems)
    return records


def problem_of_file(record: Record, folder: Path = FOLDER) -> Problem | None:
    """Return what is wrong with an image's file: missing, cut short or changed."""
    if not record.sha256:
        return None
    path = record.file(folder)
    fix = _fix(path)
    if not path.exists():
        return Problem(f"bundle: {path} is missing", fix)
    size = path.stat().st_size
    if size != record.size:
        return Problem(
            f"bundle: {path} has {size} bytes, its record says {record.size}: cut short?", fix
        )
    found = sha256_of(path)
    if found != record.sha256:
        return Problem(
            f"bundle: {path} is corrupt: sha256 {found[:12]}…, its record says "
            f"{record.sha256[:12]}…",
            fix,
        )
    return None
