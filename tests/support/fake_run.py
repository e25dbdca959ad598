"""A run that exists only here: two RayClusters, a driver Job, a registry, and two watchers.

For histories that no real cluster can be made to show in seconds. The objects have the form
that the API server gives them and go through the watcher's own conversion. What is *true* is
written down by the test's events themselves (`died`), in no way derived from the policy; the
integration tests show the same situations on a real API server.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from peer_watcher.convert import head_facts, object_facts
from peer_watcher.facts import (
    ABSENT,
    NO_HEAD,
    Absent,
    LeaseFacts,
    Members,
    Namespace,
    Observation,
    Record,
    Ref,
    RegistryFacts,
    Unknown,
    Verdict,
    View,
    record_to_json,
)
from peer_watcher.policy import Action, Alert, Decision, Limits, Policy, State

Object = dict[str, Any]

RL, GYM, DRIVER = Ref("RayCluster", "rl"), Ref("RayCluster", "gym"), Ref("Job", "driver")
SIDES = (RL, GYM)
#: Short enough that a history of minutes meets every limit.
LIMITS = Limits(
    startup_seconds=60.0,
    replacement_seconds=30.0,
    not_ready_seconds=20.0,
    replica_failure_seconds=30.0,
    ended_early_seconds=10.0,
    lease_grace_seconds=10.0,
    staleness_seconds=60.0,
    settle_seconds=5.0,
)
LEASE_SECONDS = 10.0
#: How long the operator of this world takes from a pod's making to Ready.
POD_START_SECONDS = 3.0
#: Renewals after which a watcher that saw all of them knows that a program lives.
RENEWALS_TO_KNOW = 3


@dataclass
class Head:
    """A head pod."""

    uid: str
    made: float
    ready_at: float
    restarts: int = 0
    phase: str = "Running"
    deleting: bool = False
    reason: str = ""
    taken: str = ""

    @property
    def process(self) -> str:
        """What holds the state: a restart in place is another process."""
        return f"{self.uid}#{self.restarts}"

    def ready(self, now: float) -> bool:
        """Whether the kubelet says Ready."""
        return self.phase == "Running" and now >= self.ready_at


@dataclass
class Side:
    """A RayCluster with its operator's doing."""

    ref: Ref
    uid: str
    tolerant: bool = False
    suspend: bool = False
    #: The condition RayClusterSuspended: its status and the number of its transitions.
    suspended: bool = False
    suspending: bool = False
    transitions: int = 0
    head: Head | None = None
    provisioned: bool = False
    #: Time from which the operator makes a head again; None when it does not have to.
    heads_from: float | None = 0.0
    replica_failure: str = ""
    deleting: bool = False
    annotations: dict[str, str] = field(default_factory=dict)
    controller: str = ""

    @property
    def up(self) -> bool:
        """Whether it is of use to the run."""
        return (
            self.provisioned
            and self.head is not None
            and not self.suspended
            and not self.suspending
        )

    def api(self, now: float) -> Object:
        """Return it as the API server would."""
        ready = self.head is not None and self.head.ready(now)
        conditions = [
            {"type": "HeadPodReady", "status": str(ready), "reason": "x"},
            {"type": "RayClusterProvisioned", "status": str(self.provisioned)},
            {
                "type": "RayClusterSuspended",
                "status": str(self.suspended),
                "lastTransitionTime": str(self.transitions),
            },
        ]
        if self.replica_failure:
            conditions.append(
                {"type": "ReplicaFailure", "status": "True", "reason": self.replica_failure}
            )
        metadata: Object = {
            "name": self.ref.name,
            "uid": self.uid,
            "annotations": dict(self.annotations),
        }
        if self.suspending:
            conditions.append({"type": "RayClusterSuspending", "status": "True"})
        if self.controller:
            owner = {"kind": "RayJob", "name": self.controller, "controller": True}
            metadata["ownerReferences"] = [owner]
        if self.deleting:
            metadata["deletionTimestamp"] = "2026-12-01T00:00:00Z"
        spec: Object = {"suspend": self.suspend}
        if self.tolerant:
            spec["gcsFaultToleranceOptions"] = {"redisAddress": "redis:6379"}
        # `state` is what KubeRay leaves there for ever.
        status = {"conditions": conditions, "state": "ready"}
        return {"kind": "RayCluster", "metadata": metadata, "spec": spec, "status": status}

    def pods(self, now: float) -> list[Object]:
        """Return its head pod as the API server would."""
        head = self.head
        if head is None:
            return []
        metadata: Object = {
            "name": f"{self.ref.name}-head-{head.uid}",
            "uid": head.uid,
            "creationTimestamp": f"{head.made:012.3f}",
        }
        if head.deleting:
            metadata["deletionTimestamp"] = "2026-12-01T00:00:00Z"
        status = {
            "phase": head.phase,
            "reason": head.reason,
            "conditions": [
                {"type": "Ready", "status": str(head.ready(now))},
                *(
                    [{"type": "TerminationTarget", "status": "True", "message": head.taken}]
                    if head.taken
                    else []
                ),
            ],
            "containerStatuses": [{"name": "ray-head", "restartCount": head.restarts}],
        }
        spec = {"containers": [{"name": "ray-head"}, {"name": "sidecar"}]}
        return [{"metadata": metadata, "spec": spec, "status": status}]


@dataclass(frozen=True)
class Death:
    """Something true: the run is over, since when, and how soon that has to be noticed."""

    what: str
    at: float
    within: float
    #: UID of what died: a watcher that never saw it alive cannot know of its death.
    of: str = ""
    #: Whether it shows only while everything else is up (a silent program's lease).
    quiet: bool = False


class KillError(AssertionError):
    """A teardown that nothing true explains."""


class World:
    """What is there, and the passing of time."""

    def __init__(self, *, driver: bool = True, tolerant: Iterable[Ref] = ()) -> None:
        self.now = 1000.0
        self._uids = 0
        self.sides: dict[Ref, Side] = {}
        self.tolerant = set(tolerant)
        self.driver: Object | None = None
        self.with_driver = driver
        self.registry: RegistryFacts | None = RegistryFacts(uid="registry-1")
        self.heartbeats: dict[str, bool] = {"gym_head_server": True}
        self.renewals = 0
        #: How long programs take from their head's Ready to their first sign of life.
        self.program_start_seconds = 0.0
        #: Whether programs withdraw their leases when they are ended.
        self.programs_withdraw = False
        #: The head process in which the programs of gym run, and when they begin.
        self._programs: tuple[str, float] = ("", 0.0)
        #: In which epoch each lease was renewed last, and the number of that renewal.
        self.renewed: dict[str, tuple[str, int]] = {}
        self.namespace = Namespace.ACTIVE
        self.died: Death | None = None
        self.wait_since: dict[Ref, tuple[str, float]] = {}
        #: Since when every object has been up and Ready; None while one is not.
        self.all_up_since: float | None = None
        self.verdicts: list[Verdict] = []
        self.torn_down_at: float | None = None
        self.deleted: list[tuple[Ref, str]] = []

    # -- what people, kubelets and operators do --------------------------------------------

    def uid(self, what: str) -> str:
        self._uids += 1
        return f"{what}-{self._uids}"

    def apply(self, ref: Ref) -> None:
        """Create an object, as `kubectl apply` would."""
        if ref == DRIVER:
            self.driver = {
                "kind": "Job",
                "metadata": {"name": "driver", "uid": self.uid("driver"), "annotations": {}},
                "spec": {},
                "status": {"active": 1, "ready": 1},
            }
        else:
            self.sides[ref] = Side(ref, self.uid(ref.name), tolerant=ref in self.tolerant,
                                   heads_from=self.now)  # fmt: skip

    def apply_all(self) -> None:
        for ref in (*SIDES, *([DRIVER] if self.with_driver else [])):
            self.apply(ref)

    def die(self, what: str, within: float, of: str = "", *, quiet: bool = False) -> None:
        """Write down that the run is over; the first time counts."""
        if self.died is None:
            self.died = Death(what, self.now, within, of, quiet)

    def lose_head(self, ref: Ref, *, how: str, comes_back: bool = True) -> None:
        """Take a head away: `evicted`, `preempted`, `failed`, `deleted`, `restarted` (in place)."""
        side = self.sides[ref]
        head = side.head
        assert head is not None
        process = head.process
        if how == "restarted":
            head.restarts += 1
            head.ready_at = self.now + POD_START_SECONDS
        elif how == "evicted":
            head.phase, head.reason = "Failed", "Evicted"
        elif how == "preempted":
            head.phase, head.taken = "Failed", "Preempted to accommodate another"
        elif how == "failed":
            head.phase = "Failed"
        else:
            side.head = None
        if how != "restarted":
            side.heads_from = self.now + 2 if comes_back else None
        if not side.tolerant:
            self.die(f"{ref} lost its head ({how})", 2.0, process)
        elif how != "restarted" and not comes_back:
            self.die(f"{ref} did not get a head", LIMITS.replacement_seconds + 2.0, process)

    def hang_head(self, ref: Ref) -> None:
        """Let a head be not Ready for ever."""
        side = self.sides[ref]
        assert side.head is not None
        side.head.ready_at = math.inf
        patience = LIMITS.replacement_seconds if side.tolerant else LIMITS.not_ready_seconds
        self.die(f"the head of {ref} hangs", patience + 2.0, side.head.process)

    def blink(self, ref: Ref) -> None:
        """Let a head be not Ready for a moment."""
        head = self.sides[ref].head
        assert head is not None
        head.ready_at = self.now + POD_START_SECONDS

    def delete(self, ref: Ref) -> None:
        """Let a person delete an object."""
        if ref == DRIVER:
            assert self.driver is not None
            uid, self.driver = str(self.driver["metadata"]["uid"]), None
        else:
            uid = self.sides.pop(ref).uid
        self.die(f"{ref} was deleted", 2.0, uid)

    def suspend(self, ref: Ref) -> None:
        self.sides[ref].suspend = True

    def resume(self, ref: Ref) -> None:
        self.sides[ref].suspend = False

    def end_driver(self, kind: str) -> None:
        """End the Job: `Complete` or `Failed`."""
        assert self.driver is not None
        self.driver["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "x"}]}
        self.die(f"the driver ended: {kind}", 2.0)

    @property
    def run_uid(self) -> str:
        """UID of the object that the registry belongs to; empty while there is none."""
        side = self.sides.get(RL)
        return side.uid if side else ""

    def write_error(self, text: str, *, run: str = "") -> None:
        """Write `error` into the registry; of another run it is none of ours."""
        assert self.registry is not None
        runs = frozenset({run or self.run_uid})
        self.registry = replace(self.registry, error=text, error_runs=runs)
        if not run:
            self.die("a program wrote error", 2.0, self.run_uid)

    @property
    def epoch(self) -> str:
        """Who is there: another one after each resume and with each head."""
        parts = [
            f"{side.uid}/{side.transitions}/{side.head.process if side.head else ''}"
            for side in self.sides.values()
        ]
        return " ".join(parts)

    def program_lives(self, key: str) -> bool:
        """Whether a program has shown itself since everything that is there came up."""
        whole = all(self._up(ref) and not self.sides[ref].suspend for ref in SIDES)
        running = whole and all(side.head and side.head.phase == "Running"
                                for side in self.sides.values())  # fmt: skip
        told = self.registry is not None and key in {lease.key for lease in self.registry.leases}
        return told and running and self.renewed.get(key, ("", 0))[0] == self.epoch

    def stop_heartbeat(self, key: str) -> None:
        """Let a program die that had shown itself."""
        assert self.program_lives(key)
        self.heartbeats[key] = False
        patience = LEASE_SECONDS + LIMITS.lease_grace_seconds
        of = f"{key} {self.epoch}"
        self.die(f"the writer of {key} died", patience + 3.0, of, quiet=True)

    # -- time ------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Let time pass; operators and writers do what they do."""
        self.now += seconds
        for side in self.sides.values():
            self._operate(side)
        if self.registry is not None:
            self._run_programs(self.registry)
        self._note_waiting()
        sides = [self.sides.get(ref) for ref in SIDES]
        well = all(s and s.up and s.head and s.head.ready(self.now) for s in sides)
        if not well or (self.with_driver and self.driver is None):
            self.all_up_since = None
        elif self.all_up_since is None:
            self.all_up_since = self.now

    def _run_programs(self, registry: RegistryFacts) -> None:
        """Let the programs in gym's head begin, renew their leases, and end with the head."""
        leases = {lease.key: lease for lease in registry.leases}
        gym = self.sides.get(GYM)
        runs = gym and gym.head and gym.up and gym.head.phase == "Running"
        process = gym.head.process if gym and gym.head and runs else ""
        if process != self._programs[0]:
            if self.programs_withdraw and self._programs[0]:
                leases = {key: lease for key, lease in leases.items() if key not in self.heartbeats}
            self._programs = (process, self.now + self.program_start_seconds)
        began = bool(process) and self.now >= self._programs[1]
        if began and all(self._up(ref) for ref in SIDES):
            self.renewals += 1
            for key in (key for key, alive in self.heartbeats.items() if alive):
                leases[key] = LeaseFacts(key, f"t{self.renewals}", LEASE_SECONDS, self.run_uid)
                self.renewed[key] = (self.epoch, self.renewals)
        self.registry = replace(registry, leases=tuple(leases.values()))

    def _operate(self, side: Side) -> None:
        if side.suspend and not side.suspended and not side.suspending:
            side.suspending, side.head, side.heads_from = True, None, None
            return
        if side.suspending:
            # KubeRay goes through with it, also when it is asked to resume meanwhile.
            side.suspending, side.suspended, side.provisioned = False, True, False
            side.transitions += 1
            return
        if side.suspend:
            return
        if side.suspended:
            side.suspended = False
            side.transitions += 1
            side.heads_from = self.now
        due = side.heads_from is not None and self.now >= side.heads_from
        if due and (side.head is None or side.head.phase == "Failed") and not side.replica_failure:
            side.head = Head(self.uid("pod"), self.now, self.now + POD_START_SECONDS)
            side.heads_from = None
        if side.head and side.head.ready(self.now):
            side.provisioned = True

    def _up(self, ref: Ref) -> bool:
        return ref in self.sides and self.sides[ref].up

    def _holds(self, ref: Ref) -> bool:
        """Whether a side has what it asked for, also while its head is being replaced."""
        side = self.sides.get(ref)
        return bool(side and side.provisioned and not side.suspended and not side.suspending)

    def _note_waiting(self) -> None:
        """Note how long one side holds its resources while another object does not come."""
        for ref in (*SIDES, DRIVER) if self.with_driver else SIDES:
            others = [r for r in SIDES if r != ref and self._holds(r)]
            if ref == DRIVER:
                missing = self.driver is None or self.driver["status"].get("ready") == 0
            else:
                side = self.sides.get(ref)
                missing = side is None or not (
                    side.provisioned or side.suspend or side.suspended or side.suspending
                )
            if others and missing:
                # First for it to be created, then for it to come up.
                what = self.sides[ref].uid if ref in self.sides else ""
                if self.wait_since.get(ref, ("?", 0.0))[0] != what:
                    self.wait_since[ref] = (what, self.now)
                since = self.wait_since[ref][1]
                if self.now - since >= LIMITS.startup_seconds + 10.0:
                    self.die(f"{ref} never came", LIMITS.startup_seconds + 10.0)
            else:
                self.wait_since.pop(ref, None)

    def explains(self, seconds: float = 0.0) -> bool:
        """Whether something true explains a teardown now."""
        if self.died is not None and self.died.at <= self.now - seconds:
            return True
        # A little before `_note_waiting` says so: lags may lie to either side.
        return any(
            self.now - since >= LIMITS.startup_seconds - 10.0
            for _, since in self.wait_since.values()
        )

    # -- what the watchers do --------------------------------------------------------------

    def tear_down(self, verdict: Verdict) -> None:
        """Carry a verdict out as the actor would: UIDs hold, what has ended stays."""
        if not self.explains():
            raise KillError(f"torn down without a cause: {verdict.rule}: {verdict.reason}")
        self.verdicts.append(verdict)
        self.torn_down_at = self.now if self.torn_down_at is None else self.torn_down_at
        for target in verdict.targets:
            side = self.sides.get(target.ref)
            if side is not None and side.uid == target.uid:
                del self.sides[target.ref]
                self.deleted.append((target.ref, target.uid))
            if target.ref == DRIVER and self.driver is not None:
                ended = (self.driver["status"].get("conditions") or []) != []
                if self.driver["metadata"]["uid"] == target.uid and not ended:
                    self.driver = None
                    self.deleted.append((target.ref, target.uid))


@dataclass(frozen=True)
class Snapshot:
    """What the API server knew at one moment."""

    objects: dict[Ref, Object | None]
    pods: dict[Ref, list[Object]]
    registry: RegistryFacts | None


def snapshot(world: World) -> Snapshot:
    objects: dict[Ref, Object | None] = {
        ref: world.sides[ref].api(world.now) if ref in world.sides else None for ref in SIDES
    }
    if world.with_driver:
        objects[DRIVER] = world.driver
    pods = {ref: world.sides[ref].pods(world.now) if ref in world.sides else [] for ref in SIDES}
    return Snapshot(objects, pods, world.registry)


class Watch:
    """One watcher: its policy, its view of the world, its faults, its clock."""

    def __init__(
        self,
        world: World,
        own: Ref,
        *,
        disabled: frozenset[str] = frozenset(),
        limits: Limits = LIMITS,
    ) -> None:
        self.world = world
        self.own = own
        peer = GYM if own == RL else RL
        driver = DRIVER if world.with_driver else None
        self.policy = Policy(Members(own, peer, driver, "registry"), limits, disabled=disabled)
        self.state = State()
        #: Reason why the API server does not answer this watcher; empty when it does.
        self.fault = ""
        #: Objects of which it alone gets no answer.
        self.faults_of: dict[Ref, str] = {}
        #: Whether it gets no answer about pods.
        self.blind_to_pods = False
        self.clock_offset = 0.0
        self.lag: dict[str, int] = {}
        self.history: deque[Snapshot] = deque(maxlen=8)
        self.clear_since = world.now
        #: The other side's watcher.
        self.other = self
        self.met: set[str] = set()
        self._heard: dict[str, set[int]] = {}
        self.alerts: list[Alert] = []
        self.over = False
        self.decision: Decision | None = None

    def restart(self) -> None:
        """Begin anew, with nothing but what stands on the API server."""
        own = self.world.sides.get(self.own)
        if own is None or "tandem.dev/peer-watcher" not in own.annotations:
            # What it had written down went with its own side; the other one's may be there.
            peer = self.world.sides.get(self.other.own)
            kept = peer is not None and "tandem.dev/peer-watcher" in peer.annotations
            self.met = set(self.other.met) if kept else set()
        self._heard = {}
        self.state = State()
        self.history.clear()
        self.clear_since = self.world.now

    def _lagged(self, source: str) -> Snapshot:
        lag = min(self.lag.get(source, 0), len(self.history) - 1)
        return self.history[-1 - lag]

    def _view(self, ref: Ref, obj: Object | None, pods: list[Object]) -> View:
        fault = self.fault or self.faults_of.get(ref, "")
        if fault:
            return View(Unknown(fault), NO_HEAD if ref == DRIVER else Unknown(fault))
        if obj is None:
            return View(ABSENT)
        if self.blind_to_pods and ref != DRIVER:
            return View(object_facts(obj), Unknown("403"))
        return View(object_facts(obj), NO_HEAD if ref == DRIVER else head_facts(pods))

    def observe(self, *, confirmed: bool) -> Observation:
        """Look: through watches that lag, or directly."""
        if not confirmed:
            self.history.append(snapshot(self.world))
        now = snapshot(self.world)
        objects = now if confirmed else self._lagged("objects")
        pods = now if confirmed else self._lagged("pods")
        registry = now.registry if confirmed else self._lagged("registry").registry
        seen: RegistryFacts | Absent | Unknown = ABSENT if registry is None else registry
        return Observation(
            views={
                ref: self._view(ref, obj, pods.pods.get(ref, []))
                for ref, obj in objects.objects.items()
            },
            registry=Unknown(self.fault) if self.fault else seen,
            namespace=self.world.namespace if confirmed and not self.fault else Namespace.ACTIVE,
            confirmed=confirmed,
        )

    def step(self) -> Decision:
        """Look, decide and act once."""
        now = self.world.now + self.clock_offset
        if self.fault or self.faults_of or any(self.lag.values()):
            self.clear_since = self.world.now
        self.state, decision = self.policy.step(self.state, self.observe(confirmed=False), now)
        self.alerts += decision.alerts
        if decision.action is Action.CONFIRM:
            seen = self.observe(confirmed=True)
            self.state, decision = self.policy.step(self.state, seen, now)
            self.alerts += decision.alerts
        self.decision = decision
        if decision.action is Action.STAND_DOWN:
            self.over = True
        elif decision.action is Action.TEARDOWN:
            assert decision.verdict is not None
            if not self.fault:
                self.world.tear_down(decision.verdict)
                self.over = True
        elif decision.record is not None and not self.fault:
            self._remember(decision.record)
        self._note_met()
        return decision

    def _remember(self, record: Record) -> None:
        side = self.world.sides.get(self.own)
        if side is not None:
            side.annotations["tandem.dev/peer-watcher"] = record_to_json(record)

    def _note_met(self) -> None:
        """Note whose death this watcher can know of: it saw them up, and wrote that down."""
        carrier = self.own in self.world.sides
        if self.fault or self.faults_of or any(self.lag.values()) or not carrier:
            return
        for side in self.world.sides.values():
            self.met.add(side.uid)
            if side.up and side.head is not None and side.head.ready(self.world.now):
                self.met.add(side.head.process)
        if self.world.driver is not None:
            self.met.add(self.world.driver["metadata"]["uid"])
        for key, (epoch, number) in self.world.renewed.items():
            if epoch == self.world.epoch and self.world.all_up_since is not None:
                name = f"{key} {epoch}"
                self._heard.setdefault(name, set()).add(number)
                if len(self._heard[name]) >= RENEWALS_TO_KNOW:
                    self.met.add(name)


class Run:
    """A world with both watchers, and the two promises about them."""

    def __init__(
        self,
        *,
        driver: bool = True,
        tolerant: Iterable[Ref] = (),
        disabled: frozenset[str] = frozenset(),
        applied: bool = True,
    ) -> None:
        self.disabled = disabled
        self.world = World(driver=driver, tolerant=tolerant)
        self.watches = [Watch(self.world, ref, disabled=disabled) for ref in SIDES]
        self.watches[0].other, self.watches[1].other = self.watches[1], self.watches[0]
        if applied:
            self.world.apply_all()
            self.pass_time(POD_START_SECONDS + 3.0)

    @property
    def over(self) -> bool:
        return self.world.torn_down_at is not None or all(watch.over for watch in self.watches)

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps; both watchers look after each."""
        until = self.world.now + seconds
        while self.world.now < until - 1e-9 and not self.over:
            self.world.tick(min(step, until - self.world.now))
            for watch in self.watches:
                if not watch.over:
                    watch.step()
