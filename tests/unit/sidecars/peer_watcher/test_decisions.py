"""Single decisions that no history of two RayClusters shows: the policy by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from peer_watcher.facts import (
    ABSENT,
    NO_HEAD,
    HeadFacts,
    HeadMark,
    HeadReading,
    LeaseFacts,
    Members,
    Met,
    Namespace,
    NamespaceReading,
    ObjectFacts,
    ObjectReading,
    Observation,
    Outcome,
    Ref,
    RegistryFacts,
    RegistryReading,
    Target,
    Unknown,
    View,
)
from peer_watcher.policy import Action, Decision, Health, Phase, Policy, State
from support.fake_run import DRIVER, GYM, LEASE_SECONDS, LIMITS, RL

RAYJOB, JOBSET = Ref("RayJob", "rl"), Ref("JobSet", "gym")
UP = ObjectFacts("u", started=True, ready=True)
POD = HeadFacts("pod-1")
NO_ANSWER = Unknown("403")
MET = {RL: Met("rl-1", up=True), GYM: Met("gym-1", up=True), DRIVER: Met("driver-1", up=True)}


class By:
    """A policy that a test shows one thing after the other, a second apart."""

    def __init__(self, members: Members) -> None:
        self.policy = Policy(members, LIMITS)
        self.state, self.now = State(), 0.0

    def see(
        self, views: Mapping[Ref, ObjectReading], *, head: HeadReading = POD,
        confirmed: bool = True, namespace: NamespaceReading = Namespace.ACTIVE,
        registry: RegistryReading = None,
    ) -> Decision:  # fmt: skip
        seen = {
            ref: View(obj, head) if isinstance(obj, ObjectFacts) and "Ray" in ref.kind
            else View(obj)
            for ref, obj in views.items()
        }  # fmt: skip
        self.now += 1.0
        self.state, decision = self.policy.step(
            self.state, Observation(seen, registry, namespace, confirmed), self.now
        )
        return decision

    def seconds_until_it_acts(
        self, views: Mapping[Ref, ObjectReading], *, head: HeadReading = POD,
        registry: RegistryReading = None, most: int = 200,
    ) -> tuple[float, str]:  # fmt: skip
        """Show the same again and again; return after how long it acts, and by which rule."""
        for seconds in range(most):
            decision = self.see(views, head=head, registry=registry)
            if decision.action is not Action.WAIT:
                return seconds, decision.rule
        return most, ""

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
        decision = by.see({RAYJOB: replace(UP, settling=True)}, head=ABSENT)
        assert decision.action is Action.WAIT
    assert by.phase(RAYJOB) is Phase.STARTING
    by.see({RAYJOB: UP})
    assert by.phase(RAYJOB) is Phase.UP
    assert by.see({RAYJOB: UP}, head=ABSENT).rule == "head-lost"


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
    assert by.see(views, head=ABSENT).rule == "head-lost"


# -- patience ------------------------------------------------------------------------------

#: Two sides that are up; the JobSet has no head that could be lost.
BOTH: dict[Ref, ObjectReading] = {RL: UP, JOBSET: replace(UP, uid="g")}
NOT_READY = HeadFacts("pod-1", ready=False)
#: Nothing came of it in all the time that a test shows it.
NEVER = (200.0, "")


def both_up(
    own: ObjectFacts = UP, *, head: HeadReading = POD, registry: RegistryReading = None
) -> By:
    by = By(Members(RL, JOBSET, registry="registry"))
    by.see({**BOTH, RL: own}, head=head, registry=registry)
    assert by.phase(RL) is by.phase(JOBSET) is Phase.UP
    return by


def told(*renewed: str, run: str = "u") -> RegistryFacts:
    """Return a registry with leases `a`, `b`… that were renewed at these moments."""
    leases = [
        LeaseFacts(key, at, LEASE_SECONDS, run) for key, at in zip("abc", renewed, strict=False)
    ]
    return RegistryFacts("r", leases=tuple(lease for lease in leases if lease.renewed))


def test_a_head_that_is_not_ready_has_its_whole_patience() -> None:
    # The pod is newer than the word of its operator, which still says that all is well.
    found = both_up().seconds_until_it_acts(BOTH, head=NOT_READY)
    assert found == (LIMITS.not_ready_seconds, "head-not-ready")


def test_a_head_whose_loss_is_made_up_for_has_its_whole_patience() -> None:
    tolerant = replace(UP, tolerant=True)
    found = both_up(tolerant).seconds_until_it_acts({**BOTH, RL: tolerant}, head=ABSENT)
    assert found == (LIMITS.replacement_seconds, "head-not-replaced")


def test_a_side_is_not_up_before_its_head_is_ready_whatever_its_operator_says() -> None:
    by = By(Members(RL))
    for head in (NOT_READY, replace(POD, deleting=True), replace(POD, phase="Pending"), ABSENT):
        by.see({RL: UP}, head=head)
        assert by.phase(RL) is Phase.STARTING


def test_a_side_is_not_up_before_all_of_it_was_started() -> None:
    by = By(Members(RL))
    by.see({RL: replace(UP, started=False)})
    assert by.phase(RL) is Phase.STARTING


def test_a_head_is_not_back_when_there_is_nowhere_to_look_for_it() -> None:
    tolerant = replace(UP, tolerant=True)
    by = both_up(tolerant)
    for head in (ABSENT, NO_HEAD):
        by.see({**BOTH, RL: tolerant}, head=head)
        assert by.phase(RL) is Phase.REPLACING


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("ready", [None, True])
def test_a_head_that_cannot_be_read_is_not_dead(*, tolerant: bool, ready: bool | None) -> None:
    # The operator says nothing of it, or that it is well and why.
    own = replace(UP, tolerant=tolerant)
    by = both_up(own)
    hidden = replace(own, ready=ready, ready_reason="HeadPodRunningAndReady")
    assert by.seconds_until_it_acts({**BOTH, RL: hidden}, head=NO_ANSWER) == NEVER
    assert by.phase(RL) is Phase.UP


def test_what_the_operator_says_of_a_head_that_cannot_be_read_is_told() -> None:
    for words, evidence in (
        ("PodFailed", "RayCluster/rl: PodFailed"),
        ("", "RayCluster/rl: the operator says that the head is not ready"),
    ):
        by, own = both_up(), replace(UP, ready=False, ready_reason=words)
        found = by.seconds_until_it_acts({**BOTH, RL: own}, head=NO_ANSWER)
        assert found == (LIMITS.not_ready_seconds, "head-not-ready")
        assert by.see({**BOTH, RL: own}, head=NO_ANSWER).evidence == (evidence,)


def test_pods_that_cannot_be_made_have_their_whole_patience() -> None:
    broken = {**BOTH, RL: replace(UP, replica_failure="exceeded quota")}
    found = both_up().seconds_until_it_acts(broken)
    assert found == (LIMITS.replica_failure_seconds, "replica-failure")


def test_pods_that_cannot_be_made_yet_are_no_failure_of_a_side_that_starts() -> None:
    starting = ObjectFacts("u", replica_failure="exceeded quota")
    by = By(Members(RL, JOBSET))
    assert by.seconds_until_it_acts({RL: starting, JOBSET: ABSENT}, head=ABSENT) == NEVER


def test_a_peer_that_does_not_come_has_the_whole_patience() -> None:
    found = By(Members(RL, JOBSET)).seconds_until_it_acts({RL: UP, JOBSET: ABSENT})
    assert found == (LIMITS.startup_seconds, "never-started")


def test_a_driver_has_a_while_to_end_after_a_side_that_ended_well() -> None:
    by = By(Members(RL, JOBSET, DRIVER))
    views = {**BOTH, JOBSET: replace(UP, uid="g", ended=Outcome.SUCCEEDED)}
    by.see({**views, DRIVER: ObjectFacts("d", started=True)})
    assert by.phase(JOBSET) is Phase.ENDED
    # It may have ended too, as long as it cannot be read.
    assert by.seconds_until_it_acts({**views, DRIVER: NO_ANSWER}) == NEVER
    goes_on = {**views, DRIVER: ObjectFacts("d", started=True)}
    found = by.seconds_until_it_acts(goes_on)
    assert found == (LIMITS.ended_early_seconds, "ended-early")


@pytest.mark.parametrize("hidden", [RL, JOBSET])
def test_nobody_is_late_while_it_or_who_waits_for_it_cannot_be_read(hidden: Ref) -> None:
    by = By(Members(RL, JOBSET))
    views: dict[Ref, ObjectReading] = {RL: UP, JOBSET: ABSENT}
    by.see(views)
    assert by.seconds_until_it_acts({**views, hidden: NO_ANSWER}) == NEVER


@pytest.mark.parametrize(
    ("own", "head"), [(NO_ANSWER, POD), (replace(UP, ready=None), NO_ANSWER)], ids=["object", "pod"]
)
def test_a_moment_without_an_answer_takes_nothing_from_patience(
    own: ObjectReading, head: HeadReading
) -> None:
    by = both_up()
    for _ in range(15):
        by.see(BOTH, head=NOT_READY)
    for _ in range(3):
        assert by.see({**BOTH, RL: own}, head=head).action is Action.WAIT
    found = by.seconds_until_it_acts(BOTH, head=NOT_READY)
    assert found == (LIMITS.not_ready_seconds - 18, "head-not-ready")


def test_patience_starts_anew_when_it_was_well_between_whatever_else_is_not_known() -> None:
    by = both_up()
    for _ in range(15):
        by.see(BOTH, head=NOT_READY)
    by.see({**BOTH, JOBSET: NO_ANSWER})
    found = by.seconds_until_it_acts(BOTH, head=NOT_READY)
    assert found == (LIMITS.not_ready_seconds, "head-not-ready")


# -- suspend, resume and starts anew -------------------------------------------------------


def test_a_resume_that_left_no_mark_on_the_object_starts_it_anew() -> None:
    by = both_up()
    by.see({**BOTH, RL: replace(UP, suspended=True)}, head=ABSENT)
    assert by.phase(RL) is Phase.SUSPENDED
    # `started` is of before the suspend; the new head is on its way.
    assert by.see(BOTH, head=ABSENT).action is Action.WAIT
    assert by.phase(RL) is Phase.STARTING


def test_a_start_anew_that_nobody_saw_sets_leases_aside() -> None:
    by = both_up(registry=told("t0"))
    again = {**BOTH, JOBSET: replace(UP, uid="g", marker="#1")}
    assert by.seconds_until_it_acts(again, registry=told("t0")) == NEVER


def test_a_head_that_is_seen_for_the_first_time_sets_no_lease_aside() -> None:
    by = both_up(head=NO_ANSWER, registry=told("t0"))
    by.see(BOTH, registry=told("t0"))
    assert by.seconds_until_it_acts(BOTH, registry=told("t0"))[1] == "lease-expired"


# -- leases --------------------------------------------------------------------------------


def test_a_lease_has_its_own_seconds_and_the_grace() -> None:
    found = both_up(registry=told("t0")).seconds_until_it_acts(BOTH, registry=told("t0"))
    assert found == (LEASE_SECONDS + LIMITS.lease_grace_seconds, "lease-expired")


def test_a_lease_from_before_the_first_start_counts_as_soon_as_everything_is_up() -> None:
    by = By(Members(RL, JOBSET))
    by.see({**BOTH, JOBSET: ObjectFacts("g")}, registry=told("t0"))
    assert by.seconds_until_it_acts(BOTH, registry=told("t0"))[1] == "lease-expired"


def test_a_lease_that_first_shows_while_a_side_is_away_counts_from_its_next_renewal() -> None:
    by = both_up(registry=told("", "t0"))
    away = {**BOTH, RL: replace(UP, suspended=True)}
    by.see(away, registry=told("t0", "t0"))
    assert by.seconds_until_it_acts(BOTH, registry=told("t0", "t0")) == NEVER
    assert by.see(BOTH, registry=told("t1", "t0")).action is Action.WAIT
    assert by.seconds_until_it_acts(BOTH, registry=told("t1", "t0"))[1] == "lease-expired"


# -- what is told --------------------------------------------------------------------------


def raised(decision: Decision) -> list[tuple[str, bool]]:
    return [(alert.rule, alert.raised) for alert in decision.alerts]


def test_an_owner_that_cannot_be_read_is_not_gone() -> None:
    by = By(Members(RL, JOBSET))
    owned = {**BOTH, JOBSET: replace(UP, uid="g", controller="Queue/q")}
    assert raised(by.see(owned)) == [("owned", True)]
    assert raised(by.see({**BOTH, JOBSET: NO_ANSWER})) == []
    assert raised(by.see(BOTH)) == [("owned", False)]


def test_an_owner_is_told_of_whatever_else_cannot_be_read() -> None:
    by = By(Members(RL, JOBSET))
    assert raised(by.see({RL: replace(UP, controller="Queue/q"), JOBSET: NO_ANSWER})) == [
        ("owned", True)
    ]


def test_a_registry_that_was_never_there_is_late_not_deleted() -> None:
    by = both_up(registry=ABSENT)
    assert raised(by.see(BOTH, registry=ABSENT)) == []


def test_a_registry_that_cannot_be_read_is_not_there_again() -> None:
    by = both_up(registry=told())
    assert raised(by.see(BOTH, registry=ABSENT)) == [("registry-missing", True)]
    assert raised(by.see(BOTH, registry=NO_ANSWER)) == []
    assert raised(by.see(BOTH, registry=told())) == [("registry-missing", False)]


def test_all_that_is_not_known_is_told() -> None:
    policy, hidden = Policy(Members(RL, GYM, DRIVER), LIMITS), View(UP, Unknown("429"))
    seen = Observation({RL: hidden, GYM: View(Unknown("503"))}, Unknown("401"))
    _, decision = policy.step(State(), seen, 0.0)
    assert decision.unknown == (
        "head of RayCluster/rl: 429", "RayCluster/gym: 503", "Job/driver: not looked at yet",
        "registry: 401",
    )  # fmt: skip


def test_staleness_counts_from_when_all_was_known_last() -> None:
    by = both_up()
    for _ in range(2 * int(LIMITS.staleness_seconds)):
        assert by.see(BOTH).stale_seconds == 0
    hidden = {**BOTH, JOBSET: NO_ANSWER}
    for seconds in range(1, int(LIMITS.staleness_seconds)):
        decision = by.see(hidden)
        assert (decision.stale_seconds, decision.alerts) == (seconds, ())
    assert raised(by.see(hidden)) == [("staleness", True)]
    assert raised(by.see(BOTH)) == [("staleness", False)]


def test_health_is_told_of_every_object() -> None:
    by = By(Members(RL, JOBSET, DRIVER))
    by.see({**BOTH, DRIVER: ObjectFacts("d")})
    seen = by.see({RL: UP, JOBSET: NO_ANSWER, DRIVER: ABSENT})
    assert seen.health == {
        RL: Health.HEALTHY, JOBSET: Health.UNKNOWN, DRIVER: Health.FAILED,
    }  # fmt: skip


def test_nothing_is_said_of_health_before_what_was_met_is_known() -> None:
    by = By(Members(RL, JOBSET))
    decision = by.see({**BOTH, RL: NO_ANSWER})
    assert decision.health == {RL: Health.UNKNOWN, JOBSET: Health.UNKNOWN}


def test_of_several_causes_the_first_is_named_and_all_are_told() -> None:
    by = By(Members(RL, JOBSET, DRIVER))
    by.see({**BOTH, DRIVER: ObjectFacts("d")})
    done = ObjectFacts("d", ended=Outcome.SUCCEEDED)
    decision = by.see({**BOTH, DRIVER: done}, head=ABSENT)
    assert decision.rule == "succeeded"
    assert [fact.split(":")[0] for fact in decision.evidence] == ["Job/driver", "head-lost"]


def test_another_object_that_ended_well_says_nothing_of_the_run() -> None:
    by = By(Members(RL, JOBSET, DRIVER))
    by.see({**BOTH, DRIVER: ObjectFacts("d")})
    other = ObjectFacts("d-2", ended=Outcome.SUCCEEDED)
    verdict = by.see({**BOTH, DRIVER: other}).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.outcome) == ("replaced", Outcome.FAILED)


@pytest.mark.parametrize(
    ("head", "rule", "reason"),
    [
        (HeadFacts("pod-1", "p", deleting=True), "head-lost", "head pod p is being deleted"),
        # A container's last restart is of no interest once the whole pod goes.
        (HeadFacts("pod-1", "p", 1, deleting=True), "head-lost", "head pod p is being deleted"),
        (HeadFacts("pod-1", "p", 1), "head-restarted", "head pod p restarted 1 times"),
        (HeadFacts("pod-1", "p", phase="Failed", reason="Evicted"), "head-lost",
         "head pod p is Failed (Evicted)"),
        (HeadFacts("pod-1", "p", deleting=True, taken=True, reason="Preempted: for another"),
         "head-evicted", "head pod p is being deleted (Preempted: for another)"),
        # Another pod in its place: whoever takes that one away has not ended the run.
        (HeadFacts("pod-2", "p", deleting=True, taken=True), "head-lost",
         "head pod p took the place of pod-1"),
    ],
)  # fmt: skip
def test_how_a_head_was_lost_is_told(head: HeadFacts, rule: str, reason: str) -> None:
    decision = both_up().see(BOTH, head=head)
    assert (decision.rule, decision.reason) == (
        rule,
        f"the head of RayCluster/rl is lost: {reason}",
    )


def test_what_a_program_says_when_its_pod_is_taken_away_is_no_cause() -> None:
    by = By(Members(RL, JOBSET, DRIVER, "registry"))
    by.see({**BOTH, DRIVER: ObjectFacts("d")}, registry=told())
    taken = HeadFacts("pod-1", "p", deleting=True, taken=True)
    said = replace(told(), error="told to stop (SIGTERM)", error_runs=frozenset({"u"}))
    decision = by.see({**BOTH, DRIVER: ObjectFacts("d")}, head=taken, registry=said)
    assert decision.rule == "head-evicted"
    assert any("told to stop" in fact for fact in decision.evidence)


def test_a_teardown_takes_what_was_met_and_the_registry_and_nothing_else() -> None:
    by = By(Members(RL, JOBSET, DRIVER, "registry"))
    views = {**BOTH, DRIVER: ABSENT}
    by.see(views)
    verdict = by.see({**views, RL: ABSENT}, registry=told()).verdict
    assert verdict is not None
    assert verdict.targets == (
        Target(RL, "u"), Target(JOBSET, "g"), Target(Ref("ConfigMap", "registry"), "r"),
    )  # fmt: skip


# -- no run --------------------------------------------------------------------------------

NOTHING: dict[Ref, ObjectReading] = {RL: ABSENT, JOBSET: ABSENT}


def test_that_there_is_no_run_is_looked_at_twice() -> None:
    by = By(Members(RL, JOBSET))
    for _ in range(int(LIMITS.startup_seconds)):
        assert by.see(NOTHING).action is Action.WAIT
    first = by.see(NOTHING, confirmed=False)
    assert (first.action, first.rule) == (Action.CONFIRM, "no-run")
    second = by.see(NOTHING)
    assert (second.action, second.rule, second.verdict) == (Action.STAND_DOWN, "no-run", None)


def test_a_moment_without_an_answer_takes_nothing_from_the_wait_for_a_run() -> None:
    by = By(Members(RL, JOBSET))
    for _ in range(40):
        by.see(NOTHING)
    by.see({**NOTHING, JOBSET: NO_ANSWER})
    found = by.seconds_until_it_acts(NOTHING)
    assert found == (LIMITS.startup_seconds - 41, "no-run")


def test_the_rest_of_a_former_run_is_no_run_yet_but_not_none_either() -> None:
    by = By(Members(RL, JOBSET))
    rest = {**NOTHING, JOBSET: replace(UP, uid="old", deleting=True)}
    assert by.seconds_until_it_acts(rest) == NEVER
    assert by.seconds_until_it_acts(NOTHING) == (LIMITS.startup_seconds, "no-run")


# -- memory --------------------------------------------------------------------------------

KEPT = {RL: Met("u", up=True), JOBSET: Met("g", up=True)}


#: The peer's watcher keeps what rests with its own side.
AS_PEER = {**KEPT, JOBSET: replace(KEPT[JOBSET], aside=("a",))}


def aside(*keys: str) -> dict[Ref, Met]:
    return {**KEPT, RL: replace(KEPT[RL], aside=keys)}


def test_nothing_is_taken_for_met_before_what_was_met_is_known() -> None:
    by = By(Members(RL, JOBSET))
    anew: dict[Ref, ObjectReading] = {RL: NO_ANSWER, JOBSET: replace(UP, uid="g-2")}
    assert by.see(anew).action is Action.WAIT
    assert by.see({**anew, RL: replace(UP, record=KEPT)}).rule == "replaced"


def test_the_own_record_is_waited_for_since_the_peers_may_be_older() -> None:
    by = By(Members(RL, JOBSET))
    peer = replace(UP, uid="g", record=KEPT)
    by.see({RL: NO_ANSWER, JOBSET: peer}, registry=told("t0"))
    views: dict[Ref, ObjectReading] = {RL: replace(UP, record=aside("a")), JOBSET: peer}
    assert by.seconds_until_it_acts(views, registry=told("t0")) == NEVER


def test_leases_that_only_the_peers_older_record_sets_aside_count() -> None:
    by = By(Members(RL, JOBSET))
    views: dict[Ref, ObjectReading] = {
        RL: replace(UP, record=KEPT), JOBSET: replace(UP, uid="g", record=AS_PEER),
    }  # fmt: skip
    assert by.seconds_until_it_acts(views, registry=told("t0"))[1] == "lease-expired"


def test_the_own_record_of_a_head_counts_more_than_the_peers() -> None:
    by = By(Members(RL, JOBSET))
    own = {**KEPT, RL: Met("u", head=HeadMark("pod-1", 1), up=True)}
    old = {**KEPT, RL: Met("u", head=HeadMark("pod-1", 0), up=True)}
    views: dict[Ref, ObjectReading] = {
        RL: replace(UP, record=own), JOBSET: replace(UP, uid="g", record=old),
    }  # fmt: skip
    assert by.see(views, head=replace(POD, restarts=1)).action is Action.WAIT
    assert by.see(views, head=replace(POD, restarts=2)).reason.endswith("restarted 1 times")


def test_what_a_record_says_of_objects_of_no_part_in_the_run_is_left_out() -> None:
    by = By(Members(RL, JOBSET))
    by.see({**BOTH, RL: replace(UP, record={**KEPT, DRIVER: Met("d", up=True)})})
    verdict = by.see({**BOTH, RL: ABSENT}).verdict
    assert verdict is not None
    assert verdict.targets == (Target(RL, "u"), Target(JOBSET, "g"))


def test_a_record_is_learned_once_and_not_again_from_an_old_copy() -> None:
    by = By(Members(RL, JOBSET))
    views = {**BOTH, RL: replace(UP, record=aside("a"))}
    for renewed in ("t0", "t1", "t2"):
        by.see(views, registry=told(renewed))
    assert by.seconds_until_it_acts(views, registry=told("t2"))[1] == "lease-expired"


def test_a_record_is_kept_up_while_the_peer_may_not_be_read() -> None:
    by = By(Members(RL, JOBSET))
    old = {**KEPT, RL: Met("u")}
    decision = by.see({RL: replace(UP, record=old), JOBSET: NO_ANSWER})
    assert decision.record == {**KEPT, RL: Met("u", "", HeadMark("pod-1", 0), up=True)}


def test_a_record_holds_what_was_met_and_the_leases_that_rest() -> None:
    by = By(Members(RL, JOBSET, DRIVER))
    registry = told("t0", "t0", "t0")
    views = {**BOTH, DRIVER: ABSENT}
    by.see(views, registry=registry)
    again = by.see({**views, RL: replace(UP, marker="#1")}, registry=registry).record
    assert again == {
        RL: Met("u", "#1", HeadMark("pod-1", 0), up=True, aside=("a", "b", "c")),
        JOBSET: Met("g", up=True),
    }


def test_a_record_is_not_written_again_when_it_stands_there() -> None:
    by = By(Members(RL, JOBSET))
    record = by.see(BOTH).record
    assert record is not None
    assert by.see({**BOTH, RL: replace(UP, record=record)}).record is None


def test_what_was_met_is_not_written_on_the_rest_of_a_former_run() -> None:
    by = By(Members(RL, JOBSET))
    assert by.see({**BOTH, RL: replace(UP, uid="old", deleting=True)}).record is None
