"""What a manager leaves for the next one, in the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from vllm_pool.dataplane.files import write_atomically
from vllm_pool.manager.pool import Pool

MEMORY_FILE: Final = "members.json"


def keep(pool: Pool, run_dir: Path) -> bool:
    """Write what the pool knows; return False when that was known already.

    Raises:
        OSError: The run directory cannot be written.
    """
    text = json.dumps(pool.memory(), indent=1, sort_keys=True)
    return write_atomically(run_dir / MEMORY_FILE, text.encode() + b"\n")


def begin(run_dir: Path) -> None:
    """Let a new balancer begin: the drain of the one before it is over.

    Raises:
        OSError: The run directory cannot be written.
    """
    path = run_dir / MEMORY_FILE
    try:
        said: Any = json.loads(path.read_bytes())
        said["draining"] = False
    except (FileNotFoundError, ValueError, TypeError):
        return  # nothing is there, or nothing to be used: `recall` tells
    write_atomically(path, json.dumps(said, indent=1, sort_keys=True).encode() + b"\n")


def recall(pool: Pool, run_dir: Path) -> str:
    """Let a pool know what an earlier manager has left.

    Returns:
        Why it could not be used; empty when all is well, or nothing is there.
    """
    try:
        said: Any = json.loads((run_dir / MEMORY_FILE).read_bytes())
        pool.remember(said)
    except FileNotFoundError:
        return ""
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        # Written whole and by us alone: an older form, or a disk that is broken.
        return f"{type(error).__name__}: {error}"
    return ""
