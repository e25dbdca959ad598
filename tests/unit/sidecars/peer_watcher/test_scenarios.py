"""Situations with a stated outcome, and the proof that each rule is needed for one of them.

A scenario is a story with an expectation. All of them hold with all rules; leave any one rule
out, and at least one scenario fails: no rule is there for nothing, and none can be lost
without a test going red.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from peer_watcher.facts import (
    HeadFacts,
    LeaseFacts,
    Members,
    Namespace,
    ObjectFacts,
    Observation,
    Outcome,
    Ref,
    View,
)
from peer_watcher.policy import CAUSES, RULES, Action, Policy, State
from support.fake_run import (
    DRIVER,
    GYM,
    LEASE_SECONDS,
    LIMITS,
    RL,
    KillError,
    Run,
)

Story = Callable[[Run], None]


class ToldWrongError(AssertionError):
    """A scenario that did not end as it should."""


def need(*, holds: bool, what: str) -> None:
    if not holds:
        raise ToldWrongError(what)


@dataclass(frozen=True)
class Scenario:
    """A story and how it has to end."""

    name: str
    story: Story
    #: Rules that this scenario is there for.
    needs: tuple[str, ...]
    driver: bool = True
    tolerant: tuple[Ref, ...] = ()
    applied: bool = True

    def play(self, disabled: frozenset[str] = frozenset()) -> Run:
        run = Run(
            driver=self.driver, tolerant=self.tolerant, disabled=disabled, applied=self.applied
        )
        self.story(run)
        return run


def ended(run: Run, rule: str, *, within: float, outcome: Outcome = Outcome.FAILED) -> None:
    """Let the time pass that the verdict may take, and check it."""
    run.pass_time(within)
    need(holds=bool(run.world.verdicts), what=f"no verdict within {within:g} s")
    verdict = run.world.verdicts[0]
    need(holds=verdict.rule == rule, what=f"rule {verdict.rule}, expected {rule}")
    need(holds=verdict.outcome is outcome, what=f"outcome {verdict.outcome}")
    need(holds=bool(verdict.reason) and bool(verdict.evidence), what="nothing said")


def unharmed(run: Run, seconds: float, step: float = 1.0) -> None:
    run.pass_time(seconds, step)
    need(holds=run.world.torn_down_at is None, what="torn down")
    need(holds=not any(watch.over for watch in run.watches), what="a watcher gave up")


def alerts(run: Run, rule: str) -> list[list[bool]]:
    return [[alert.raised for alert in watch.alerts if alert.rule == rule] for watch in run.watches]


SCENARIOS: list[Scenario] = []


def scenario(
    *needs: str, driver: bool = True, tolerant: tuple[Ref, ...] = (), applied: bool = True
) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        name = story.__name__.replace("_", " ")
        SCENARIOS.append(Scenario(name, story, needs, driver, tolerant, applied))
        return story

    return add


# -- real deaths ---------------------------------------------------------------------------


@scenario("succeeded")
def the_driver_ends_well(run: Run) -> None:
    run.world.end_driver("Complete")
    ended(run, "succeeded", within=2, outcome=Outcome.SUCCEEDED)
    # The finished Job keeps its logs; both sides are gone.
    need(holds=run.world.driver is not None, what="the finished driver was deleted")
    need(holds=not run.world.sides, what="a side is left")


@scenario("ended-failed")
def the_driver_fails(run: Run) -> None:
    run.world.end_driver("Failed")
    ended(run, "ended-failed", within=2)
    need(holds=not run.world.sides, what="a side is left")


@scenario("registry-error")
def a_program_writes_error(run: Run) -> None:
    run.world.write_error("gym: out of memory")
    ended(run, "registry-error", within=2)
    need(holds="gym: out of memory" in run.world.verdicts[0].reason, what="the cause is not told")


@scenario("deleted")
def a_person_deletes_the_peer(run: Run) -> None:
    run.world.delete(GYM)
    ended(run, "deleted", within=2)


@scenario("deleted")
def a_person_deletes_the_driver(run: Run) -> None:
    run.world.delete(DRIVER)
    ended(run, "deleted", within=2)


@scenario("replaced")
def a_side_is_deleted_and_made_anew(run: Run) -> None:
    for watch in run.watches:
        watch.fault = "503"
    run.pass_time(2)
    run.world.delete(GYM)
    run.world.apply(GYM)
    fresh = run.world.sides[GYM].uid
    run.pass_time(2)
    for watch in run.watches:
        watch.fault = ""
    ended(run, "replaced", within=2)
    need(holds=(GYM, fresh) not in run.world.deleted, what="another incarnation was deleted")
    need(holds=RL not in run.world.sides, what="the old side is left")


@scenario("terminating")
def a_side_is_being_deleted_and_a_finalizer_holds_it(run: Run) -> None:
    run.world.sides[GYM].deleting = True
    run.world.die("gym is being deleted", 2)
    ended(run, "terminating", within=2)


@scenario("head-lost")
def a_head_is_evicted(run: Run) -> None:
    run.world.lose_head(GYM, how="evicted")
    ended(run, "head-lost", within=2)
    need(holds="Evicted" in run.world.verdicts[0].reason, what="the cause is not told")


@scenario("head-lost")
def a_head_is_gone_and_back_before_anyone_looks(run: Run) -> None:
    run.world.lose_head(RL, how="deleted")
    for watch in run.watches:
        watch.fault = "reset"
    run.pass_time(6)
    for watch in run.watches:
        watch.fault = ""
    ended(run, "head-lost", within=2)


@scenario("head-lost")
def a_head_is_lost_that_was_never_seen_but_told_of(run: Run) -> None:
    # The operator said Ready; the pods could not be read at the time.
    watch = run.watches[0]
    run.watches[1].over = True
    watch.blind_to_pods = True
    watch.restart()
    run.world.sides[RL].annotations.clear()
    run.world.sides[GYM].annotations.clear()
    run.pass_time(3)
    member = watch.state.members[GYM]
    need(holds=member.phase == "up" and member.head is None, what=f"{member}")
    run.world.lose_head(GYM, how="failed")
    watch.blind_to_pods = False
    ended(run, "head-lost", within=2)


@scenario("head-evicted")
def a_head_is_preempted_and_programs_are_told_to_stop(run: Run) -> None:
    run.world.write_error("the driver was told to stop (SIGTERM)")
    run.world.lose_head(GYM, how="preempted")
    ended(run, "head-evicted", within=2)
    need(holds="to accommodate another" in run.world.verdicts[0].reason, what="no cause")


@scenario("head-restarted")
def rays_container_restarts_in_place(run: Run) -> None:
    run.world.lose_head(RL, how="restarted")
    ended(run, "head-restarted", within=2)


@scenario("head-not-ready")
def a_head_hangs(run: Run) -> None:
    run.world.hang_head(RL)
    ended(run, "head-not-ready", within=LIMITS.not_ready_seconds + 2)


@scenario("head-not-replaced", tolerant=(GYM,))
def a_lost_head_does_not_come_back(run: Run) -> None:
    run.world.lose_head(GYM, how="evicted", comes_back=False)
    unharmed(run, LIMITS.replacement_seconds - 3)
    ended(run, "head-not-replaced", within=5)


@scenario("replica-failure", tolerant=(GYM,))
def the_operator_cannot_make_pods(run: Run) -> None:
    run.world.sides[GYM].replica_failure = "FailedCreateWorkerPod: exceeded quota"
    run.world.die("no pods for gym", LIMITS.replica_failure_seconds + 2)
    ended(run, "replica-failure", within=LIMITS.replica_failure_seconds + 2)
    need(holds="exceeded quota" in run.world.verdicts[0].evidence[0], what="cause not told")


@scenario("lease-expired")
def a_program_dies_without_a_word(run: Run) -> None:
    run.world.stop_heartbeat("gym_head_server")
    ended(run, "lease-expired", within=LEASE_SECONDS + LIMITS.lease_grace_seconds + 3)


@scenario("never-started", applied=False)
def one_side_waits_for_a_peer_that_never_comes(run: Run) -> None:
    run.world.apply(RL)
    run.world.apply(DRIVER)
    run.pass_time(4)
    unharmed(run, LIMITS.startup_seconds - 5)
    run.world.die("gym never came", 10)
    ended(run, "never-started", within=7)


@scenario("never-started", applied=False)
def both_sides_wait_for_a_driver_that_is_never_scheduled(run: Run) -> None:
    run.world.apply_all()
    assert run.world.driver is not None
    run.world.driver["status"] = {"active": 1, "ready": 0}
    run.pass_time(4)
    unharmed(run, LIMITS.startup_seconds - 5)
    run.world.die("the driver never ran", 10)
    ended(run, "never-started", within=7)
    need(holds=not run.world.sides, what="a side is left")


# -- what is none --------------------------------------------------------------------------


@scenario("start-up", applied=False)
def the_peer_is_applied_late(run: Run) -> None:
    run.world.apply(RL)
    run.world.apply(DRIVER)
    unharmed(run, LIMITS.startup_seconds - 10)
    run.world.apply(GYM)
    unharmed(run, 120)


@scenario("start-up", applied=False)
def both_sides_queue_for_an_hour(run: Run) -> None:
    # Nobody holds anything, so nobody waits in vain.
    for ref in (RL, GYM):
        run.world.apply(ref)
        run.world.sides[ref].heads_from = None
    run.world.apply(DRIVER)
    unharmed(run, 3600, 5)


@scenario("no-run", applied=False)
def a_watcher_is_started_after_the_run_is_over_and_gone(run: Run) -> None:
    unharmed(run, LIMITS.startup_seconds - 2)
    run.pass_time(5)
    need(holds=all(watch.over for watch in run.watches), what="a watcher waits for ever")
    rules = {watch.decision.rule for watch in run.watches if watch.decision}
    need(holds=rules == {"no-run"}, what=f"{rules}")
    need(holds=not run.world.verdicts and run.world.registry is not None, what="deleted something")


@scenario("start-up", applied=False)
def both_sides_are_applied_late(run: Run) -> None:
    unharmed(run, LIMITS.startup_seconds - 5)
    run.world.apply_all()
    unharmed(run, 3 * LIMITS.startup_seconds)
    # What was there once is not `no run` when it is gone.
    run.world.delete(GYM)
    ended(run, "deleted", within=2)


@scenario("unknown", applied=False)
def what_may_not_be_read_is_not_said_to_be_no_run(run: Run) -> None:
    for watch in run.watches:
        watch.faults_of = {GYM: "403"}
    unharmed(run, 4 * LIMITS.startup_seconds)


@scenario("suspend", "resume")
def a_side_is_suspended_for_an_hour_and_resumed(run: Run) -> None:
    run.world.suspend(GYM)
    unharmed(run, 3600, 2)
    run.world.resume(GYM)
    unharmed(run, 60)


@scenario("resume")
def a_suspend_and_resume_that_nobody_saw(run: Run) -> None:
    for watch in run.watches:
        watch.fault = "timeout"
    run.world.suspend(GYM)
    run.pass_time(4)
    run.world.resume(GYM)
    run.pass_time(8)
    for watch in run.watches:
        watch.fault = ""
    unharmed(run, 60)


@scenario("confirm")
def pods_vanish_before_the_suspend_is_seen(run: Run) -> None:
    for watch in run.watches:
        watch.lag = {"objects": 3}
    run.pass_time(6)
    run.world.suspend(GYM)
    unharmed(run, 60)


@scenario("tolerance", tolerant=(GYM,))
def a_tolerant_head_is_evicted_and_replaced(run: Run) -> None:
    run.world.lose_head(GYM, how="evicted")
    unharmed(run, 60)
    run.world.lose_head(GYM, how="restarted")
    unharmed(run, 60)


@scenario("unknown", "staleness")
def the_api_server_is_gone_for_ten_minutes(run: Run) -> None:
    for watch in run.watches:
        watch.fault = "NetworkError"
    unharmed(run, 600)
    need(holds=alerts(run, "staleness") == [[True], [True]], what="not one alert each")
    need(holds=all(w.decision and w.decision.stale_seconds > 590 for w in run.watches),
         what="staleness is not told")  # fmt: skip
    for watch in run.watches:
        watch.fault = ""
    unharmed(run, 60)
    need(holds=alerts(run, "staleness") == [[True, False], [True, False]], what="not withdrawn")
    # Afterwards everything is as before: a death is seen at once.
    run.world.lose_head(GYM, how="failed")
    ended(run, "head-lost", within=2)


@scenario("unknown")
def only_one_object_may_not_be_read(run: Run) -> None:
    for watch in run.watches:
        watch.faults_of = {GYM: "403"}
    unharmed(run, 600, 2)
    run.world.end_driver("Failed")
    ended(run, "ended-failed", within=3)


@scenario("settle")
def patience_starts_anew_after_an_outage(run: Run) -> None:
    run.world.blink(GYM)
    run.world.sides[GYM].head.ready_at += 3600  # type: ignore[union-attr]
    run.pass_time(LIMITS.not_ready_seconds - 5)
    for watch in run.watches:
        watch.fault = "503"
    run.pass_time(60)
    for watch in run.watches:
        watch.fault = ""
    # Nodes and operators catch up with what happened meanwhile.
    unharmed(run, LIMITS.not_ready_seconds - 5)
    run.world.sides[GYM].head.ready_at = 0  # type: ignore[union-attr]
    unharmed(run, 60)


@scenario("lease-pause", tolerant=(GYM,))
def leases_rest_while_a_head_is_being_replaced(run: Run) -> None:
    run.pass_time(5)
    run.world.lose_head(GYM, how="evicted")
    run.world.sides[GYM].heads_from = run.world.now + LEASE_SECONDS + LIMITS.lease_grace_seconds + 5
    unharmed(run, 60)


def heard_again(run: Run) -> None:
    """Once programs show themselves again, their silence means what it did before."""
    unharmed(run, 5)
    run.world.stop_heartbeat("gym_head_server")
    ended(run, "lease-expired", within=LEASE_SECONDS + LIMITS.lease_grace_seconds + 3)


@scenario("lease-anew")
def leases_rest_while_a_side_is_suspended(run: Run) -> None:
    run.pass_time(5)
    run.world.suspend(RL)
    unharmed(run, 10 * (LEASE_SECONDS + LIMITS.lease_grace_seconds))
    run.world.resume(RL)
    unharmed(run, 60)
    heard_again(run)


@scenario("lease-anew")
def programs_start_long_after_a_resume(run: Run) -> None:
    run.world.program_start_seconds = 200
    run.world.suspend(GYM)
    unharmed(run, 60)
    run.world.resume(GYM)
    unharmed(run, 210)
    heard_again(run)


@scenario("lease-anew")
def programs_withdrew_before_a_suspend_and_start_late_after_it(run: Run) -> None:
    run.world.programs_withdraw = True
    programs_start_long_after_a_resume(run)


@scenario("lease-anew", tolerant=(GYM,))
def programs_start_late_in_a_head_that_took_over(run: Run) -> None:
    run.world.program_start_seconds = 200
    run.world.lose_head(GYM, how="evicted")
    unharmed(run, 210)
    heard_again(run)


@scenario("lease-anew", "memory")
def watchers_restart_while_programs_start_after_a_resume(run: Run) -> None:
    run.world.program_start_seconds = 200
    run.world.suspend(GYM)
    unharmed(run, 60)
    run.world.resume(GYM)
    unharmed(run, 20)
    for watch in run.watches:
        watch.restart()
    unharmed(run, 190)
    heard_again(run)


@scenario("lease-anew")
def a_suspend_and_resume_that_nobody_saw_and_programs_that_start_late(run: Run) -> None:
    run.world.program_start_seconds = 200
    for watch in run.watches:
        watch.fault = "timeout"
    # One more renewal, which they see only after the resume: it is of the program before.
    run.pass_time(2)
    run.world.suspend(GYM)
    run.pass_time(4)
    run.world.resume(GYM)
    run.pass_time(10)
    for watch in run.watches:
        watch.fault = ""
    unharmed(run, 210)
    heard_again(run)


@scenario()
def a_head_that_blinks_does_not_set_leases_aside(run: Run) -> None:
    run.world.tolerant.add(GYM)
    run.world.blink(GYM)
    run.world.heartbeats["gym_head_server"] = False
    run.world.die("its program died", LEASE_SECONDS + LIMITS.lease_grace_seconds + 10)
    ended(run, "lease-expired", within=LEASE_SECONDS + LIMITS.lease_grace_seconds + 10)


@scenario("foreign-error")
def an_error_of_a_former_run_is_left_over(run: Run) -> None:
    run.world.write_error("the last run failed", run="rl-0")
    unharmed(run, 60)


@scenario("foreign-lease")
def a_lease_of_a_former_run_is_left_over(run: Run) -> None:
    assert run.world.registry is not None
    old = LeaseFacts("generation_server_url", "t0", LEASE_SECONDS, "rl-0")
    leases = (*run.world.registry.leases, old)
    run.world.registry = replace(run.world.registry, leases=leases)
    unharmed(run, 10 * (LEASE_SECONDS + LIMITS.lease_grace_seconds))


@scenario("registry-missing")
def a_person_deletes_the_registry(run: Run) -> None:
    kept = run.world.registry
    run.world.registry = None
    unharmed(run, 10)
    need(holds=alerts(run, "registry-missing") == [[True], [True]], what="not one alert each")
    run.world.registry = kept
    unharmed(run, 10)
    need(holds=alerts(run, "registry-missing") == [[True, False]] * 2, what="not withdrawn")


@scenario("owned")
def a_side_belongs_to_another_object(run: Run) -> None:
    run.world.sides[GYM].controller = "gym-job"
    unharmed(run, 10)
    need(holds=alerts(run, "owned") == [[True], [True]], what="not one alert each")
    told = [alert.message for alert in run.watches[0].alerts]
    need(holds="RayCluster/gym belongs to RayJob/gym-job" in told[0], what="not told which")


@scenario("namespace-terminating")
def the_namespace_goes(run: Run) -> None:
    run.world.namespace = Namespace.TERMINATING
    run.world.delete(GYM)
    run.pass_time(5)
    need(holds=all(watch.over for watch in run.watches), what="a watcher goes on")
    need(holds=not run.world.verdicts, what="torn down")
    actions = {watch.decision.action for watch in run.watches if watch.decision}
    need(holds=actions == {Action.STAND_DOWN}, what=f"{actions}")


# -- watchers that die ---------------------------------------------------------------------


@scenario("memory")
def the_peer_is_deleted_while_the_watchers_are_down(run: Run) -> None:
    run.world.delete(GYM)
    for watch in run.watches:
        watch.restart()
    ended(run, "deleted", within=2)


@scenario("memory")
def this_side_is_deleted_while_its_watcher_is_down(run: Run) -> None:
    run.watches[1].fault = "partition"
    run.pass_time(2)
    run.world.delete(RL)
    # It finds what the other side's watcher wrote down.
    run.watches[0].restart()
    ended(run, "deleted", within=2)


@scenario("memory")
def a_head_is_replaced_while_the_watchers_are_down(run: Run) -> None:
    run.world.lose_head(RL, how="deleted")
    run.world.tick(2)
    run.world.tick(5)
    for watch in run.watches:
        watch.restart()
    ended(run, "head-lost", within=2)


@scenario("verdict-found")
def a_watcher_finds_a_verdict(run: Run) -> None:
    run.world.write_error("died")
    run.watches[1].over = True
    # One second of the other watcher, which writes its verdict and dies before it deletes.
    before = dict(run.world.sides)
    run.pass_time(1)
    [verdict] = run.world.verdicts
    run.world.verdicts.clear()
    run.world.torn_down_at = None
    run.world.sides = before
    run.world.sides[RL].annotations["tandem.dev/verdict"] = verdict.to_json()
    # What it saw is no longer to be seen.
    run.world.registry = None
    run.watches[0].over = False
    run.watches[0].restart()
    run.pass_time(2)
    need(holds=bool(run.world.verdicts), what="the teardown was not finished")
    need(holds=run.world.verdicts[0] == verdict, what="another verdict")
    need(holds=not run.world.sides, what="a side is left")


@scenario("verdict-found")
def a_verdict_on_another_incarnation_means_nothing(run: Run) -> None:
    a_watcher_finds_a_verdict(run)
    text = run.world.verdicts[0].to_json()
    again = Run(applied=False, disabled=run.disabled)
    again.world._uids = 500
    again.world.apply_all()
    again.world.sides[RL].annotations["tandem.dev/verdict"] = text
    unharmed(again, 30)


@scenario("ended-early")
def a_side_ends_well_before_the_driver(run: Run) -> None:
    side, driver = Ref("JobSet", "gym"), Ref("RayJob", "rl")
    policy = Policy(Members(driver, side, driver), LIMITS, disabled=run.disabled)
    done = ObjectFacts("gym-1", ended=Outcome.SUCCEEDED, frees_itself=True)
    goes_on = ObjectFacts("rl-1", started=True, ready=True)
    views = {side: View(done), driver: View(goes_on, HeadFacts("pod-1"))}
    state, now, actions = State(), 0.0, []
    while now <= LIMITS.ended_early_seconds + 1:
        state, decision = policy.step(state, Observation(views, confirmed=True), now)
        actions.append(decision.action)
        now += 1.0
    need(holds=actions[:-2] == [Action.WAIT] * (len(actions) - 2), what="no patience")
    need(holds=decision.rule == "ended-early", what=f"rule {decision.rule}")
    need(holds=actions[-1] is Action.TEARDOWN, what=f"{actions[-1]}")


BY_NAME = {each.name: each for each in SCENARIOS}


@pytest.mark.parametrize("name", BY_NAME)
def test_it_ends_as_stated(name: str) -> None:
    BY_NAME[name].play()


def survives(rule: str) -> bool:
    """Whether every scenario still holds without a rule; those made for it go first."""
    order = sorted(SCENARIOS, key=lambda each: rule not in each.needs)
    for each in order:
        try:
            each.play(frozenset({rule}))
        except (KillError, ToldWrongError):
            return False
    return True


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_is_there_for_nothing(rule: str) -> None:
    assert not survives(rule), f"nothing shows that rule {rule} is needed"


def test_every_rule_has_a_scenario_that_is_there_for_it() -> None:
    assert {rule for each in SCENARIOS for rule in each.needs} == set(RULES)


def test_causes_are_told_in_words() -> None:
    assert all(words and not words.endswith(".") for words in CAUSES.values())
