"""Signs that a replica works for its clients, although a probe of ours is late.

A burst fills the engine's queue, and a canary has to stand in it like everybody. A hung engine
looks the same from its canary alone. What tells them apart is whether tokens are generated: vLLM
counts them. Requests that Envoy saw succeed are looked at only where a replica has no such
counter, since paths that need no engine succeed on a hung one too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_COUNTER: Final = re.compile(
    r"^vllm:(?P<which>\w+)_tokens_total(?:\{[^}\n]*\})?[ \t]+(?P<value>[0-9.eE+]+)", re.MULTILINE
)
#: vLLM's counters of tokens out, and of tokens in: a long prompt is work too.
OUT: Final = "generation"
IN: Final = "prompt"


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment; None where they could not be read.

    Attributes:
        tokens: vLLM's tokens, in and out.
        successes: Requests of clients that ended well, as Envoy counts them.
    """

    tokens: float | None = None
    successes: int | None = None


def tokens(metrics: str, *which: str) -> float | None:
    """Return the sum of some token counters in vLLM's metrics; None when there are none.

    Args:
        metrics: Text of `/metrics`.
        which: `OUT`, `IN`, or both.
    """
    found = [each["value"] for each in _COUNTER.finditer(metrics) if each["which"] in which]
    try:
        return sum(map(float, found)) if found else None
    except ValueError:
        return None


def progress(before: Sample, after: Sample) -> bool:
    """Return whether work went on between two samples; in doubt it did not."""
    if before.tokens is not None and after.tokens is not None:
        return after.tokens > before.tokens
    if before.successes is not None and after.successes is not None:
        return after.successes > before.successes
    return False
