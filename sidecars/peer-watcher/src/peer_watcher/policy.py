"""Decides. Pure: (state, observation, now) -> (state, decision), and nothing else.

Every rule is either a *cause* (something died, or the run is done) or a *guard* (what looks
like a death and is none). A teardown needs a cause that no guard explains, seen once more in a
confirmed observation: watches of different kinds lag each other, so pods that vanish in one
and the suspend that explains it in the other may come in either order.

Time that a cause has lasted counts only while the API server answers. A gap longer than
`settle_seconds` starts it anew: after an outage the operators and kubelets need a moment
before what they wrote is true again. Wall clocks are never compared; a lease is late when its
renewal has not *changed* for too long on our own clock.

What this does not see: the insides of a head that is Ready and renews its lease, and worker
pods one by one (Ray and the run's own programs judge those and write the registry's `error`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from peer_watcher.facts import (
    ABSENT,
    NO_HEAD,
    Absent,
    HeadFacts,
    HeadMark,
    HeadReading,
    Members,
    Met,
    Namespace,
    NoHead,
    ObjectFacts,
    Observation,
    Outcome,
    Record,
    Ref,
    RegistryFacts,
    Target,
    Unknown,
    Verdict,
    View,
)

#: What ends a run, in the order in which one is named when several hold. The driver's end
#: comes first: what breaks after it is a consequence. So is what programs say of being told to
#: stop when their pods are taken away.
CAUSES: Final[dict[str, str]] = {
    "succeeded": "the driver ended well; without a driver, every side that can end did",
    "head-evicted": "the head pod is taken away: evicted or preempted, as its conditions say",
    "registry-error": "a program of the run wrote `error` into the registry",
    "ended-failed": "a RayJob, JobSet or Job says that it failed",
    "deleted": "an object that was there is gone",
    "replaced": "an object of that name is there, but it is another one (other UID)",
    "terminating": "an object is being deleted",
    "head-lost": "the head pod is gone, failed or being deleted, and its state with it",
    "head-restarted": "Ray's container of the head pod restarted, and the state is lost",
    "head-not-replaced": "a head whose loss is made up for was not ready again in time",
    "head-not-ready": "the head pod has not been Ready for too long",
    "replica-failure": "the operator cannot make pods of a side that was up, for too long",
    "lease-expired": "a program of the run has not renewed its lease in the registry",
    "ended-early": "a side ended well, but the driver goes on without it",
    "never-started": "one side is up and holds its resources; the other does not come",
}
#: What is no reason to end a run, or ends the watch without one.
GUARDS: Final[dict[str, str]] = {
    "verdict-found": "a verdict is written on an object of the run: finish that teardown",
    "unknown": "no answer, 401, 403, 429, 5xx: nothing follows from it",
    "staleness": "not everything is known for too long: one alert, withdrawn when it is again",
    "confirm": "nothing is torn down before a second, direct look says the same",
    "start-up": "an object that was never there is late, not dead",
    "no-run": "no object of the run for the whole start-up time: there is none, nothing to do",
    "suspend": "a suspended object is not dead, however long it takes",
    "resume": "a resumed object starts anew, with a new head",
    "tolerance": "with GCS fault tolerance a new head takes over within a grace",
    "settle": "after a gap in what is known, patience starts anew",
    "lease-pause": "leases count only while every object of the run is up",
    "lease-anew": "after a resume or a new head a lease counts from its next renewal",
    "foreign-error": "an `error` of another run, or of nobody's, is not ours",
    "foreign-lease": "a lease of another run is not ours",
    "registry-missing": "a deleted registry is an alert; those who write it make it again",
    "owned": "what belongs to another object would be made again: an alert says to name that one",
    "namespace-terminating": "the namespace goes, and everything with it: nothing to do",
    "memory": "what was met is remembered across the watcher's own restarts",
}
RULES: Final = {**CAUSES, **GUARDS}


@dataclass(frozen=True, slots=True)
class Limits:
    """Patience, in seconds on the watcher's own monotonic clock."""

    startup_seconds: float = 600.0
    replacement_seconds: float = 300.0
    not_ready_seconds: float = 120.0
    replica_failure_seconds: float = 300.0
    ended_early_seconds: float = 60.0
    lease_grace_seconds: float = 60.0
    staleness_seconds: float = 300.0
    settle_seconds: float = 30.0


class Phase(StrEnum):
    """Where an object of the run is in its life."""

    ABSENT = "absent"
    STARTING = "starting"
    UP = "up"
    REPLACING = "replacing"
    SUSPENDED = "suspended"
    ENDED = "ended"


#: Phases in which a side holds what it asked for.
HOLDING: Final = (Phase.UP, Phase.REPLACING)


class Health(StrEnum):
    """What is said of an object at one moment."""

    HEALTHY = "healthy"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What to do now."""

    WAIT = "wait"
    CONFIRM = "confirm"
    TEARDOWN = "teardown"
    STAND_DOWN = "stand-down"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should know; raised once, withdrawn once."""

    rule: str
    raised: bool
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that holds now."""

    rule: str
    ref: Ref | None
    reason: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and what to tell.

    Attributes:
        action: What to do.
        rule: The rule that decided; empty while waiting.
        reason: A sentence for a person.
        evidence: What was seen, one fact an entry.
        verdict: What to write down before acting, or the one that was found.
        health: Of every object.
        alerts: Raised or withdrawn by this very step.
        record: What to remember on this side's object; None when it stands there already.
        stale_seconds: How long not everything has been known; 0 when it is.
        unknown: What is not known now, with the reasons.
    """

    action: Action
    rule: str = ""
    reason: str = ""
    evidence: tuple[str, ...] = ()
    verdict: Verdict | None = None
    health: Mapping[Ref, Health] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    record: Record | None = None
    stale_seconds: float = 0.0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberState:
    """What is remembered of one object."""

    phase: Phase = Phase.ABSENT
    uid: str = ""
    marker: str = ""
    head: HeadMark | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """How long something has lasted, and when it was last seen to."""

    held: float
    last: float


TimerKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """What the policy remembers from step to step; a new watcher begins with `State()`.

    Attributes:
        members: What is remembered of each object.
        timers: What has lasted, and how long.
        leases: The last renewal that was seen of each lease.
        lease_seconds: How long its writer says that one is good for.
        lease_aside: Leases that do not count until they are renewed once more.
        away: Whether a side that was up is not up again yet.
        known_at: When everything was known last.
        alerts: Those that stand.
        restored: Whether nothing more can be learned from what watchers wrote down.
        registry_seen: Whether the registry was ever there.
    """

    members: Mapping[Ref, MemberState] = field(default_factory=dict)
    timers: Mapping[TimerKey, Timer] = field(default_factory=dict)
    leases: Mapping[str, str] = field(default_factory=dict)
    lease_seconds: Mapping[str, float] = field(default_factory=dict)
    lease_aside: frozenset[str] = frozenset()
    away: bool = False
    known_at: float | None = None
    alerts: frozenset[str] = frozenset()
    restored: bool = False
    registry_seen: bool = False


class Policy:
    """The rules for one run.

    Args of the constructor:
        members: The objects of the run.
        limits: Patience.
        disabled: Rules to leave out; for tests that prove that each one matters.
    """

    def __init__(
        self,
        members: Members,
        limits: Limits | None = None,
        *,
        disabled: frozenset[str] = frozenset(),
    ) -> None:
        """Take the run and the patience."""
        self.members = members
        self.limits = limits or Limits()
        self.disabled = disabled

    def step(self, state: State, seen: Observation, now: float) -> tuple[State, Decision]:
        """Take in one observation and decide."""
        return _Step(self, state, seen, now).run()


class _Step:
    """One step. It mutates only what it made itself."""

    def __init__(self, policy: Policy, state: State, seen: Observation, now: float) -> None:
        self.policy = policy
        self.run_ = policy.members
        self.limits = policy.limits
        self.old = state
        self.now = now
        self.seen = seen if self.on("unknown") else _blind_to_doubt(seen)
        self.members = {ref: state.members.get(ref, MemberState()) for ref in self.run_.all}
        self.timers: dict[TimerKey, Timer] = {}
        self.leases = dict(state.leases)
        self.lease_seconds = dict(state.lease_seconds)
        self.lease_aside = set(state.lease_aside)
        self.away = state.away
        self.registry_seen = state.registry_seen
        self.raised = set(state.alerts)
        self.alerts: list[Alert] = []
        self.findings: list[Finding] = []
        self.health: dict[Ref, Health] = {}

    def on(self, rule: str) -> bool:
        return rule not in self.policy.disabled

    def view(self, ref: Ref) -> View:
        return self.seen.views.get(ref, View(Unknown("not looked at yet")))

    # -- timers and alerts ---------------------------------------------------------------

    def hold(self, rule: str, subject: object, budget: float) -> bool:
        """Count how long something has lasted; return whether patience is at its end."""
        key = (rule, str(subject))
        timer = self.old.timers.get(key)
        gap = max(0.0, self.now - timer.last) if timer else 0.0
        fresh = timer is None or (self.on("settle") and gap > self.limits.settle_seconds)
        held = 0.0 if fresh or timer is None else timer.held + gap
        self.timers[key] = Timer(held, self.now)
        return held >= budget

    def keep(self, subject: object, *rules: str) -> None:
        """Leave timers of a subject as they are: nothing is known of it now."""
        for key, timer in self.old.timers.items():
            if key[1] == str(subject) and (not rules or key[0] in rules):
                self.timers.setdefault(key, timer)

    def alert(self, rule: str, *, when: bool, message: str, over: str) -> None:
        if when and rule not in self.raised:
            self.raised.add(rule)
            self.alerts.append(Alert(rule, raised=True, message=message))
        elif not when and rule in self.raised:
            self.raised.discard(rule)
            self.alerts.append(Alert(rule, raised=False, message=over))

    def found(self, rule: str, ref: Ref | None, reason: str, evidence: str) -> None:
        if self.on(rule):
            self.findings.append(Finding(rule, ref, reason, evidence))

    # -- the step ------------------------------------------------------------------------

    def run(self) -> tuple[State, Decision]:
        unknown = tuple(_unknown_in(self.seen, self.run_))
        known_at = self.now if not unknown or self.old.known_at is None else self.old.known_at
        stale = max(0.0, self.now - known_at)
        self.alert(
            "staleness",
            when=self.on("staleness") and bool(unknown) and stale >= self.limits.staleness_seconds,
            message=f"for {stale:.0f} s not everything was known: {'; '.join(unknown)}",
            over="everything is known again",
        )
        self._owned()
        restored = self.old.restored or self._restore()
        # While this side lives, it can be judged without what the other one remembers.
        lives = isinstance(self.view(self.run_.self_).object, ObjectFacts)
        decision = self._decide(remembers=restored or lives)
        state = State(
            members=self.members,
            timers=self.timers,
            leases=self.leases,
            lease_seconds=self.lease_seconds,
            lease_aside=frozenset(self.lease_aside),
            away=self.away,
            known_at=known_at,
            alerts=frozenset(self.raised),
            restored=restored,
            registry_seen=self.registry_seen,
        )
        return state, replace(
            decision,
            health=self.health,
            alerts=tuple(self.alerts),
            # Not before all is known that is to be in it: it would be taken for the whole.
            record=self._record() if restored else None,
            stale_seconds=stale,
            unknown=unknown,
        )

    def _owned(self) -> None:
        objects = {ref: self.view(ref).object for ref in self.run_.all}
        owned = [
            f"{ref} belongs to {obj.controller}"
            for ref, obj in objects.items()
            if isinstance(obj, ObjectFacts) and obj.controller
        ]
        if owned or not any(isinstance(obj, Unknown) for obj in objects.values()):
            self.alert(
                "owned",
                when=self.on("owned") and bool(owned),
                message=f"{'; '.join(owned)}, which would make it again: watch that one",
                over="every object that is watched belongs to nobody else",
            )

    def _decide(self, *, remembers: bool) -> Decision:
        verdict = self._written()
        if verdict is not None and self.on("verdict-found"):
            return Decision(
                Action.TEARDOWN, "verdict-found", verdict.reason, verdict.evidence, verdict
            )
        if not remembers:
            self.health = dict.fromkeys(self.run_.all, Health.UNKNOWN)
            return Decision(Action.WAIT)
        for ref in self.run_.all:
            self._member(ref)
        self._late()
        self._registry()
        self._ends()
        for ref in self.run_.all:
            failed = any(finding.ref == ref for finding in self.findings)
            known = not isinstance(self.view(ref).object, Unknown)
            well = Health.HEALTHY if known else Health.UNKNOWN
            self.health[ref] = Health.FAILED if failed else well
        going = self.seen.namespace in (Namespace.TERMINATING, ABSENT)
        if going and self.on("namespace-terminating"):
            return Decision(
                Action.STAND_DOWN,
                "namespace-terminating",
                "the namespace is being deleted, and the run with it",
            )
        return self._conclude()

    def _conclude(self) -> Decision:
        if not self.findings:
            return self._without_run() if self._no_run() else Decision(Action.WAIT)
        order = list(CAUSES)
        first, *others = sorted(self.findings, key=lambda finding: order.index(finding.rule))
        evidence = (first.evidence, *(f"{other.rule}: {other.evidence}" for other in others))
        if not self.seen.confirmed and self.on("confirm"):
            return Decision(Action.CONFIRM, first.rule, first.reason, evidence)
        verdict = Verdict(
            rule=first.rule,
            outcome=Outcome.SUCCEEDED if first.rule == "succeeded" else Outcome.FAILED,
            reason=first.reason,
            evidence=evidence,
            targets=tuple(self._targets()),
        )
        return Decision(Action.TEARDOWN, first.rule, first.reason, evidence, verdict)

    def _no_run(self) -> bool:
        """Whether nothing was ever there, for as long as a run may take to be applied."""
        if not self.on("no-run") or any(member.uid for member in self.members.values()):
            return False
        objects = [self.view(ref).object for ref in self.run_.all]
        if any(isinstance(obj, Unknown) for obj in objects):
            self.keep("run", "no-run")
            return False
        absent = all(isinstance(obj, Absent) for obj in objects)
        return absent and self.hold("no-run", "run", self.limits.startup_seconds)

    def _without_run(self) -> Decision:
        """Stand down: the run ended while nobody watched, or there was none."""
        reason = f"no object of the run was there for {self.limits.startup_seconds:g} s: no run"
        evidence = tuple(f"{ref}: not found" for ref in self.run_.all)
        action = Action.STAND_DOWN
        if not self.seen.confirmed and self.on("confirm"):
            action = Action.CONFIRM
        return Decision(action, "no-run", reason, evidence)

    def _targets(self) -> Iterator[Target]:
        for ref, member in self.members.items():
            if member.uid:
                yield Target(ref, member.uid)
        if isinstance(self.seen.registry, RegistryFacts):
            yield Target(Ref("ConfigMap", self.run_.registry), self.seen.registry.uid)

    # -- memory --------------------------------------------------------------------------

    def _restore(self) -> bool:
        """Take over what the watchers wrote down; return whether nothing is left to learn.

        A side that cannot be read now might hold a record, until one was found.
        """
        objects = {ref: self.view(ref).object for ref in self.run_.all}
        if isinstance(objects[self.run_.self_], Unknown):
            return False
        readable = {ref: obj for ref, obj in objects.items() if isinstance(obj, ObjectFacts)}
        found = False
        for ref, obj in readable.items():
            own = obj.record.get(ref)
            # A record that speaks of another incarnation of its own carrier was copied.
            if not self.on("memory") or own is None or own.uid != obj.uid:
                continue
            if not found:
                # This side's own word if there is one: the other's may be older.
                self.lease_aside |= set(own.aside)
            found = True
            for other, met in obj.record.items():
                if other in self.members and not self.members[other].uid:
                    phase = Phase.UP if met.up else Phase.STARTING
                    self.members[other] = MemberState(phase, met.uid, met.marker, met.head)
        return found or not any(isinstance(obj, Unknown) for obj in objects.values())

    def _record(self) -> Record | None:
        carrier = self.view(self.run_.self_).object
        if not isinstance(carrier, ObjectFacts) or carrier.deleting:
            return None
        if carrier.uid != self.members[self.run_.self_].uid:
            return None
        aside = tuple(sorted(self.lease_aside))
        record = {
            ref: Met(
                member.uid, member.marker, member.head, member.phase in HOLDING,
                aside if ref == self.run_.self_ else (),
            )
            for ref, member in self.members.items()
            if member.uid
        }  # fmt: skip
        return record if record != carrier.record else None

    def _written(self) -> Verdict | None:
        for ref in self.run_.all:
            obj = self.view(ref).object
            if isinstance(obj, ObjectFacts) and obj.verdict and obj.verdict.covers(ref, obj.uid):
                return obj.verdict
        return None

    # -- one object ----------------------------------------------------------------------

    def _member(self, ref: Ref) -> None:
        obj, member = self.view(ref).object, self.members[ref]
        if isinstance(obj, Unknown):
            self.keep(ref)
        elif isinstance(obj, Absent):
            if member.uid:
                self.found("deleted", ref, f"{ref} was deleted", f"{ref} {member.uid}: not found")
            elif not self.on("start-up"):
                self.found("deleted", ref, f"{ref} does not exist", f"{ref}: not found")
        elif member.uid and obj.uid != member.uid:
            self.found(
                "replaced", ref, f"{ref} was deleted and made anew",
                f"{ref}: uid {obj.uid}, the run's was {member.uid}",
            )  # fmt: skip
        elif obj.deleting:
            # One that was never seen alive belongs to a former run.
            if member.uid:
                self.found(
                    "terminating", ref, f"{ref} is being deleted",
                    f"{ref} {obj.uid}: deletionTimestamp is set",
                )  # fmt: skip
        else:
            self.members[ref] = self._living(ref, obj, replace(member, uid=obj.uid))
            if self.on("lease-anew") and _started_anew(member, self.members[ref]):
                self.away = True
                self.lease_aside |= set(self.leases)

    def _living(self, ref: Ref, obj: ObjectFacts, member: MemberState) -> MemberState:
        if obj.ended is not None:
            if obj.ended is Outcome.FAILED:
                self.found(
                    "ended-failed", ref, f"{ref} failed: {obj.end_reason}",
                    f"{ref}: {obj.end_reason}",
                )  # fmt: skip
            return replace(member, phase=Phase.ENDED, head=None, marker=obj.marker)
        if obj.suspended and self.on("suspend"):
            return replace(member, phase=Phase.SUSPENDED, head=None, marker=obj.marker)
        changed = member.phase is Phase.SUSPENDED or member.marker != obj.marker
        if member.phase in (Phase.ABSENT, Phase.ENDED) or (changed and self.on("resume")):
            member = replace(member, phase=Phase.STARTING, head=None)
        elif member.phase is Phase.SUSPENDED:
            member = replace(member, phase=Phase.UP)
        if obj.settling:
            member = replace(member, phase=Phase.STARTING, head=None)
        member = replace(member, marker=obj.marker)
        member = self._head(ref, obj, self.view(ref).head, member)
        broken = member.phase in HOLDING and bool(obj.replica_failure)
        if broken and self.hold("replica-failure", ref, self.limits.replica_failure_seconds):
            self.found(
                "replica-failure",
                ref,
                f"pods of {ref} cannot be made",
                f"{ref}: {obj.replica_failure}",
            )
        return member

    def _head(
        self, ref: Ref, obj: ObjectFacts, head: HeadReading, member: MemberState
    ) -> MemberState:
        if isinstance(head, NoHead):
            begun = member.phase is Phase.STARTING and obj.started
            return replace(member, phase=Phase.UP) if begun else member
        ready, reason = _readiness(obj, head)
        mark = HeadMark(head.uid, head.restarts) if isinstance(head, HeadFacts) else None
        if member.phase is Phase.STARTING:
            begun = obj.started and ready is True
            return replace(member, phase=Phase.UP, head=mark) if begun else member
        loss = _loss(head, member.head)
        if ready is None:
            self.keep(ref)
        elif obj.tolerant and self.on("tolerance"):
            return self._tolerated(ref, member, ready=ready, why=loss or reason, mark=mark)
        elif loss:
            self.found(
                _rule_of(head, member.head),
                ref,
                f"the head of {ref} is lost: {loss}",
                f"{ref}: {loss}",
            )
        elif ready:
            return replace(member, head=member.head or mark)
        elif self.hold("head-not-ready", ref, self.limits.not_ready_seconds):
            self.found(
                "head-not-ready",
                ref,
                f"the head of {ref} was not ready for {self.limits.not_ready_seconds:g} s",
                f"{ref}: {reason}",
            )
        return member

    def _tolerated(
        self, ref: Ref, member: MemberState, *, ready: bool, why: str, mark: HeadMark | None
    ) -> MemberState:
        if ready:
            return replace(member, phase=Phase.UP, head=mark or member.head)
        if self.hold("head-not-replaced", ref, self.limits.replacement_seconds):
            self.found(
                "head-not-replaced", ref,
                f"the head of {ref} did not come back in {self.limits.replacement_seconds:g} s",
                f"{ref}: {why}",
            )  # fmt: skip
        return replace(member, phase=Phase.REPLACING)

    # -- the run as a whole --------------------------------------------------------------

    def _known(self, ref: Ref) -> bool:
        return not isinstance(self.view(ref).object, Unknown)

    def _sides(self) -> Iterator[Ref]:
        yield self.run_.self_
        if self.run_.peer is not None:
            yield self.run_.peer

    def _late(self) -> None:
        """Find who keeps another one waiting that holds its resources already."""
        for ref in self.run_.all:
            if self.members[ref].phase not in (Phase.ABSENT, Phase.STARTING):
                continue
            waiting = [r for r in self._sides() if r != ref and self.members[r].phase in HOLDING]
            if not waiting:
                continue
            # First to be created, then to come up: each has the whole patience, so that one
            # that is applied late is not judged by what it did not do before.
            subject = f"{ref} {self.members[ref].phase}"
            if not self._known(ref) or not all(map(self._known, waiting)):
                self.keep(subject, "never-started")
            elif self.hold("never-started", subject, self.limits.startup_seconds):
                names = " and ".join(str(r) for r in waiting)
                self.found(
                    "never-started", ref,
                    f"{ref} did not come up while {names} waited "
                    f"{self.limits.startup_seconds:g} s for it",
                    f"{ref}: {self.members[ref].phase}",
                )  # fmt: skip

    def _registry(self) -> None:
        registry = self.seen.registry
        if registry is None:
            return
        missing = isinstance(registry, Absent) and self.registry_seen
        if not isinstance(registry, Unknown):
            self.alert(
                "registry-missing",
                when=missing and self.on("registry-missing"),
                message="the registry's ConfigMap was deleted; its writers make it again",
                over="the registry's ConfigMap is there again",
            )
        if missing and not self.on("registry-missing"):
            self.found("deleted", None, "the registry was deleted", "registry: not found")
        if isinstance(registry, RegistryFacts):
            self.registry_seen = True
            ours = {member.uid for member in self.members.values() if member.uid}
            meant = bool(ours & registry.error_runs)
            if registry.error and (meant or not self.on("foreign-error")):
                self.found(
                    "registry-error", None, f"a program of the run failed: {registry.error}",
                    f"registry error: {registry.error}",
                )  # fmt: skip
            self._leases(registry)
        else:
            for key in self.leases:
                self.keep(key, "lease-expired")

    def _leases(self, registry: RegistryFacts) -> None:
        settled = all(
            self._known(ref) and self.members[ref].phase is Phase.UP for ref in self.run_.all
        )
        ours = {member.uid for member in self.members.values()}
        current = {
            lease.key: lease
            for lease in registry.leases
            if lease.run in ours or not self.on("foreign-lease")
        }
        self.lease_seconds |= {key: lease.seconds for key, lease in current.items()}
        # Programs end with the side they run in, and after a resume or with a new head it takes
        # them a while to begin. Until then a lease tells of the program before. What it says
        # in the first step after is no renewal: it may be from before, only seen late.
        away, self.away = self.away, self.away and not settled
        if away:
            self.lease_aside |= {*self.leases, *current}
        for key in sorted({*self.leases, *current}):
            lease = current.get(key)
            before = self.leases.get(key)
            if lease is not None and lease.renewed != before:
                self.leases[key] = lease.renewed
                if settled and not away and before is not None:
                    self.lease_aside.discard(key)
                continue
            if key in self.lease_aside or (not settled and self.on("lease-pause")):
                continue
            budget = self.lease_seconds.get(key, 0.0) + self.limits.lease_grace_seconds
            if self.hold("lease-expired", key, budget):
                who = lease.writer if lease else "withdrawn"
                self.found(
                    "lease-expired", None, f"nothing has renewed {key} for {budget:g} s",
                    f"lease of {key} ({who}): last renewed {self.leases.get(key)}",
                )  # fmt: skip

    def _ended(self, ref: Ref) -> Outcome | None:
        obj = self.view(ref).object
        member = self.members[ref]
        ours = isinstance(obj, ObjectFacts) and obj.uid == member.uid
        return obj.ended if isinstance(obj, ObjectFacts) and ours else None

    def _ends(self) -> None:
        driver = self.run_.driver
        if driver is None:
            finite = [ref for ref in self._sides() if ref.kind != "RayCluster"]
            if finite and all(self._ended(ref) is Outcome.SUCCEEDED for ref in finite):
                names = " and ".join(str(ref) for ref in finite)
                self.found("succeeded", None, f"{names} ended well", f"{names}: succeeded")
            return
        if self._ended(driver) is Outcome.SUCCEEDED:
            self.found("succeeded", None, f"{driver} ended well", f"{driver}: succeeded")
            return
        for ref in self._sides():
            if ref == driver or self._ended(ref) is not Outcome.SUCCEEDED:
                continue
            if not self._known(driver):
                self.keep(ref, "ended-early")
            elif self.hold("ended-early", ref, self.limits.ended_early_seconds):
                self.found(
                    "ended-early", ref, f"{ref} ended, but {driver} goes on without it",
                    f"{ref}: succeeded; {driver}: {self.members[driver].phase}",
                )  # fmt: skip


def _started_anew(before: MemberState, now: MemberState) -> bool:
    """Whether the programs of an object that was up are others now, or will be."""
    if before.phase not in HOLDING:
        return False
    other_head = before.head is not None and now.head is not None and before.head != now.head
    return now.phase not in HOLDING or now.marker != before.marker or other_head


def _readiness(obj: ObjectFacts, head: HeadReading) -> tuple[bool | None, str]:
    """Return whether the head is ready, and why not. The pod itself is the newer source."""
    if isinstance(head, HeadFacts):
        well = head.phase == "Running" and not head.deleting and head.ready
        return well, "" if well else f"head pod {head.name}: {head.reason or 'not Ready'}"
    if isinstance(head, Absent):
        return False, "there is no head pod"
    return obj.ready, obj.ready_reason or "the operator says that the head is not ready"


def _restarted(head: HeadReading, mark: HeadMark | None) -> bool:
    return (
        isinstance(head, HeadFacts)
        and mark is not None
        and head.uid == mark.uid
        and not head.deleting
        and head.phase == "Running"
    )


def _rule_of(head: HeadReading, mark: HeadMark | None) -> str:
    """Return the rule by which a head that is lost ends the run."""
    if isinstance(head, HeadFacts) and head.taken and (mark is None or head.uid == mark.uid):
        return "head-evicted"
    return "head-restarted" if _restarted(head, mark) else "head-lost"


def _loss(head: HeadReading, mark: HeadMark | None) -> str:
    """Return how the process that held a side's state was lost; empty when it was not.

    Without a mark the side came up by its operator's word alone, and which pod was its head is
    not known: then only a head that is no more says that it is lost.
    """
    if isinstance(head, (Unknown, NoHead)):
        return ""
    if isinstance(head, Absent):
        return f"head pod {mark.uid if mark else ''} is gone".replace("  ", " ")
    why = f" ({head.reason})" if head.reason else ""
    other = mark is not None and head.uid != mark.uid
    restarts = head.restarts - mark.restarts if mark else 0
    signs = {
        f"head pod {head.name} took the place of {mark.uid if mark else ''}": other,
        f"head pod {head.name} is being deleted{why}": head.deleting,
        f"head pod {head.name} is {head.phase}{why}": head.phase in ("Failed", "Succeeded"),
        f"head pod {head.name} restarted {restarts} times{why}": restarts > 0,
    }
    return next((sign for sign, shows in signs.items() if shows), "")


def _unknown_in(seen: Observation, members: Members) -> Iterator[str]:
    for ref in members.all:
        view = seen.views.get(ref)
        if view is None:
            yield f"{ref}: not looked at yet"
            continue
        if isinstance(view.object, Unknown):
            yield f"{ref}: {view.object.reason}"
        if isinstance(view.head, Unknown):
            yield f"head of {ref}: {view.head.reason}"
    if isinstance(seen.registry, Unknown):
        yield f"registry: {seen.registry.reason}"


def _blind_to_doubt(seen: Observation) -> Observation:
    """Return the observation as one would see it who takes no answer for `not there`."""
    absent: Callable[[object], bool] = lambda reading: isinstance(reading, Unknown)  # noqa: E731
    return replace(
        seen,
        views={
            ref: View(
                ABSENT if absent(view.object) else view.object,
                ABSENT if absent(view.head) and view.head is not NO_HEAD else view.head,
            )
            for ref, view in seen.views.items()
        },
    )
