"""The pool as a whole: what it is told, and what Envoy and the next manager are told of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from vllm_pool.core.health import Kind, Probe, Result
from vllm_pool.core.membership import Registration
from vllm_pool.core.refit import Answer
from vllm_pool.core.rotation import State
from vllm_pool.dataplane.config import Backend
from vllm_pool.dataplane.stats import BackendStats
from vllm_pool.manager.pool import ABSENT_SECONDS, IDLE_SECONDS, Pool, Rules

OK = Answer(200, {})


@dataclass
class World:
    """A pool and a clock that a test moves."""

    now: float = 100.0
    pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(Rules(slow_start_seconds=0), lambda: self.now)

    def join(self, name: str, host: str = "10.0.0.1", port: int = 8000, **fields: Any) -> None:
        """Register a replica, without any answer to a probe."""
        self.pool.register(Registration(name, f"http://{host}:{port}", **fields), "api")

    def serve(self, name: str, host: str = "10.0.0.1", port: int = 8000, **fields: Any) -> None:
        """Register a replica and let its probes pass."""
        self.join(name, host, port, **fields)
        self.probe(name, Kind.HTTP)
        self.probe(name, Kind.CANARY)

    def probe(self, name: str, kind: Kind, result: Result = Result.OK, **more: Any) -> bool:
        """Take an answer of a probe of the launch that is known."""
        launch = self.pool.membership.members[name].launch
        return self.pool.probed(name, launch, Probe(kind, result), **more)

    def later(self, seconds: float) -> None:
        """Let time pass, as a manager that is awake sees it."""
        while seconds > 0:
            step = min(seconds, ABSENT_SECONDS / 2)
            self.now += step
            seconds -= step
            self.pool.tick()

    def states(self) -> dict[str, State]:
        """Return the state of each."""
        return {name: standing.state for name, standing in self.pool.standings().items()}


@pytest.fixture
def world() -> World:
    return World()


def test_a_replica_serves_once_both_probes_have_passed(world: World) -> None:
    world.join("a")
    assert world.pool.backends() == []
    world.probe("a", Kind.HTTP)
    assert world.states() == {"a": State.JOINING}
    assert world.probe("a", Kind.CANARY)
    assert world.pool.backends() == [Backend("a", "10.0.0.1", 8000)]


def test_a_relaunch_has_to_show_that_it_serves(world: World) -> None:
    world.serve("a", epoch=1)
    world.join("a", port=9000, epoch=2)
    assert world.states() == {"a": State.JOINING}
    assert world.pool.backends() == []


def test_an_answer_of_an_earlier_launch_says_nothing(world: World) -> None:
    world.serve("a", epoch=1)
    old = world.pool.membership.members["a"].launch
    world.join("a", epoch=2)
    for kind in Kind:
        assert not world.pool.probed("a", old, Probe(kind, Result.OK))
    assert world.states() == {"a": State.JOINING}


def test_one_that_is_out_finishes_what_it_has(world: World) -> None:
    world.serve("a")
    world.serve("b", port=8001)
    for _ in range(2):
        world.probe("b", Kind.CANARY, Result.FAILED)
    assert world.states()["b"] is State.UNHEALTHY
    assert [(each.id, each.draining) for each in world.pool.backends()] == [
        ("a", False), ("b", True),
    ]  # fmt: skip


def test_a_late_canary_of_one_that_works_takes_nobody_out(world: World) -> None:
    world.serve("a")
    for _ in range(9):
        world.probe("a", Kind.CANARY, Result.LATE, progress=True)
    assert world.states() == {"a": State.READY}
    for _ in range(2):
        world.probe("a", Kind.CANARY, Result.LATE, progress=False)
    assert world.states() == {"a": State.UNHEALTHY}


def test_a_lease_that_ran_out_takes_one_out_and_later_makes_it_forgotten(world: World) -> None:
    world.serve("a", lease_seconds=10)
    world.serve("b", port=8001, lease_seconds=10)
    for _ in range(3):
        world.later(4)
        world.join("b", port=8001, lease_seconds=10)
    assert world.states() == {"a": State.LOST, "b": State.READY}
    for _ in range(80):
        world.later(4)
        world.join("b", port=8001, lease_seconds=10)
    assert world.states() == {"b": State.READY}


def test_when_all_fall_silent_at_once_those_that_answer_us_go_on(world: World) -> None:
    world.serve("a", lease_seconds=10)
    world.serve("b", port=8001, lease_seconds=10)
    world.later(30)
    assert world.states() == {"a": State.READY, "b": State.READY}
    for _ in range(2):
        world.probe("b", Kind.HTTP, Result.FAILED)
    assert world.states() == {"a": State.READY, "b": State.LOST}
    world.later(300)
    assert world.states() == {}


def test_a_manager_that_was_stopped_holds_no_silence_against_anybody(world: World) -> None:
    world.serve("a", lease_seconds=10)
    world.serve("b", port=8001, lease_seconds=100)
    world.now += 60
    world.pool.tick()
    assert world.states() == {"a": State.READY, "b": State.READY}
    world.later(11)
    assert world.states() == {"a": State.LOST, "b": State.READY}


def test_drained_is_only_what_envoy_has_left_alone_and_seen_idle_for_a_while(world: World) -> None:
    world.serve("a")
    world.pool.measured({"a": BackendStats(active=1)})
    world.pool.drain("a", draining=True)
    for active, draining in ((1, True), (0, False)):
        world.pool.measured({"a": BackendStats(active=active, draining=draining)})
        world.now += 10
        assert world.states() == {"a": State.DRAINING}
    world.pool.measured({"a": BackendStats(active=0, draining=True)})
    assert world.states() == {"a": State.DRAINING}
    world.now += IDLE_SECONDS
    world.pool.measured({"a": BackendStats(active=0, draining=True)})
    assert world.states() == {"a": State.DRAINED}


def test_a_look_from_before_the_drain_does_not_count(world: World) -> None:
    world.serve("a")
    # Envoy has not read yet that there is one, and so it has nothing.
    world.pool.measured({})
    world.now += 10
    world.pool.drain("a", draining=True)
    assert world.states() == {"a": State.DRAINING}
    world.pool.measured({"a": BackendStats(active=1, draining=True)})
    assert world.states() == {"a": State.DRAINING}


def test_one_that_envoy_does_not_know_is_drained_when_two_looks_say_so(world: World) -> None:
    world.serve("a")
    world.pool.drain("a", draining=True)
    world.pool.measured({})
    assert world.states() == {"a": State.DRAINING}
    world.now += IDLE_SECONDS
    assert world.states() == {"a": State.DRAINING}
    world.pool.measured({})
    assert world.states() == {"a": State.DRAINED}


def test_a_drain_that_was_taken_back_begins_anew(world: World) -> None:
    world.serve("a")
    idle = {"a": BackendStats(draining=True)}
    world.pool.drain("a", draining=True)
    world.pool.measured(idle)
    world.now += IDLE_SECONDS
    world.pool.measured(idle)
    assert world.states() == {"a": State.DRAINED}
    world.pool.drain("a", draining=False)
    world.pool.drain("a", draining=True)
    assert world.states() == {"a": State.DRAINING}


def test_while_envoy_does_not_answer_nothing_is_drained(world: World) -> None:
    world.serve("a")
    world.pool.drain("a", draining=True)
    assert world.states() == {"a": State.DRAINING}
    world.pool.measured({"a": BackendStats(draining=True)})
    world.now += 10
    world.pool.measured({"a": BackendStats(draining=True)})
    assert world.states() == {"a": State.DRAINED}
    world.pool.measured(None)
    assert world.states() == {"a": State.DRAINING}


def test_one_that_never_served_is_drained_at_once(world: World) -> None:
    world.join("a")
    world.pool.drain("a", draining=True)
    assert world.states() == {"a": State.DRAINED}


def test_one_address_is_one_replica_the_one_that_serves(world: World) -> None:
    world.serve("old", lease_seconds=1)
    world.serve("other", port=8001, lease_seconds=1000)
    world.later(5)
    world.serve("new")
    assert world.states()["old"] is State.LOST
    assert [each.id for each in world.pool.backends()] == ["new", "other"]


def test_a_name_is_told_to_envoy_once_its_address_is_known(world: World) -> None:
    world.serve("a", host="judge-0.judge")
    assert world.pool.names() == {"judge-0.judge"}
    assert world.pool.backends() == []
    world.pool.resolved("judge-0.judge", "10.0.0.9")
    assert world.pool.backends() == [Backend("a", "10.0.0.9", 8000)]


def test_a_refit_goes_to_all_that_live_and_to_none_else(world: World) -> None:
    world.serve("a")
    world.serve("b", port=8001)
    world.pool.drain("b", draining=True)
    world.join("joining", port=8002)
    world.serve("sick", port=8003)
    for _ in range(2):
        world.probe("sick", Kind.HTTP, Result.FAILED)
    assert set(world.pool.targets()) == {"a", "b"}


def test_an_answer_of_a_launch_that_was_replaced_meanwhile_does_not_count(world: World) -> None:
    world.serve("a", epoch=1)
    world.serve("b", port=8001)
    launches = {name: member.launch for name, member in world.pool.membership.members.items()}
    world.serve("a", port=9000, epoch=2)
    world.pool.called("/update_weights", dict.fromkeys(launches.items(), OK), "v1")
    assert world.states() == {"a": State.UNHEALTHY, "b": State.READY}
    assert world.pool.standings()["a"].reasons == ("weights-behind",)


def test_who_was_told_to_rest_is_not_asked_for_tokens(world: World) -> None:
    world.serve("a")
    world.pool.calling(["a"])
    assert world.pool.halted("a")
    for _ in range(5):
        world.probe("a", Kind.CANARY, Result.LATE)
    world.pool.called("/pause", {("a", world.pool.membership.members["a"].launch): OK}, None)
    world.pool.called_over(["a"])
    assert world.pool.halted("a")
    assert world.states() == {"a": State.READY}
    world.pool.called("/resume", {("a", world.pool.membership.members["a"].launch): OK}, None)
    assert not world.pool.halted("a")


def test_the_next_manager_knows_what_the_one_before_knew(world: World) -> None:
    world.serve("a", lease_seconds=10, epoch=3, weight_version="v0")
    world.serve("b", host="judge-1", port=8001)
    world.pool.resolved("judge-1", "10.0.0.8")
    world.serve("out", port=8002)
    for _ in range(2):
        world.probe("out", Kind.CANARY, Result.FAILED)
    launches = {name: member.launch for name, member in world.pool.membership.members.items()}
    world.pool.called(
        "/update_weights",
        {(name, launches[name]): OK if name == "a" else Answer(500) for name in ("a", "b")}, "v1",
    )  # fmt: skip
    world.pool.drain("a", draining=True)
    told = json.loads(json.dumps(world.pool.memory()))
    after = World(now=7.0)
    after.pool.remember(told)
    assert after.pool.memory() == world.pool.memory()
    assert after.pool.backends() == world.pool.backends()
    assert [row.standing for row in after.pool.rows() if row.member.id != "a"] == [
        row.standing for row in world.pool.rows() if row.member.id != "a"
    ]


def test_leases_begin_anew_with_a_new_manager(world: World) -> None:
    world.serve("a", lease_seconds=10)
    world.serve("lost", port=8001, lease_seconds=1)
    world.serve("free", port=8002)
    world.later(9)
    after = World(now=1e6)
    after.pool.remember(world.pool.memory())
    assert after.states() == {"a": State.READY, "lost": State.LOST, "free": State.READY}
    after.later(9)
    assert after.states()["a"] is State.READY


@pytest.mark.parametrize("wrong", [{}, {"members": [{}]}, {"members": 3, "weights": {}}, []])
def test_a_memory_that_cannot_be_read_changes_nothing(world: World, wrong: Any) -> None:
    world.serve("a")
    with pytest.raises((LookupError, TypeError, ValueError)):
        world.pool.remember(wrong)
    assert world.states() == {"a": State.READY}
