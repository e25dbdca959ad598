"""What the launcher leaves for people and programs to read, in the job's folder."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

_PRIVATE: Final = 0o600


def write(path: Path, content: Any) -> None:
    """Write JSON whole or not at all.

    Raises:
        OSError: The folder is away.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.rename(path)


def token(path: Path) -> Path:
    """Write a new token that only its owner can read; return where.

    Raises:
        OSError: The folder is away.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    return path
