"""The pinned versions, read from `versions.yaml` (the only place that holds them)."""

from __future__ import annotations

from functools import cache
from typing import Literal

import yaml

from tandem.paths import VERSIONS

PinnedSet = Literal["served", "online"]


@cache
def _load() -> dict[str, dict[str, str]]:
    loaded: dict[str, dict[str, str]] = yaml.safe_load(VERSIONS.read_text(encoding="utf-8"))
    return loaded


def pinned(name: str, which: PinnedSet = "served") -> str:
    """Return the pinned version of one component, as written (with its `v`, if any).

    Raises:
        KeyError: `versions.yaml` does not hold that name.
    """
    return _load()[which][name]


def all_pinned(which: PinnedSet = "served") -> dict[str, str]:
    """Return every pinned version of a set, by name."""
    return dict(_load()[which])
