"""Read and write YAML with libyaml: CRDs are large, and plain Python takes ten times as long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_all(text: str) -> list[Any]:
    """Return the documents of a text, without empty ones."""
    return [doc for doc in yaml.load_all(text, Loader=_Loader) if doc]


def dump(value: Any, *, width: int = 100) -> str:
    """Return a value as one YAML document, keys in their order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=width)
    return text


def dump_all(values: Iterable[Any], *, width: int = 100) -> str:
    """Return values as YAML documents, each begun by `---`."""
    text: str = yaml.dump_all(
        values, Dumper=_Dumper, sort_keys=False, width=width, explicit_start=True
    )
    return text
