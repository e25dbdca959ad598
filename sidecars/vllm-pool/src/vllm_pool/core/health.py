"""Whether a replica can serve: two kinds of probes, and hysteresis both ways.

`/health` says that the server process answers, the canary (one generated token) that the engine
does. One bad answer is no verdict, and neither is one good answer after a fall. The first joining
needs one of each only: nothing is known against a new replica, and it shall serve soon.

Answers of 5xx to clients have no part in this: a request that breaks every replica that it meets
must not take the pool away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What was asked."""

    HTTP = "health"
    CANARY = "canary"


class Result(StrEnum):
    """How it went."""

    OK = "ok"
    #: Refused, reset, or answered with a failure.
    FAILED = "failed"
    #: No answer in time.
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer.

    Attributes:
        detail: What was wrong, in words.
        seconds: How long the answer took.
    """

    kind: Kind
    result: Result
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How much it takes.

    Attributes:
        http_down: Bad answers of /health in a row that take a replica out.
        canary_down: Bad canaries in a row that do.
        up: Good answers in a row, of each kind, that bring one back.
        canary: Whether canaries are sent at all.
    """

    http_down: int = 2
    canary_down: int = 2
    up: int = 2
    canary: bool = True


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes of one launch have shown.

    Attributes:
        up: Whether it may serve.
        proven: Whether it ever could.
        recovered: Clock's time when it came back after a fall; None when it never fell.
        why: What took it out, or keeps it from joining.
    """

    up: bool = False
    proven: bool = False
    recovered: float | None = None
    http_good: int = 0
    http_bad: int = 0
    canary_good: int = 0
    canary_bad: int = 0
    why: str = "not-probed"


def observe(
    health: Health, probe: Probe, limits: HealthLimits, now: float, *, progress: bool = False
) -> Health:
    """Return the health after one more answer.

    Args:
        health: Before.
        probe: The answer.
        limits: How much it takes.
        now: Clock's time.
        progress: Whether the replica's work for clients went on meanwhile. A late answer is then
            no sign of a fault (it is busy), and none of health either.
    """
    if probe.result is Result.LATE and progress:
        return health
    good = probe.result is Result.OK
    if probe.kind is Kind.HTTP:
        health = replace(
            health,
            http_good=health.http_good + 1 if good else 0,
            http_bad=0 if good else health.http_bad + 1,
        )
    else:
        health = replace(
            health,
            canary_good=health.canary_good + 1 if good else 0,
            canary_bad=0 if good else health.canary_bad + 1,
        )
    if health.up:
        if health.http_bad >= limits.http_down or health.canary_bad >= limits.canary_down:
            return replace(health, up=False, http_good=0, canary_good=0, why=_why(probe))
        return health
    need = limits.up if health.proven else 1
    enough = health.http_good >= need and (health.canary_good >= need or not limits.canary)
    if enough:
        return replace(
            health, up=True, proven=True, recovered=now if health.proven else None, why=""
        )
    if not good:
        return replace(health, why=_why(probe))
    return health


def _why(probe: Probe) -> str:
    words = f"{probe.kind}-{probe.result}"
    return f"{words}: {probe.detail}" if probe.detail else words
