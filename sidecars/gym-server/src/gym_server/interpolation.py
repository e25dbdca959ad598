"""Which `${…}` of a Gym config can be resolved here, and what becomes of the others.

A Gym config is often a part of a training recipe and then refers to keys that only the
recipe has. Whatever cannot be resolved is dropped, one key or one list item at a time, so that
Gym's own default for it applies; nothing is dropped in silence, and `--strict` drops nothing.

What stays is left as it is written: OmegaConf resolves it in the process that runs NeMo Gym.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Resolvers that need nothing but their arguments.
_PURE = frozenset({"oc.decode", "oc.create"})
#: NeMo Gym's own, resolved when it merges its files; what they name may come from any of those.
_GYM = frozenset({"inherit_from", "copy"})
#: Look at a key of the config that their first argument names.
_LOOKUPS = frozenset({"oc.select", "oc.deprecated", "oc.dict.keys", "oc.dict.values"})
#: With a second argument these resolve to that instead of failing.
_DEFAULTING = frozenset({"oc.env", "oc.select"})
_WITH_DEFAULT = 2

_OPEN = "${"
_RESOLVER = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:(.*)", re.DOTALL)
_BRACKET = re.compile(r"\[\s*([^\[\]]*?)\s*\]")

#: Keys and list positions from the root to a value.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """One key or list item that went, where it was, and why."""

    path: str
    value: str
    reason: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.path}: {self.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Known:
    """What may be referred to beyond the config itself."""

    #: Variables of the environment that NeMo Gym will have.
    environ: Mapping[str, str] = field(default_factory=dict)
    #: Configs that are merged below this one: Gym's own files, keys that are set later.
    others: tuple[Mapping[str, Any], ...] = ()


def is_interpolated(text: str) -> bool:
    """Return whether a text holds a `${`."""
    return _OPEN in text


def dotted(path: Path) -> str:
    """Return a path as people write it: `a.b[0].c`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def drop_unresolvable(
    config: Mapping[str, Any], known: Known
) -> tuple[dict[str, Any], list[Dropped]]:
    """Return the config without what cannot be resolved, and what was dropped from it.

    A value that refers to a dropped key goes too, so this repeats until nothing changes. The
    config that was given stays as it is.
    """
    tree: dict[str, Any] = copy.deepcopy(dict(config))
    scope = _Scope(tree, known)
    dropped: list[Dropped] = []
    while True:
        found = [
            (path, value, reason)
            for path, value in _strings(tree)
            if path not in scope.gone and (reason := scope.trouble(value, path))
        ]
        if not found:
            break
        for path, value, reason in found:
            scope.gone.add(path)
            dropped.append(Dropped(dotted(path), value, reason))
    # Only now, and list items from the back: positions in the messages and in references
    # are those of the config as it was written.
    for path in sorted(scope.gone, key=lambda at: [_sortable(part) for part in at], reverse=True):
        parent: Any = tree
        for part in path[:-1]:
            parent = parent[part]
        del parent[path[-1]]
    return tree, dropped


def _sortable(part: str | int) -> tuple[int, int, str]:
    return (0, part, "") if isinstance(part, int) else (1, 0, part)


def _strings(node: Any, path: Path = ()) -> Iterable[tuple[Path, str]]:
    if isinstance(node, str):
        if _OPEN in node:
            yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _strings(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _strings(value, (*path, index))


def _bodies(text: str) -> Iterable[str]:
    """Return what stands between `${` and its `}`, outermost ones only."""
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        # An odd number of backslashes makes it literal text.
        before = len(text[:start]) - len(text[:start].rstrip("\\"))
        if before % 2:
            at = start + len(_OPEN)
            continue
        end = _closing(text, start + len(_OPEN))
        yield text[start + len(_OPEN) : end]
        at = end + 1


def _closing(text: str, at: int) -> int:
    depth, quote = 1, ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise ValueError("a `${` without its `}`")


def _arguments(text: str) -> list[str]:
    """Return a resolver's arguments, split at the commas that are not inside anything."""
    found, depth, quote, at, start = [], 0, "", 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    last = text[start:].strip()
    return [*found, last] if found or last else []


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


class _Scope:
    """Everything that decides whether a string of the config can be resolved."""

    def __init__(self, tree: Mapping[str, Any], known: Known) -> None:
        self.tree = tree
        self.known = known
        #: What has been found unresolvable so far.
        self.gone: set[Path] = set()

    def trouble(self, text: str, path: Path) -> str:
        """Return why a string cannot be resolved, "" when it can."""
        try:
            bodies = list(_bodies(text))
        except ValueError as error:
            return str(error)
        return next((reason for body in bodies if (reason := self._body(body, path))), "")

    def _body(self, body: str, path: Path) -> str:
        call = _RESOLVER.fullmatch(body)
        if call is None:
            # `${a.${b}}`: what it names is known only once the inner one is resolved.
            return self.trouble(body, path) if _OPEN in body else self._reference(body, path)
        name, arguments = call.group(1), _arguments(call.group(2))
        if name in _GYM or name in _PURE:
            return self._nested(arguments, path)
        inner = self._nested(arguments[1:], path)
        if name in _DEFAULTING and len(arguments) >= _WITH_DEFAULT:
            return inner
        first = _unquoted(arguments[0]) if arguments else ""
        if name == "oc.env":
            known = first in self.known.environ
            return "" if known else f"the environment has no variable {first}"
        if name in _LOOKUPS:
            return self._reference(first, path) or inner
        return f"no resolver `{name}` here"

    def _nested(self, texts: Iterable[str], path: Path) -> str:
        return next((reason for text in texts if (reason := self.trouble(text, path))), "")

    def _reference(self, text: str, path: Path) -> str:
        target = _target(text, path)
        if target is None:
            return f"`{text.strip()}` leads above the root of the config"
        reason = f"no key `{dotted(target)}` here"
        real = _find(self.tree, target)
        if real is not None:
            reason = self._own(real, path)
        # A key that this config has lost may still come from a file below it.
        if reason and any(_find(other, target) is not None for other in self.known.others):
            return ""
        return reason

    def _own(self, real: Path, path: Path) -> str:
        """Return why a reference into the config itself leads nowhere."""
        if path[: len(real)] == real:
            return "it refers to itself" if path == real else "it refers to what it is a part of"
        if any(real[:length] in self.gone for length in range(1, len(real) + 1)):
            return f"`{dotted(real)}` was dropped"
        for depth, part in enumerate(real):
            if isinstance(part, int) and any(lost[:-1] == real[:depth] for lost in self.gone):
                # Positions in that list are no longer what they were when this was written.
                return f"the list of `{dotted(real)}` has lost items"
        return ""


def _target(text: str, path: Path) -> Path | None:
    """Return the path that a reference names; leading dots count from the value's parent."""
    plain = _BRACKET.sub(r".\1", text.strip())
    dots = len(plain) - len(plain.lstrip("."))
    parts = tuple(_unquoted(part.strip()) for part in plain[dots:].split(".") if part.strip())
    if dots == 0:
        return parts
    if dots > len(path):
        return None
    return (*path[: len(path) - dots], *parts)


def _find(root: Any, target: Path) -> Path | None:
    """Return the keys and positions that really lead to a target, None when nothing does."""
    node: Any = root
    real: list[str | int] = []
    for part in target:
        number = int(part) if isinstance(part, str) and part.isdecimal() else part
        if isinstance(node, Mapping) and (part in node or number in node):
            real.append(part if part in node else number)
        elif isinstance(node, list) and isinstance(number, int) and number < len(node):
            real.append(number)
        elif isinstance(node, str) and _OPEN in node:
            # A reference into a reference: OmegaConf follows it, and it is judged on its own.
            return tuple(real)
        else:
            return None
        node = node[real[-1]]
    return tuple(real)
