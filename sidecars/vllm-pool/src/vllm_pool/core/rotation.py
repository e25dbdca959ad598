"""What state each replica is in, how much it gets, and whether the pool is ready."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from vllm_pool.core.health import Health

FULL_WEIGHT: Final = 100
_FIRST_WEIGHT: Final = 10
_STEPS: Final = 9


class State(StrEnum):
    """State of a replica; those in rotation get new requests."""

    JOINING = "joining"
    READY = "ready"
    SLOW_START = "slow-start"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    DRAINED = "drained"
    LOST = "lost"


class Weights(StrEnum):
    """How a replica's weights stand to those of the pool."""

    EQUAL = "equal"
    #: It was launched after a refit, with the weights from before.
    BEHIND = "weights-behind"
    #: A refit failed on it: what it has now is unknown.
    FAILED = "refit-failed"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the state of one replica depends on.

    Attributes:
        ready: Its own word.
        lapsed: Whether its lease ran out.
        draining: Whether it is to get no more.
        idle: Whether no request of a client is in flight on it, for certain.
        resolved: Whether the address of its host is known.
        weights: How its weights stand.
        health: What the probes say.
    """

    ready: bool = True
    lapsed: bool = False
    draining: bool = False
    idle: bool = False
    resolved: bool = True
    weights: Weights = Weights.EQUAL
    health: Health = field(default_factory=Health)


@dataclass(frozen=True, slots=True)
class Standing:
    """The verdict on one replica.

    Attributes:
        weight: Share of new requests, 1 to 100; 0 when it is not in rotation.
        reasons: Why it is not in rotation, or not fully.
    """

    state: State
    weight: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def in_rotation(self) -> bool:
        """Whether it gets new requests."""
        return self.weight > 0


def ramp(recovered: float | None, now: float, seconds: float) -> int:
    """Return the weight after a recovery: 10 to 100 in steps of 10 over so many seconds."""
    if recovered is None or seconds <= 0 or now - recovered >= seconds:
        return FULL_WEIGHT
    step = math.floor(max(0.0, now - recovered) / seconds * _STEPS)
    return _FIRST_WEIGHT * (step + 1)


def judge(facts: Facts, now: float, slow_start_seconds: float) -> Standing:
    """Return where a replica stands: the first of the reasons against it names its state."""
    health = facts.health
    against: list[tuple[State, str]] = []
    if facts.lapsed:
        against.append((State.LOST, "lease-lapsed"))
    if facts.draining:
        against.append((State.DRAINED if facts.idle else State.DRAINING, "drain-asked"))
    fallen = State.UNHEALTHY if health.proven else State.JOINING
    if not facts.ready:
        against.append((fallen, "not-ready"))
    if not facts.resolved:
        against.append((fallen, "name-unresolved"))
    if not health.up:
        against.append((fallen, health.why))
    if facts.weights is not Weights.EQUAL:
        against.append((State.UNHEALTHY, str(facts.weights)))
    if against:
        return Standing(against[0][0], 0, tuple(reason for _, reason in against))
    weight = ramp(health.recovered, now, slow_start_seconds)
    if weight < FULL_WEIGHT:
        return Standing(State.SLOW_START, weight, ("recovered",))
    return Standing(State.READY, FULL_WEIGHT)


@dataclass(frozen=True, slots=True)
class Quorum:
    """Whether the pool as a whole can be counted on.

    Attributes:
        in_rotation: How many replicas get requests.
        total: How many there are.
        min_ready: How many it takes.
        reasons: Why it is not ready; empty when it is.
    """

    in_rotation: int
    total: int
    min_ready: int
    reasons: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing stands against it."""
        return not self.reasons

    @property
    def status(self) -> str:
        """In one word: all of it, some of it or nothing of it serves."""
        if self.in_rotation == 0:
            return "unhealthy"
        return "healthy" if self.in_rotation == self.total and self.ready else "degraded"


def quorum(standings: Mapping[str, Standing], min_ready: int, *, draining: bool) -> Quorum:
    """Return whether enough replicas are in rotation, and the balancer is not leaving."""
    serving = sum(standing.in_rotation for standing in standings.values())
    reasons: list[str] = []
    if draining:
        reasons.append("balancer-draining")
    if serving < min_ready:
        reasons.append(f"{serving} in rotation, {min_ready} needed")
        reasons += [
            f"{name}: {standing.state} ({', '.join(standing.reasons)})"
            for name, standing in sorted(standings.items())
            if not standing.in_rotation
        ]
    return Quorum(serving, len(standings), min_ready, tuple(reasons))
