"""What can be known of a run, as plain values. Pure: no I/O, no clock, no Kubernetes client.

Everything that may be unknown is a `Reading`: a value, `ABSENT` (the API server said that
there is no such object), or `Unknown` (it did not say). The policy never takes the third for
the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final, Self

#: Kinds that can be a side of a run; `Job` can only be its driver.
SIDE_KINDS: Final = ("RayCluster", "RayJob", "JobSet")
DRIVER_KINDS: Final = (*SIDE_KINDS[1:], "Job")
#: Kinds that have a Ray head pod of their own.
RAY_KINDS: Final = ("RayCluster", "RayJob")


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """An object of the run, by kind and name."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return it as people write it: `RayCluster/gym`."""
        return f"{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `Kind/name`.

        Raises:
            ValueError: There is no kind or no name.
        """
        kind, slash, name = text.partition("/")
        if not slash or not kind or not name:
            raise ValueError(f"{text!r} is no Kind/name such as RayCluster/gym")
        return cls(kind, name)


@dataclass(frozen=True, slots=True)
class Members:
    """The objects that make up a run.

    Attributes:
        self_: The side that this watcher belongs to; its record is kept there.
        peer: The other side; None for a run of one object.
        driver: The object whose end is the run's end; None when nothing but the sides tells.
        registry: Name of the endpoint registry's ConfigMap; empty when the run has none.
    """

    self_: Ref
    peer: Ref | None = None
    driver: Ref | None = None
    registry: str = ""

    @property
    def all(self) -> tuple[Ref, ...]:
        """Every object once, this side first."""
        found = [self.self_]
        found += [ref for ref in (self.peer, self.driver) if ref is not None and ref not in found]
        return tuple(dict.fromkeys(found))


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Unknown:
    """The API server did not say: our network, our rights, its faults."""

    reason: str


class Outcome(StrEnum):
    """How a run, or one object of it, ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """One incarnation of an object: what a teardown may delete, and nothing else."""

    ref: Ref
    uid: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the run was ended. It is written down before anything is deleted.

    Attributes:
        rule: Identifier of the rule that decided.
        outcome: Success or failure.
        reason: A sentence for a person.
        evidence: What was seen, one fact an entry.
        targets: Every object of the run that was seen, with its UID.
        at: Wall time, for people only.
        by: Name of the watcher that decided.
    """

    rule: str
    outcome: Outcome
    reason: str
    evidence: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    at: str = ""
    by: str = ""

    def to_json(self) -> str:
        """Return it as the annotation's value."""
        return json.dumps(
            {
                "rule": self.rule,
                "outcome": self.outcome.value,
                "reason": self.reason,
                "evidence": list(self.evidence),
                "targets": [[str(target.ref), target.uid] for target in self.targets],
                "at": self.at,
                "by": self.by,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Read an annotation's value; None when it is no verdict of ours."""
        try:
            raw = json.loads(text)
            return cls(
                rule=str(raw["rule"]),
                outcome=Outcome(raw["outcome"]),
                reason=str(raw["reason"]),
                evidence=tuple(str(fact) for fact in raw["evidence"]),
                targets=tuple(Target(Ref.parse(ref), str(uid)) for ref, uid in raw["targets"]),
                at=str(raw["at"]),
                by=str(raw["by"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def covers(self, ref: Ref, uid: str) -> bool:
        """Whether this incarnation of an object is among the targets."""
        return Target(ref, uid) in self.targets


@dataclass(frozen=True, slots=True)
class HeadMark:
    """The head process that holds the run's state: a pod's UID and its restarts."""

    uid: str
    restarts: int


@dataclass(frozen=True, slots=True)
class Met:
    """What a watcher remembers of an object across its own restarts.

    Attributes:
        uid: Its UID.
        marker: Its marker (see `ObjectFacts`).
        head: The head process that held its state.
        up: Whether it was up.
        aside: Leases that do not count until their next renewal; kept with the watcher's own
            side, for all of the run.
    """

    uid: str
    marker: str = ""
    head: HeadMark | None = None
    up: bool = False
    aside: tuple[str, ...] = ()


Record = Mapping[Ref, Met]


def record_to_json(record: Record) -> str:
    """Return a record as the annotation's value; equal records give equal text."""
    return json.dumps(
        {
            str(ref): {
                "uid": met.uid,
                "marker": met.marker,
                "up": met.up,
                "head": [met.head.uid, met.head.restarts] if met.head else None,
                "aside": list(met.aside),
            }
            for ref, met in sorted(record.items())
        },
        separators=(",", ":"),
    )


def record_from_json(text: str) -> dict[Ref, Met]:
    """Read an annotation's value; empty when it is no record of ours."""
    try:
        raw: Any = json.loads(text)
        return {
            Ref.parse(ref): Met(
                uid=str(met["uid"]),
                marker=str(met["marker"]),
                up=bool(met["up"]),
                head=HeadMark(str(met["head"][0]), int(met["head"][1])) if met["head"] else None,
                # A watcher of an earlier version wrote none.
                aside=tuple(str(key) for key in met.get("aside", ())),
            )
            for ref, met in raw.items()
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return {}


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What an object of the run says of itself.

    Attributes:
        uid: Its UID.
        deleting: Whether it has a deletionTimestamp.
        suspended: Whether it is suspended, being suspended, or asked to be.
        marker: Changes when the object was suspended and resumed, or when its own controller
            started it anew, also when nobody watched meanwhile.
        settling: Its controller is (re)starting it; what it says of readiness is old.
        started: All its pods were ready once since the start or the resume.
        ready: Whether its head is ready; None when the kind does not say.
        ready_reason: Why not.
        replica_failure: Why its pods cannot be made; empty when they can.
        ended: Its terminal state.
        end_reason: What the terminal state says.
        tolerant: A lost head is made up for: GCS fault tolerance, or restarts of a JobSet.
        frees_itself: Once ended it lets go of its pods by itself.
        controller: The object that it belongs to, which would make it again; mostly empty.
        verdict: The verdict written on it.
        record: What the watcher of this object remembers.
    """

    uid: str
    deleting: bool = False
    suspended: bool = False
    marker: str = ""
    settling: bool = False
    started: bool = False
    ready: bool | None = None
    ready_reason: str = ""
    replica_failure: str = ""
    ended: Outcome | None = None
    end_reason: str = ""
    tolerant: bool = False
    frees_itself: bool = False
    controller: str = ""
    verdict: Verdict | None = None
    record: Record = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What the head pod says of itself.

    Attributes:
        taken: Whether somebody takes it away and says so in a condition of the pod's: an
            eviction, a preemption, the loss of its node.
        reason: All that it says about its end, that included.
    """

    uid: str
    name: str = ""
    restarts: int = 0
    phase: str = "Running"
    deleting: bool = False
    ready: bool = True
    taken: bool = False
    reason: str = ""


class NoHead(Enum):
    """The type of `NO_HEAD`: this object has no head pod to look at."""

    NO_HEAD = "no head"


NO_HEAD: Final = NoHead.NO_HEAD


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A writer's sign of life in the registry.

    Attributes:
        key: The registry's key.
        renewed: The writer's own time of the last renewal. Only its changes count: the
            writer's clock is not ours.
        seconds: How long the writer says that a renewal is good for.
        run: UID of the run's object that it belongs to.
        writer: Who wrote it.
    """

    key: str
    renewed: str
    seconds: float
    run: str
    writer: str = ""


@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """What the registry's ConfigMap says.

    Attributes:
        uid: UID of the ConfigMap.
        error: The error that a program wrote; empty without one.
        error_runs: UIDs of the objects whose run it belongs to. None of ours among them means
            that it is left over from another run, or nobody's.
        leases: Signs of life.
    """

    uid: str
    error: str = ""
    error_runs: frozenset[str] = frozenset()
    leases: tuple[LeaseFacts, ...] = ()


class Namespace(StrEnum):
    """Whether the run's namespace lives."""

    ACTIVE = "active"
    TERMINATING = "terminating"


ObjectReading = ObjectFacts | Absent | Unknown
HeadReading = HeadFacts | Absent | Unknown | NoHead
RegistryReading = RegistryFacts | Absent | Unknown | None
NamespaceReading = Namespace | Absent | Unknown


@dataclass(frozen=True, slots=True)
class View:
    """One object of the run with its head pod."""

    object: ObjectReading
    head: HeadReading = NO_HEAD


@dataclass(frozen=True, slots=True)
class Observation:
    """All that is known at one moment.

    Attributes:
        views: Every object of the run.
        registry: The registry; None when this run has none.
        namespace: The run's namespace.
        confirmed: Read just now from the API server itself, the pods before the objects
            that they belong to; not put together from watches that may lag each other.
    """

    views: Mapping[Ref, View]
    registry: RegistryReading = None
    namespace: NamespaceReading = Namespace.ACTIVE
    confirmed: bool = False
