"""Random histories: no kill without a cause, and every real death acted on in time.

What is true is what the rules below did (`World.died`); the policy has no part in it. A death
must be acted on within its own patience, counted from when at least one watcher that can know
of it sees clearly; while all of them are cut off, nothing can be asked of them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from peer_watcher.facts import Ref
from support.fake_run import DRIVER, GYM, LIMITS, RL, SIDES, Run, Watch

FAULTS = ("NetworkError", "Unauthorized", "Forbidden", "TooManyRequests", "ServerError", "hang")
#: Beyond a death's own patience: a step, and what a lagging view costs.
SLACK_SECONDS = 4.0

sides = st.sampled_from(SIDES)
watchers = st.integers(0, 1)
moments = st.integers(0, 6)
OTHERS = ("hang", "delete", "end", "error", "heartbeat")
LOSSES = ("evicted", "preempted", "failed", "deleted", "restarted")
#: Deaths come after this, so that most of them find a run that has lived.
BEGINNING_ENDS = 1025.0


class Histories(RuleBasedStateMachine):
    """Everything that can happen to a run, in any order."""

    run: Run

    @initialize(
        tolerant=st.sets(sides), driver=st.booleans(), last=st.sampled_from([*LOSSES, *OTHERS]),
        # Mostly a run that is up; now and then one that still has to come up.
        missing=st.sampled_from([set[Ref]()] * 6 + [{GYM}, {RL, DRIVER}]),
        # Longer than any lease, and shorter.
        start=st.sampled_from([0.0, 5.0, 90.0]), withdraw=st.booleans(),
    )  # fmt: skip
    def begin(
        self, tolerant: set[Ref], missing: set[Ref], last: str, start: float, *, driver: bool,
        withdraw: bool,
    ) -> None:  # fmt: skip
        self.last = last
        self.run = Run(driver=driver, tolerant=tolerant, applied=False)
        self.run.world.programs_withdraw = withdraw
        for ref in (*SIDES, DRIVER):
            if ref not in missing and (ref != DRIVER or driver):
                self.run.world.apply(ref)
        self.run.pass_time(8.0)
        # The first start is awaited by the run itself; what comes later must not be a surprise.
        self.run.world.program_start_seconds = start

    def _there(self, ref: Ref) -> bool:
        if ref == DRIVER:
            return self.run.world.driver is not None
        return ref in self.run.world.sides

    @property
    def _goes_on(self) -> bool:
        return self.run.world.died is None and not self.run.over

    def _can_lose(self, ref: Ref) -> bool:
        side = self.run.world.sides.get(ref)
        head = side.head if side else None
        return bool(
            self._goes_on and side and head and side.provisioned and not side.suspend
            and not side.suspending
            and head.phase == "Running"
        )  # fmt: skip

    # -- what passes by itself ---------------------------------------------------------------

    @rule(ref=st.sampled_from([*SIDES, DRIVER]), then=moments)
    def apply(self, ref: Ref, then: int) -> None:
        """Also after a deletion: that is another incarnation, and the old run stays dead."""
        death = self.run.world.died
        wanted = (ref != DRIVER or self.run.world.with_driver) and (
            death is None or "deleted" in death.what
        )
        if wanted and not self._there(ref) and not self.run.over:
            self.run.world.apply(ref)
        self.run.pass_time(then)

    @rule(ref=sides, then=moments)
    def suspend(self, ref: Ref, then: int) -> None:
        if self._goes_on and self._there(ref):
            self.run.world.suspend(ref)
        self.run.pass_time(then)

    @rule(ref=sides, then=moments)
    def resume(self, ref: Ref, then: int) -> None:
        if self._there(ref):
            self.run.world.resume(ref)
        self.run.pass_time(then)

    @rule(ref=sides, then=moments)
    def lose_a_head_that_is_made_up_for(self, ref: Ref, then: int) -> None:
        if self._can_lose(ref) and self.run.world.sides[ref].tolerant:
            self.run.world.lose_head(ref, how="evicted")
        self.run.pass_time(then)

    @rule(ref=sides, then=moments)
    def blink(self, ref: Ref, then: int) -> None:
        if self._can_lose(ref):
            self.run.world.blink(ref)
        self.run.pass_time(then)

    @rule(what=st.sampled_from(["foreign error", "registry deleted", *["nothing"] * 4]))
    def somebody_meddles(self, what: str) -> None:
        if self._goes_on and what == "foreign error" and self.run.world.registry:
            self.run.world.write_error("old", run="rl-0")
        elif self._goes_on and what == "registry deleted":
            self.run.world.registry = None

    # -- faults of the watchers and of what lies between -------------------------------------

    @rule(index=watchers, fault=st.sampled_from(FAULTS), then=moments)
    def cut_off_one(self, index: int, fault: str, then: int) -> None:
        self.run.watches[index].fault = fault
        self.run.pass_time(then)

    @rule(fault=st.sampled_from(FAULTS), then=moments)
    def cut_off_both(self, fault: str, then: int) -> None:
        for watch in self.run.watches:
            watch.fault = fault
        self.run.pass_time(then)

    @rule(index=watchers, ref=sides, fault=st.sampled_from(FAULTS), then=moments)
    def hide_one_object(self, index: int, ref: Ref, fault: str, then: int) -> None:
        self.run.watches[index].faults_of = {ref: fault}
        self.run.pass_time(then)

    @rule(index=watchers, objects=st.integers(0, 6), pods=st.integers(0, 6), then=moments)
    def lag(self, index: int, objects: int, pods: int, then: int) -> None:
        self.run.watches[index].lag = {"objects": objects, "pods": pods}
        self.run.pass_time(then)

    @rule(then=moments)
    def mend(self, then: int) -> None:
        for watch in self.run.watches:
            watch.fault, watch.faults_of, watch.lag = "", {}, {}
        self.run.pass_time(then)

    @rule(index=watchers)
    def restart_watcher(self, index: int) -> None:
        if not self.run.watches[index].over:
            self.run.watches[index].restart()

    @rule(index=watchers, seconds=st.sampled_from([30.0, 3600.0]))
    def clock_jumps(self, index: int, seconds: float) -> None:
        # A monotonic clock never goes back; a suspended machine lets it leap.
        watch = self.run.watches[index]
        watch.clock_offset += seconds
        watch.clear_since = self.run.world.now

    # -- real deaths -------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from([*LOSSES, *OTHERS]),
        ref=st.sampled_from([*SIDES, DRIVER]), flag=st.booleans(), then=moments,
    )  # fmt: skip
    @precondition(lambda self: self.run.world.now > BEGINNING_ENDS)
    def somebody_dies(self, kind: str, ref: Ref, then: int, *, flag: bool) -> None:
        self._kill(kind, ref, flag=flag)
        self.run.pass_time(then)

    def _kill(self, kind: str, ref: Ref, *, flag: bool) -> None:
        world = self.run.world
        if kind in LOSSES and ref in SIDES and self._can_lose(ref):
            world.lose_head(ref, how=kind, comes_back=flag)
        elif kind == "hang" and ref in SIDES and self._can_lose(ref):
            world.hang_head(ref)
        elif kind == "delete" and self._goes_on and self._there(ref):
            world.delete(ref)
        elif kind == "end" and self._goes_on and world.driver is not None:
            world.end_driver("Complete" if flag else "Failed")
        elif kind == "error" and self._goes_on and world.registry and world.run_uid:
            world.write_error("died")
        elif kind == "heartbeat" and self._goes_on and world.program_lives("gym_head_server"):
            world.stop_heartbeat("gym_head_server")

    # -- time --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([6.0, 15.0, 40.0, 80.0]))
    def pass_long(self, seconds: float) -> None:
        self.run.pass_time(seconds, 2.0)

    @rule()
    @precondition(lambda self: not self.run.over)
    def all_is_well_for_a_while(self) -> None:
        """Without this, histories would be mostly dark and prove little about deaths."""
        for watch in self.run.watches:
            watch.fault, watch.faults_of, watch.lag = "", {}, {}
        for ref in SIDES:
            if self._there(ref):
                self.run.world.resume(ref)
        self.run.pass_time(12.0)

    def teardown(self) -> None:
        """End each history well lit, and with a death: whatever came before, it is seen."""
        if not hasattr(self, "run"):
            return
        world = self.run.world
        for ref in SIDES:
            if not self._there(ref) and world.died is None:
                world.apply(ref)
        self.all_is_well_for_a_while()
        self._kill(self.last, GYM, flag=False)
        # The patience of whatever it was, and what watchers may be busy with.
        self.run.pass_time(LIMITS.startup_seconds + LIMITS.settle_seconds + 60.0)
        self.every_real_death_is_acted_on_in_time()

    # -- the promises ------------------------------------------------------------------------

    @invariant()
    def every_real_death_is_acted_on_in_time(self) -> None:
        if not hasattr(self, "run"):
            return
        death = self.run.world.died
        if death is None or self.run.over:
            return
        late = [watch for watch in self.run.watches if self._is_late(watch)]
        assert not late, f"{death.what} at {death.at:.0f} s: not acted on by {late[0].own}"

    def _is_late(self, watch: Watch) -> bool:
        world, death = self.run.world, self.run.world.died
        assert death is not None
        blind = bool(watch.fault or watch.faults_of or any(watch.lag.values()))
        if watch.over or blind:
            return False
        since = max(death.at, watch.clear_since)
        if death.quiet:
            if world.all_up_since is None:
                return False
            since = max(since, world.all_up_since)
        known = not death.of or death.of in watch.met
        within = death.within
        remembers = any(member.uid for member in watch.state.members.values())
        if not remembers and not any(ref in world.sides for ref in SIDES):
            # Started again while nothing could be read, and now no side is there: the memory went
            # with the object that held it, and so did all that could be freed.
            within += LIMITS.startup_seconds
        return known and world.now - since > within + SLACK_SECONDS


def histories(examples: int, steps: int, *, repeatable: bool = False) -> settings:
    return settings(
        derandomize=repeatable,
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip


def test_histories() -> None:
    """The same ones each time, so that a change is judged by what it changed; the search for
    new ones is the full test's."""
    run_state_machine_as_test(Histories, settings=histories(500, 25, repeatable=True))


@pytest.mark.full
def test_ten_thousand_histories() -> None:
    run_state_machine_as_test(Histories, settings=histories(10_000, 25))


def test_the_limits_of_the_histories_are_those_that_time_passes() -> None:
    assert LIMITS.startup_seconds < 80
    assert {RL, GYM} == set(SIDES)
