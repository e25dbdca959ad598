"""Decide whether a group of programs has to be made again.

A stamp (bin/.stamps/<group>.json) holds the key of what the programs were made from and
size and time of the files that came out, so that a second `make tools` reads a few small
files and is done, and a program that somebody deleted or replaced is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tandem.paths import BIN

Outputs = dict[str, list[int]]


def key_of(files: Iterable[Path], words: Iterable[str]) -> str:
    """Return a hash over the content of files (by name, in order) and further words."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    for word in words:
        digest.update(f"{word}\0".encode())
    return digest.hexdigest()


def outputs_of(names: Iterable[str], folder: Path = BIN) -> Outputs:
    """Return size in bytes and modification time in ns of each program that exists."""
    found: Outputs = {}
    for name in names:
        path = folder / name
        if path.is_file():
            stat = path.stat()
            found[name] = [stat.st_size, stat.st_mtime_ns]
    return found


def _stamp(group: str, folder: Path) -> Path:
    return folder / ".stamps" / f"{group}.json"


def is_current(group: str, key: str, names: Iterable[str], folder: Path = BIN) -> bool:
    """Return whether the group's programs are there, unchanged, and made from this key."""
    try:
        stamp = json.loads(_stamp(group, folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    wanted = list(names)
    found = outputs_of(wanted, folder)
    return (
        isinstance(stamp, dict)
        and stamp.get("key") == key
        and set(found) == set(wanted)
        and stamp.get("outputs") == found
    )


def write(group: str, key: str, names: Iterable[str], folder: Path = BIN) -> None:
    """Record what the group's programs were made from."""
    path = _stamp(group, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"key": key, "outputs": outputs_of(names, folder)}), encoding="utf-8"
    )
