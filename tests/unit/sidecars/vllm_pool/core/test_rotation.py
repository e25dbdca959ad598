"""State, weight and quorum."""

from __future__ import annotations

import pytest

from vllm_pool.core.health import Health
from vllm_pool.core.rotation import Facts, Standing, State, Weights, judge, quorum, ramp

GOOD = Health(up=True, proven=True, why="")


def facts(**more: object) -> Facts:
    return Facts(**{"health": GOOD, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (facts(lapsed=True, draining=True), State.LOST, "lease-lapsed"),
        (facts(draining=True), State.DRAINING, "drain-asked"),
        (facts(draining=True, idle=True), State.DRAINED, "drain-asked"),
        (facts(ready=False), State.UNHEALTHY, "not-ready"),
        (facts(resolved=False), State.UNHEALTHY, "name-unresolved"),
        (facts(health=Health()), State.JOINING, "not-probed"),
        (facts(health=Health(proven=True, why="canary-late")), State.UNHEALTHY, "canary-late"),
        (facts(weights=Weights.FAILED), State.UNHEALTHY, "refit-failed"),
        (facts(weights=Weights.BEHIND), State.UNHEALTHY, "weights-behind"),
    ],
)
def test_what_keeps_a_replica_out_names_its_state(seen: Facts, state: State, reason: str) -> None:
    standing = judge(seen, 0.0, 30.0)
    assert (standing.state, standing.in_rotation) == (state, False)
    assert reason in standing.reasons


def test_a_new_replica_gets_all_at_once_and_one_that_recovered_bit_by_bit() -> None:
    assert judge(facts(), 0.0, 30.0) == Standing(State.READY, 100)
    recovered = facts(health=Health(up=True, proven=True, recovered=10.0, why=""))
    assert judge(recovered, 10.0, 30.0) == Standing(State.SLOW_START, 10, ("recovered",))
    assert judge(recovered, 40.0, 30.0) == Standing(State.READY, 100)
    weights = [ramp(10.0, 10.0 + each, 30.0) for each in range(31)]
    assert weights == sorted(weights)
    assert (weights[0], weights[-1], len(set(weights))) == (10, 100, 10)


@pytest.mark.parametrize(
    ("serving", "min_ready", "draining", "ready", "status"),
    [
        (2, 1, False, True, "healthy"),
        (1, 1, False, True, "degraded"),
        (1, 2, False, False, "degraded"),
        (0, 1, False, False, "unhealthy"),
        (2, 1, True, False, "degraded"),
    ],
)
def test_quorum(*, serving: int, min_ready: int, draining: bool, ready: bool, status: str) -> None:
    out = Standing(State.UNHEALTHY, 0, ("canary-late",))
    standings = {f"r{n}": Standing(State.READY, 100) if n < serving else out for n in range(2)}
    found = quorum(standings, min_ready, draining=draining)
    assert (found.ready, found.status) == (ready, status)
    if serving < min_ready:
        assert "r1: unhealthy (canary-late)" in found.reasons
