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

#: Tokens out, and tokens in: a long prompt is work too.
_TOKENS: Final = re.compile(
    rb"^vllm:(?:generation|prompt)_tokens_total(?:\{[^}\n]*\})? ([0-9.eE+]+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at one moment; None where they could not be read.

    Attributes:
        tokens: vLLM's tokens, in and out.
        successes: Requests of clients that ended well, as Envoy counts them.
    """

    tokens: float | None = None
    successes: int | None = None


def tokens(metrics: bytes) -> float | None:
    """Return the sum of vLLM's token counters in its metrics; None when there are none."""
    found = _TOKENS.findall(metrics)
    try:
        return sum(float(each) for each in found) if found else None
    except ValueError:
        return None


def progress(before: Sample, after: Sample) -> bool:
    """Return whether work went on between two samples; in doubt it did not."""
    if before.tokens is not None and after.tokens is not None:
        return after.tokens > before.tokens
    if before.successes is not None and after.successes is not None:
        return after.successes > before.successes
    return False
