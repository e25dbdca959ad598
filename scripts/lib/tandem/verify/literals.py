"""Versions that stand in files of known kinds, found without knowing their names.

The rules of `versions.py` know where a version is repeated; this finds the places that no
rule knows, so that a new pin cannot stay outside of versions.yaml unseen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Folders of the checkout that hold no sources.
_NO_SOURCES = {"bin", "build", "artifacts"}
_PIN = re.compile(r"(?m)^[A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?\s*==\s*(?P<version>[^\s;\\#,]+)")
_FROM = re.compile(r"(?mi)^FROM\s+(?:--\S+\s+)*(?P<value>\S+)")
_ARG = re.compile(r"(?mi)^ARG\s+(?P<name>\w+)=[\"']?(?P<value>[^\s\"']+)")
#: Tag of an image; what is built here (localhost/…) has no version of its own.
_TAG = re.compile(r"(?!localhost/)[^\s$@]*[^\s$@:/]:(?P<version>[^\s$:/@]+)(?:@\S+)?")
_NUMBER = re.compile(r"(?P<version>v?\d+(?:\.\w[\w.+-]*)+)")
_ARG_OF_VERSION = re.compile(r"(?i).*(?:version|suite|release|tag)")
_REQUIRED = re.compile(
    r"(?m)^(?:require )?[ \t]*(?P<module>[\w.~/-]+\.[\w.~/-]+) (?P<version>v\S+)(?P<rest>.*)$"
)
_TOOL = re.compile(r"(?m)^(?:tool[ \t]+|\t)(?P<path>[\w.~-]+\.[\w.~/-]+)$")


@dataclass(frozen=True, slots=True)
class Literal:
    """A version as it stands in a file of a known kind."""

    path: Path
    start: int
    text: str


def _sources(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        at_root = Path(folder) == root
        below[:] = sorted(
            name for name in below
            if not name.startswith(".") and not (at_root and name in _NO_SOURCES)
        )  # fmt: skip
        yield from (Path(folder) / name for name in sorted(files))


def _of_requirements(text: str) -> Iterator[tuple[int, str]]:
    for match in _PIN.finditer(text):
        yield match.start("version"), match["version"]


def _of_dockerfile(text: str) -> Iterator[tuple[int, str]]:
    for match in _FROM.finditer(text):
        tag = _TAG.fullmatch(match["value"])
        if tag:
            yield match.start("value") + tag.start("version"), tag["version"]
    for match in _ARG.finditer(text):
        value = match["value"]
        found = _TAG.fullmatch(value) or _NUMBER.fullmatch(value)
        if found:
            yield match.start("value") + found.start("version"), found["version"]
        elif _ARG_OF_VERSION.fullmatch(match["name"]):
            yield match.start("value"), value


def _of_go_mod(text: str) -> Iterator[tuple[int, str]]:
    tools = [match["path"] for match in _TOOL.finditer(text)]
    required = {match["module"]: match for match in _REQUIRED.finditer(text)}
    mains = set()
    for tool in tools:
        holders = [module for module in required if f"{tool}/".startswith(f"{module}/")]
        mains.add(max(holders, key=len, default=""))
    for module, match in required.items():
        if module in mains or "// indirect" not in match["rest"]:
            yield match.start("version"), match["version"]


def _finder(path: Path) -> Callable[[str], Iterator[tuple[int, str]]] | None:
    if path.parent.name == "requirements" and path.suffix in {".in", ".overrides"}:
        return _of_requirements
    if path.name.endswith("Dockerfile"):
        return _of_dockerfile
    return _of_go_mod if path.name == "go.mod" else None


def literals(root: Path) -> Iterator[Literal]:
    """Yield every version of a kind that has to be pinned in versions.yaml.

    `==` in requirements (not in their locks), tags and versions in Dockerfiles, and in each
    go.mod the modules of its tools and those that it requires itself.
    """
    for path in _sources(root):
        find = _finder(path)
        if find:
            found = find(path.read_text(encoding="utf-8"))
            yield from (Literal(path, start, text) for start, text in found)
