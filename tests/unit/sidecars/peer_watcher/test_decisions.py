"""Single decisions that no history of two RayClusters shows: the policy by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from peer_watcher.facts import (
    ABSENT,
    HeadFacts,
    Members,
    Met,
    Namespace,
    NamespaceReading,
    ObjectFacts,
    ObjectReading,
    Observation,
    Outcome,
    Ref,
    Unknown,
    View,
)
from peer_watcher.policy import Action, Decision, Phase, Policy, State
from support.fake_run import DRIVER, GYM, LIMITS, RL

RAYJOB, JOBSET = Ref("RayJob", "rl"), Ref("JobSet", "gym")
UP = ObjectFacts("u", started=True, ready=True)
MET = {RL: Met("rl-1", up=True), GYM: Met("gym-1", up=True), DRIVER: Met("driver-1", up=True)}


class By:
    """A policy that a test shows one thing after the other, a second apart."""

    def __init__(self, members: Members) -> None:
        self.policy = Policy(members, LIMITS)
        self.state, self.now = State(), 0.0

    def see(
        self, views: Mapping[Ref, ObjectReading], *, head: bool = True, confirmed: bool = True,
        namespace: NamespaceReading = Namespace.ACTIVE,
    ) -> Decision:  # fmt: skip
        pod = HeadFacts("pod-1") if head else ABSENT
        seen = {
            ref: View(obj, pod) if isinstance(obj, ObjectFacts) and "Ray" in ref.kind else View(obj)
            for ref, obj in views.items()
        }
        self.now += 1.0
        self.state, decision = self.policy.step(
            self.state, Observation(seen, namespace=namespace, confirmed=confirmed), self.now
        )
        return decision

    def phase(self, ref: Ref) -> Phase:
        return self.state.members[ref].phase


def test_without_a_driver_every_side_that_can_end_must() -> None:
    by = By(Members(RAYJOB, JOBSET))
    done = replace(UP, ended=Outcome.SUCCEEDED)
    assert by.see({RAYJOB: done, JOBSET: replace(UP, uid="g")}).action is Action.WAIT
    decision = by.see({RAYJOB: done, JOBSET: replace(done, uid="g")})
    assert (decision.action, decision.rule) == (Action.TEARDOWN, "succeeded")
    assert decision.verdict is not None
    assert decision.verdict.outcome is Outcome.SUCCEEDED


def test_a_run_of_one_rayjob_ends_with_it() -> None:
    by = By(Members(RAYJOB))
    assert by.see({RAYJOB: UP}).action is Action.WAIT
    assert by.see({RAYJOB: replace(UP, ended=Outcome.SUCCEEDED)}).rule == "succeeded"


def test_a_raycluster_never_ends_so_its_job_alone_decides() -> None:
    by = By(Members(RL, JOBSET))
    views = {RL: UP, JOBSET: replace(UP, uid="g", ended=Outcome.SUCCEEDED)}
    assert by.see(views).rule == "succeeded"


def test_what_settles_has_no_head_to_lose() -> None:
    by = By(Members(RAYJOB))
    by.see({RAYJOB: UP})
    assert by.phase(RAYJOB) is Phase.UP
    # The operator starts the job again under the same cluster's name; its pods are gone.
    for _ in range(100):
        decision = by.see({RAYJOB: replace(UP, settling=True)}, head=False)
        assert decision.action is Action.WAIT
    assert by.phase(RAYJOB) is Phase.STARTING
    by.see({RAYJOB: UP})
    assert by.phase(RAYJOB) is Phase.UP
    assert by.see({RAYJOB: UP}, head=False).rule == "head-lost"


def test_a_deletion_of_what_was_never_met_is_of_a_former_run() -> None:
    by = By(Members(RL, GYM))
    views: dict[Ref, ObjectReading] = {RL: UP, GYM: replace(UP, uid="old", deleting=True)}
    assert by.see(views).action is Action.WAIT
    assert by.state.members[GYM].uid == ""
    views[GYM] = replace(UP, uid="new")
    assert by.see(views).action is Action.WAIT
    assert by.see({RL: UP, GYM: replace(UP, uid="new", deleting=True)}).rule == "terminating"


@pytest.mark.parametrize("namespace", [ABSENT, Namespace.TERMINATING])
def test_a_namespace_that_goes_or_is_gone_is_left_alone(namespace: NamespaceReading) -> None:
    by = By(Members(RL, GYM))
    by.see({RL: UP, GYM: replace(UP, uid="g")})
    decision = by.see({RL: ABSENT, GYM: ABSENT}, namespace=namespace)
    assert (decision.action, decision.rule) == (Action.STAND_DOWN, "namespace-terminating")
    assert decision.verdict is None


def test_a_record_that_was_copied_from_another_run_is_not_ours() -> None:
    by = By(Members(RL, GYM, DRIVER))
    # Somebody exported rl with its annotations and applied it anew: another UID.
    copy = replace(UP, uid="rl-2", record=MET)
    assert by.see({RL: copy, GYM: ABSENT, DRIVER: ABSENT}).action is Action.WAIT
    assert by.state.members[GYM].uid == ""
    assert by.state.members[RL].uid == "rl-2"


@pytest.mark.parametrize("hidden", [Unknown("503"), Unknown("403")])
def test_what_was_met_is_not_forgotten_since_its_keeper_cannot_be_read(hidden: Unknown) -> None:
    by = By(Members(RL, GYM, DRIVER))
    driver = ObjectFacts("driver-1", started=True)
    assert by.see({RL: ABSENT, GYM: hidden, DRIVER: driver}).action is Action.WAIT
    kept = replace(UP, uid="gym-1", record=MET)
    decision = by.see({RL: ABSENT, GYM: kept, DRIVER: driver})
    assert (decision.action, decision.rule) == (Action.TEARDOWN, "deleted")


def test_what_the_peer_remembers_is_learned_as_soon_as_it_can_be_read() -> None:
    by = By(Members(RL, GYM, DRIVER))
    own = replace(UP, uid="rl-1")
    first = by.see({RL: own, GYM: Unknown("503"), DRIVER: ABSENT})
    assert first.action is Action.WAIT
    assert first.record is None, "a part would be taken for the whole"
    kept = replace(UP, uid="gym-1", record=MET)
    assert by.see({RL: own, GYM: kept, DRIVER: ABSENT}).rule == "deleted"


def test_a_side_that_lives_is_judged_while_the_other_may_not_be_read() -> None:
    by = By(Members(RL, GYM))
    views: dict[Ref, ObjectReading] = {RL: UP, GYM: Unknown("403")}
    assert by.see(views).action is Action.WAIT
    assert by.see(views, head=False).rule == "head-lost"
