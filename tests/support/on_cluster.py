"""What tests on the real cluster do again and again: ask, apply, and wait with a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tandem.run.kube import kubectl

#: Two slow cores that others use too answer within this.
SECONDS = 120.0
_PAUSE_SECONDS = 0.2


def get(*words: str) -> Any:
    """Return what `kubectl get` says, as JSON."""
    return json.loads(kubectl("get", *words, "-o", "json"))


def items(*words: str) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    found: list[dict[str, Any]] = get(*words)["items"]
    return found


def apply(obj: dict[str, Any]) -> None:
    """Apply an object, or a List of them."""
    kubectl("apply", "-f", "-", stdin=json.dumps(obj), timeout=60)


def until(holds: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait until something holds, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(_PAUSE_SECONDS)
    return answer
