"""A file that lists replicas, as a launcher writes it.

    {"replicas": [{"id": "judge-0", "url": "http://10.0.0.7:8100", "epoch": 3}, …]}

YAML, and so JSON too; a replica may also be given as its url alone, and is then known by its host
and port. The file is looked at, not watched: on a file system that several hosts share no host is
told what another one writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tandem_common import logs
from vllm_pool.core.membership import Registration, check_id, parse_url

SOURCE: Final = "file"
_LOOK_SECONDS: Final = 0.5
_FIELDS: Final = frozenset({"id", "url", "epoch", "weight_version", "draining"})


def parse(text: str) -> list[Registration]:
    """Return the replicas that a file lists.

    Raises:
        ValueError: It is no such list; with all that is wrong.
    """
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from None
    rows = said.get("replicas") if isinstance(said, dict) else said
    if not isinstance(rows, list):
        raise ValueError("it has no list `replicas`")  # noqa: TRY004 - a text is wrong, no type
    found: list[Registration] = []
    wrong: list[str] = []
    for number, row in enumerate(rows):
        problems = list(_wrong(row))
        wrong += [f"replica {number}: {problem}" for problem in problems]
        if not problems:
            found.append(_registration(row))
    ids = [each.id for each in found]
    wrong += [f"{name}: listed twice" for name in sorted({x for x in ids if ids.count(x) > 1})]
    if wrong:
        raise ValueError("; ".join(wrong))
    return found


def _registration(row: Any) -> Registration:
    if isinstance(row, str):
        address = parse_url(row)
        name = f"{address.host}-{address.port}".replace(":", ".").strip(".")
        return Registration(id=name, url=row)
    return Registration(
        id=row["id"],
        url=row["url"],
        epoch=row.get("epoch"),
        weight_version=row.get("weight_version"),
        draining=row.get("draining"),
    )


def _wrong(row: Any) -> Iterator[str]:
    if not isinstance(row, str | dict):
        yield f"{row!r} is neither an object nor a url"
        return
    url = row if isinstance(row, str) else row.get("url")
    try:
        parse_url(url if isinstance(url, str) else "")
    except ValueError as error:
        yield str(error)
    if isinstance(row, str):
        return
    if unknown := sorted(row.keys() - _FIELDS):
        yield f"no such field: {', '.join(map(str, unknown))}"
    name = row.get("id")
    try:
        check_id(name if isinstance(name, str) else "")
    except ValueError as error:
        yield str(error)
    epoch = row.get("epoch")
    if epoch is not None and (type(epoch) is not int or epoch < 0):
        yield f"epoch {epoch!r} is no number from 0 on"
    if not isinstance(row.get("draining", False), bool):
        yield f"draining {row['draining']!r} is neither true nor false"


def _read(path: Path, seen: object) -> tuple[object, str | None]:
    """Return a mark of what the file is, and its text when it is another than was seen."""
    status = path.stat()
    # A rename brings another inode, a write another time or size.
    mark = (status.st_ino, status.st_size, status.st_mtime_ns)
    return mark, None if mark == seen else path.read_text(encoding="utf-8")


async def follow(path: Path, synced: Callable[[str, list[Registration]], None]) -> None:
    """Tell of every list that the file has had, for ever.

    A file that is missing, or broken, changes nothing: what it said last holds.
    """
    log = logs.get_logger(source=SOURCE, path=str(path))
    seen: object = None
    trouble = ""
    while True:
        try:
            # In a thread: a file system of the network may keep us waiting.
            mark, text = await asyncio.to_thread(_read, path, seen)
            if text is not None:
                listed = parse(text)
                seen, trouble = mark, ""
                log.info("members_read", replicas=len(listed))
                synced(SOURCE, listed)
        except (OSError, ValueError) as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("members_unreadable", reason=trouble)
        await asyncio.sleep(_LOOK_SECONDS)
