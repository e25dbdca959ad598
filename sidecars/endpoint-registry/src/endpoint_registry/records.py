"""What stands in the ConfigMap, and what a reader may believe of it. Nothing here does I/O.

Data is as NeMo RL's own client has it: flat, one string a key. All else is in metadata:

- label `tandem.dev/run-uid`: the run (epoch) that the object belongs to. An object of another
  run holds nothing that a reader may see.
- annotation `tandem.dev/run-started`: when that run began, by the API server's clock, and its
  attempt; a writer never replaces the object of a run that began later than its own.
- annotation `endpoints.tandem.dev/<key>`: who wrote the key, in which pod, when, for how long
  (lease), and a digest of the value.

The digest ties an annotation to the value that it speaks of. NeMo RL's client changes data
and leaves annotations alone, so a value with another digest is its: it has no lease, and is
believed because it stands in an object of our run.

Ages. Nobody compares clocks of two machines. With each answer the API server says its time:
a writer writes that time into its record, and a reader who comes fresh compares it with the
time that its own list came with. From then on the reader counts on its own monotonic clock,
from zero at each renewal that it sees. No wall clock of a pod has any part in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tandem_common.errors import Problem

NAME_PREFIX = "nemo-rl-endpoints-"
JOB_LABEL = "tandem.dev/job-id"
RUN_LABEL = "tandem.dev/run-uid"
STARTED = "tandem.dev/run-started"
RECORD = "endpoints.tandem.dev/"
ERROR = "error"

#: Who should write the keys that every run has.
WRITERS = {
    "gym_head_server": "the Gym side (role gym)",
    "vllm_base_urls": "the training side (role rl or driver)",
}
#: Keys whose value is a list of addresses, and those that are one address.
LISTS, ADDRESSES = frozenset({"vllm_base_urls"}), frozenset({"gym_head_server"})

_KEY = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_KEY_LENGTH = 63
#: Far above any list of addresses, far below what a ConfigMap holds with all its keys.
VALUE_BYTES = 64 * 1024
#: The server says whole seconds, to the writer and to the reader.
_RESOLUTION = 2.0
#: A watch that was silent for so long tells the present.
_IDLE_SECONDS = 1.0
#: All writers are one field manager: the API server takes longer for a write the more
#: managers an object has (a hundred times longer for eighty that apply).
MANAGER = "endpoint-registry"


class State(StrEnum):
    """What a writer says of its key."""

    #: It is at work, and has no value yet.
    PENDING = "pending"
    PUBLISHED = "published"
    #: It has taken its value back.
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a run.

    Attributes:
        uid: What tells it from every other: the UID of its top object, with an attempt behind
            it when that object is tried more than once.
        started: When it began, by the API server's clock (the top object's
            creationTimestamp); "" when unknown.
        attempt: Number of the attempt, from 0.
    """

    uid: str
    started: str = ""
    attempt: int = 0

    @property
    def order(self) -> str:
        """Text for the annotation; sorts as the runs began."""
        return f"{self.started}/{self.attempt:06d}" if self.started else ""


@dataclass(frozen=True, slots=True)
class Owner:
    """An object that the ConfigMap goes with."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """Return the ownerReference. Never a controller: that would exclude other owners."""
        return {
            "apiVersion": self.api_version, "kind": self.kind, "name": self.name,
            "uid": self.uid, "controller": False, "blockOwnerDeletion": False,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """What a writer says of its key, beside the value."""

    run: str
    writer: str
    pod: str = ""
    at: str = ""
    state: State = State.PUBLISHED
    lease_seconds: float | None = None
    beat: int = 0
    digest: str = ""
    note: str = ""
    #: Which process of the writer it was; another one of the same name is not it.
    instance: str = ""

    def encode(self) -> str:
        """Return the annotation."""
        content = {
            "run": self.run, "writer": self.writer, "pod": self.pod, "at": self.at,
            "state": self.state.value, "lease": self.lease_seconds, "beat": self.beat,
            "digest": self.digest, "note": self.note, "instance": self.instance,
        }  # fmt: skip
        kept = {key: value for key, value in content.items() if value not in ("", None)}
        return json.dumps(kept, separators=(",", ":"))


def decode(text: str) -> Record | None:
    """Return the record of an annotation; None for anything that is none."""
    try:
        found = json.loads(text)
        lease = found.get("lease")
        record = Record(
            run=str(found["run"]), writer=str(found["writer"]), pod=str(found.get("pod", "")),
            at=str(found.get("at", "")), state=State(found["state"]),
            lease_seconds=None if lease is None else float(lease),
            beat=int(found.get("beat", 0)), digest=str(found.get("digest", "")),
            note=str(found.get("note", "")), instance=str(found.get("instance", "")),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    lease = record.lease_seconds
    return record if lease is None or (math.isfinite(lease) and lease > 0) else None


def digest(value: str) -> str:
    """Return what ties a record to its value."""
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def object_name(job_id: str) -> str:
    """Return the ConfigMap's name."""
    return f"{NAME_PREFIX}{job_id}"


def stamp(server_time: float | None) -> str:
    """Return the API server's time as it stands in a record; "" when it is not known."""
    if server_time is None:
        return ""
    at = datetime.fromtimestamp(server_time, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age_when_listed(record: Record, server_time: float | None) -> float:
    """Return how old a record was when a list of that time showed it; 0 when nobody knows.

    Also 0 for one from the future: the server's clock was set back. It is then believed for
    one lease more, and no longer.
    """
    try:
        at = datetime.fromisoformat(record.at).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return 0.0 if server_time is None else max(0.0, server_time - at - _RESOLUTION)


def is_label(value: str) -> bool:
    """Whether a text is a DNS label: a job id, a namespace, a run's UID."""
    return len(value) <= _KEY_LENGTH and _LABEL.fullmatch(value) is not None


def key_problems(key: str) -> Iterator[Problem]:
    """Yield what is wrong with a key."""
    if len(key) > _KEY_LENGTH or not _KEY.fullmatch(key):
        yield Problem(
            f"key {key!r}: letters, digits, '-', '_' and '.', not at the ends but letters or "
            f"digits, at most {_KEY_LENGTH}",
            "such as gym_head_server",
        )


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"https?://[^\s/?#]+\S*", value) is not None


def value_problems(key: str, value: str) -> Iterator[Problem]:
    """Yield what is wrong with a value: the wire format of the keys that NeMo RL knows."""
    if not value:
        yield Problem(f"{key}: the value is empty", "withdraw it instead")
        return
    size = len(value.encode())
    if size > VALUE_BYTES:
        yield Problem(f"{key}: {size} bytes", f"at most {VALUE_BYTES}")
    if key in ADDRESSES and not _is_address(value):
        yield Problem(f"{key}={value!r}: no address", "http://host:port")
    if key in LISTS:
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not found or not all(map(_is_address, found)):
            yield Problem(
                f"{key}={value!r}: no JSON list of addresses", '["http://host:port/v1", …]'
            )


def lease_problems(what: str, lease_seconds: float) -> Iterator[Problem]:
    """Yield what is wrong with a lease; `what` names it as the user wrote it."""
    if not 0 < lease_seconds < math.inf:
        yield Problem(f"{what}: no time", "a number of seconds, more than 0")


def joined(key: str, values: Iterable[str]) -> str:
    """Return the value of a key for one or several words."""
    words = list(values)
    if key in LISTS and not (len(words) == 1 and words[0].startswith("[")):
        return json.dumps(words)
    return words[0] if len(words) == 1 else json.dumps(words)


def run_of(config_map: Mapping[str, Any]) -> str:
    """Return the run that an object belongs to; "" when it does not say."""
    return str((config_map["metadata"].get("labels") or {}).get(RUN_LABEL, ""))


class Standing(StrEnum):
    """What an object that is there is to a run."""

    OURS = "ours"
    #: Made by NeMo RL's client for this run: ours but for the label.
    ADOPTABLE = "adoptable"
    #: Of a run that began before ours, or nobody's: to be replaced.
    FOREIGN = "foreign"
    #: Of a run that began after ours, or may have: hands off.
    NEWER = "newer"


def standing(
    config_map: Mapping[str, Any], run: Run, owners: Iterable[Owner], *, had: bool = False
) -> Standing:
    """Return what an object is to a run.

    Args:
        config_map: The object.
        run: Our run.
        owners: Our run's owners.
        had: This process has held the run's object before: the one that is there now was made
            after it.
    """
    theirs = run_of(config_map)
    if theirs == run.uid:
        return Standing.OURS
    if theirs:
        return Standing.FOREIGN if began_before(config_map, run) else Standing.NEWER
    references = config_map["metadata"].get("ownerReferences") or []
    by_owner = bool({each.get("uid") for each in references} & {owner.uid for owner in owners})
    if had:
        # A former run's object would have been replaced by the one that we held. One for other
        # owners may be the next run's.
        return Standing.ADOPTABLE if by_owner or not references else Standing.NEWER
    # An owner tells runs apart, but not the attempts at one run.
    return Standing.ADOPTABLE if by_owner and not run.attempt else Standing.FOREIGN


def began_before(config_map: Mapping[str, Any], run: Run) -> bool:
    """Whether it is certain that an object's labelled run began before ours.

    Certain is: a former attempt at the same top object; a top object made in an earlier
    second; an object that was there before our run began.
    """
    metadata, theirs = config_map["metadata"], run_of(config_map)
    uid, _, attempt = theirs.partition(".")
    if uid == run.uid.partition(".")[0]:
        return (int(attempt) if attempt.isdecimal() else 0) < run.attempt
    order = str((metadata.get("annotations") or {}).get(STARTED, ""))
    started = order.partition("/")[0] or str(metadata.get("creationTimestamp") or "")
    return bool(started) and started < run.started


def new_object(job_id: str, run: Run, owners: Iterable[Owner]) -> dict[str, Any]:
    """Return the ConfigMap of a run, without any endpoint."""
    metadata: dict[str, Any] = {
        "name": object_name(job_id),
        "labels": {
            "app.kubernetes.io/part-of": "tandem",
            "app.kubernetes.io/component": "endpoint-registry",
            JOB_LABEL: job_id,
            RUN_LABEL: run.uid,
        },
    }
    if run.order:
        metadata["annotations"] = {STARTED: run.order}
    references = [owner.reference() for owner in owners]
    if references:
        metadata["ownerReferences"] = references
    return {"metadata": metadata}


def patch(
    uid: str, key: str, record: Record, value: str | None, *, resource_version: str = ""
) -> dict[str, Any]:
    """Return the merge patch of one key: its record, its value (None removes it), no more.

    The UID makes the server refuse it for any other object; with a version, also for this
    one once it has changed.
    """
    metadata: dict[str, Any] = {"uid": uid, "annotations": {RECORD + key: record.encode()}}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return {"metadata": metadata, "data": {key: value}}


def renewal(uid: str, key: str, before: str, record: Record, value: str) -> list[Mapping[str, Any]]:
    """Return the JSON patch that renews a key, if record and value are as we left them."""
    annotation = "/metadata/annotations/" + _escaped(RECORD + key)
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": annotation, "value": before},
        {"op": "test", "path": "/data/" + _escaped(key), "value": value},
        {"op": "replace", "path": annotation, "value": record.encode()},
    ]


def _escaped(text: str) -> str:
    return text.replace("~", "~0").replace("/", "~1")


class Claim(StrEnum):
    """Whose a key is to one process of a writer."""

    FREE = "free"
    OURS = "ours"
    #: Another writer's value stands there.
    TAKEN = "taken"


def claim(
    config_map: Mapping[str, Any], key: str, writer: str, instance: str,
    server_time: float | None,
) -> Claim:  # fmt: skip
    """Return whose a key is. A value whose lease is over is nobody's.

    A former process of the same writer has no claim: its container was started again.
    """
    value = (config_map.get("data") or {}).get(key)
    text = (config_map["metadata"].get("annotations") or {}).get(RECORD + key)
    record = decode(text) if text else None
    if record is not None and record.instance == instance:
        fits = value is None or record.digest == digest(value)
        return Claim.OURS if fits else Claim.TAKEN
    if value is None or (record is not None and record.run != run_of(config_map)):
        return Claim.FREE
    if record is None or record.digest != digest(value):
        return Claim.TAKEN
    lease = record.lease_seconds
    over = lease is not None and age_when_listed(record, server_time) > lease
    return Claim.FREE if over or record.writer == writer else Claim.TAKEN


# --- reading -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as a reader sees it now.

    Attributes:
        key: The key.
        value: The value that may be used; None when there is none, with `why`.
        why: Why there is no value; "" when there is one.
        record: What the writer says; None for a value of NeMo RL's client.
        age_seconds: Time since the writer's last sign of life; None without a record.
    """

    key: str
    value: str | None
    why: str = ""
    record: Record | None = None
    age_seconds: float | None = None

    @property
    def expired(self) -> bool:
        """Whether its lease is over."""
        return self.why == _EXPIRED

    def sign_of_life(self) -> str:
        """Return in words who wrote it last, and how long ago."""
        if self.record is None:
            return "a client that leaves no trace"
        who = self.record.writer + (f" (pod {self.record.pod})" if self.record.pod else "")
        age = "" if self.age_seconds is None else f", {self.age_seconds:.0f} s ago"
        note = f": {self.record.note}" if self.record.note else ""
        return f"{who} said {self.record.state.value}{age}{note}"


_EXPIRED = "its lease is over"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys as a reader sees them now.

    Attributes:
        exists: Whether there is a ConfigMap.
        of_our_run: Whether it is of the reader's run; without, `entries` is empty.
        entries: By key, those without a usable value too.
    """

    exists: bool
    of_our_run: bool
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """The message under which the run has failed; None as long as it has not."""
        found = self.entries.get(ERROR)
        return found.value if found else None

    def value(self, key: str) -> str | None:
        """Return a key's value if it may be used."""
        found = self.entries.get(key)
        return found.value if found else None


@dataclass(slots=True)
class _Sighting:
    text: str
    #: Reader's clock.
    seen_at: float
    #: Age that it had when it was seen first.
    age_then: float


class Reader:
    """Follows one ConfigMap and says what may be believed of it. Not thread-safe.

    It is told of each version of the object when it comes (`see`), and asked at any time.
    """

    def __init__(self, run: Run) -> None:
        """Begin without knowledge."""
        self._run = run
        self._object: Mapping[str, Any] | None = None
        self._sightings: dict[str, _Sighting] = {}
        #: When the last version came about, as far as we know, by the reader's clock.
        self._latest = -math.inf
        #: When the watch said anything, by the reader's clock.
        self._heard = -math.inf
        #: Contact was lost, and what was missed has not all been told yet.
        self._missed = False
        #: A watch was opened, and may be telling what happened before.
        self._opened = False

    def lost(self) -> None:
        """Take note that contact is lost: the changes told next may be old."""
        self._missed = True

    def contact(self, now: float) -> None:
        """Take note that a watch was opened, or that it says that nothing has changed."""
        self._opened = True
        self._heard = now

    def see(
        self,
        config_map: Mapping[str, Any] | None,
        now: float,
        server_time: float | None = None,
        *,
        listed: bool = True,
    ) -> None:
        """Take a version of the object.

        Args:
            config_map: The object; None when there is none.
            now: The reader's monotonic clock.
            server_time: The API server's clock now; None when nobody knows.
            listed: It is how things stand now. A change that a watch tells of may be old: one
                that goes on after a cut tells what it missed.
        """
        self._object = config_map
        # What comes next is no older than what came before it.
        oldest = now - self._latest
        replay = self._replays(now)
        self._heard = now
        if listed:
            self._latest = now
            self._missed = self._opened = False
        if config_map is None or run_of(config_map) != self._run.uid:
            self._sightings.clear()
            return
        annotations = config_map["metadata"].get("annotations") or {}
        known, self._sightings = self._sightings, {}
        for name, text in annotations.items():
            if not name.startswith(RECORD):
                continue
            key = name.removeprefix(RECORD)
            before = known.get(key)
            if before is not None and before.text == text:
                self._sightings[key] = before
            else:
                # A change that is told when it happens is new. Else the server's word counts;
                # but a change is no older than the one before it.
                record = decode(text)
                age = 0.0 if record is None else age_when_listed(record, server_time)
                if not listed:
                    if record is not None and record.at and age <= 0:
                        # It tells the present again.
                        self._missed = self._opened = False
                    age = min(age, oldest) if replay else 0.0
                self._sightings[key] = _Sighting(text, now, age)
                if record is not None and record.at:
                    self._latest = max(self._latest, now - age)

    def _replays(self, now: float) -> bool:
        """Whether the watch may be telling the past: it does so in one go, once it is open."""
        if now - self._heard >= _IDLE_SECONDS:
            self._opened = False
        return self._missed or self._opened

    def snapshot(self, now: float) -> Snapshot:
        """Return what may be believed at this time."""
        found = self._object
        if found is None:
            return Snapshot(exists=False, of_our_run=False)
        if run_of(found) != self._run.uid:
            return Snapshot(exists=True, of_our_run=False)
        data = found.get("data") or {}
        keys = [*data, *(key for key in self._sightings if key not in data)]
        annotations = found["metadata"].get("annotations") or {}
        entries = {
            key: self._entry(key, data.get(key), annotations.get(RECORD + key), now) for key in keys
        }
        return Snapshot(exists=True, of_our_run=True, entries=entries)

    def next_expiry(self, now: float) -> float | None:
        """Return the seconds until the next lease is over, if none is renewed; None for never."""
        left = [
            entry.record.lease_seconds - entry.age_seconds
            for entry in self.snapshot(now).entries.values()
            if entry.value is not None
            and entry.record is not None
            and entry.record.lease_seconds is not None
            and entry.age_seconds is not None
        ]
        return max(0.0, min(left)) if left else None

    def _entry(self, key: str, value: str | None, text: str | None, now: float) -> Entry:
        record = decode(text) if text else None
        sighting = self._sightings.get(key)
        age = None
        if record is not None and sighting is not None:
            age = sighting.age_then + max(0.0, now - sighting.seen_at)
        if value is not None and (record is None or record.digest != digest(value)):
            # Written by a client that knows no records, after ours or without one.
            return Entry(key, value or None, "" if value else "it is empty")
        if record is None:
            return Entry(key, None, "nobody has written it")
        if record.run != self._run.uid:
            return Entry(key, None, "it is of another run", record, age)
        if value is None:
            return Entry(key, None, f"it is {record.state.value}", record, age)
        if record.lease_seconds is not None and (age is None or age > record.lease_seconds):
            return Entry(key, None, _EXPIRED, record, age)
        return Entry(key, value, "", record, age)
