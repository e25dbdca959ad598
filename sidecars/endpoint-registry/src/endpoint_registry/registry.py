"""The library: create, publish, wait, get, error, watch. Decisions are in `records`."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

from endpoint_registry import records
from endpoint_registry.records import (
    Claim,
    Entry,
    Owner,
    Reader,
    Record,
    Run,
    Snapshot,
    Standing,
    State,
)
from tandem_common.clock import Clock, Deadline
from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBSETS,
    RAYCLUSTERS,
    RAYJOBS,
    Changed,
    Client,
    Conflict,
    Contact,
    DeadlineExceeded,
    Forbidden,
    Informer,
    Invalid,
    KubeError,
    Lost,
    NotFound,
    OtherObject,
    OwnedByAnother,
    Unauthorized,
    WatchEvent,
    load_config,
)
from tandem_common.kube.client import wait_seconds
from tandem_common.kube.errors import Call

#: Kinds that may own a run, as `--run-object` names them.
TOP_OBJECTS = {kind.kind: kind for kind in (RAYJOBS, RAYCLUSTERS, JOBSETS)}
#: What may be made to go with a run's top object.
ADOPTABLE = {kind.kind: kind for kind in (DEPLOYMENTS,)}

_WRITE_SECONDS = 30.0
_NOTE_LENGTH = 300
#: First limit that the server gets for a write; see `Client.merge_patch`.
_PATCH_SECONDS = 2


class RegistryError(Exception):
    """Something about the registry that no fault of the network explains."""


class PeerError(RegistryError):
    """The run has failed: another role left a message under `error`.

    Attributes:
        message: What it says.
    """

    def __init__(self, message: str, by: str) -> None:
        """Keep the message; `by` tells who wrote it."""
        self.message = message
        super().__init__(f"the run has failed: {message} ({by})")


class RegistryTimeout(RegistryError, TimeoutError):  # noqa: N818 - a kind of TimeoutError
    """An endpoint did not appear in time; the message names who should have written it."""


class Superseded(RegistryError):  # noqa: N818 - what happened, not what went wrong
    """The object belongs to a run that is not ours and must not be replaced by us."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a waiter can tell while it waits."""

    elapsed: float
    why: str


class EndpointRegistry:
    """The endpoints of one run. Thread-safe; any number of threads may wait."""

    def __init__(
        self,
        job_id: str,
        *,
        namespace: str = "",
        run_uid: str,
        run_started: str = "",
        run_attempt: int = 0,
        writer: str = "",
        pod_uid: str = "",
        owners: Sequence[Owner] = (),
        client: Client | None = None,
        clock: Clock = time.monotonic,
        watch_window_seconds: float = 60.0,
        attempts: int = 100,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            job_id: The job's id, as NeMo RL's `env.disagg_job_id`.
            namespace: Namespace; by default the one of the client's configuration.
            run_uid: What tells this run from every other: its top object's UID.
            run_started: That object's creationTimestamp; without it a former run's ConfigMap
                is not replaced, since nobody could tell it from a later run's.
            run_attempt: Number of the attempt when one top object is tried several times.
            writer: Who writes, such as `gym`; needed to write.
            pod_uid: Pod of the writer, for people who look into it.
            owners: Objects that the ConfigMap goes with.
            client: Connection to use; it stays open. By default one of its own.
            clock: Seconds that only grow.
            watch_window_seconds: Longest time of one watch request.
            attempts: How often a write looks again when others were in its way; at least 1.
        """
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: at least 1")
        self._attempts = attempts
        self._owns_client = client is None
        self._client = client or Client(load_config(), user_agent="endpoint-registry")
        self.namespace = namespace or self._client.config.namespace
        epoch = f"{run_uid}.{run_attempt}" if run_attempt else run_uid
        self.run = Run(epoch, run_started, run_attempt)
        self.job_id = job_id
        self.name = records.object_name(job_id)
        self.writer = writer
        problems = list(_identity_problems(job_id, self.namespace, epoch))
        if problems:
            raise UserError(problems, ExitCode.USAGE)
        self._pod_uid = pod_uid
        self._owners = tuple(owners)
        self._clock = clock
        self._window = watch_window_seconds
        self._lock = threading.Lock()
        self._reader = Reader(self.run)
        self._informer: Informer | None = None
        self._uid = ""
        self._was_ours = False
        self._beats = count(1)
        self._instance = uuid.uuid4().hex[:8]
        #: What our records said when we last wrote them, by key.
        self._left: dict[str, str] = {}
        #: How often something else than the plain case happened, by name; for metrics.
        self.counts = {"conflicts": 0, "created": 0, "replaced": 0}

    def close(self) -> None:
        """Stop watching; waiters end with `RegistryError`."""
        with self._lock:
            informer = self._informer
        if informer is not None:
            informer.close()
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Self:
        """Return the registry."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # --- writing -----------------------------------------------------------------------

    def create(self, *, timeout: float = _WRITE_SECONDS) -> None:
        """Make sure that the ConfigMap is this run's; a former run's is replaced.

        Raises:
            Superseded: It belongs to a run that began later, or may have.
            DeadlineExceeded: Time or attempts are over; also when an object that is being
                deleted does not go.
            KubeError: The API server did not let us.
        """
        self._ours(Deadline(timeout, self._clock))

    def publish(
        self,
        key: str,
        value: str,
        *,
        lease_seconds: float | None = None,
        timeout: float = _WRITE_SECONDS,
    ) -> None:
        """Write one key; the last to publish a key has it.

        With a lease, `renew` has to be called before it is over, else readers stop to
        believe the value.

        Raises:
            UserError: Key, value or lease are none.
            Superseded: The run is over: the ConfigMap belongs to a later one.
            DeadlineExceeded: Time or attempts are over.
            KubeError: The API server did not let us.
        """
        self._check(key, value, lease_seconds)
        deadline = Deadline(timeout, self._clock)
        # Bounded: `_pause` ends it with the time or the attempts, here and in all such loops.
        for attempt in count(1):
            uid = self._uid or self._ours(deadline)["metadata"]["uid"]
            record = self._record(State.PUBLISHED, lease_seconds, value=value)
            try:
                self._write(records.patch(uid, key, record, value), deadline)
            except (NotFound, OtherObject) as error:
                self._lost(attempt, error, deadline)
                continue
            self._left[key] = record.encode()
            return

    def renew(
        self,
        key: str,
        value: str,
        *,
        lease_seconds: float | None = None,
        timeout: float = _WRITE_SECONDS,
    ) -> None:
        """Say that a published value still holds; never takes a key from another writer.

        One request. A ConfigMap that was deleted is made again, with the value.

        Raises:
            OwnedByAnother: Another writer has published the key since.
        """
        self._check(key, value, lease_seconds)
        deadline = Deadline(timeout, self._clock)
        make = partial(self._record, State.PUBLISHED, lease_seconds, value=value)
        before = self._left.get(key)
        if self._uid and before is not None:
            record = make()
            operations = records.renewal(self._uid, key, before, record, value)
            try:
                with self._rights():
                    self._client.json_patch(
                        CONFIGMAPS, self.name, operations, namespace=self.namespace,
                        field_manager=records.MANAGER, deadline=deadline,
                    )  # fmt: skip
            except (NotFound, Conflict, Invalid):
                # It is not as we left it. An answer of ours that was lost is harmless,
                # another writer is not: look.
                self.counts["conflicts"] += 1
            else:
                self._left[key] = record.encode()
                return
        if not self._put_unless_taken(key, make, value, deadline):
            call = Call("patch", CONFIGMAPS.plural, "", self.namespace, self.name)
            raise OwnedByAnother(call, f"another writer has published {key}")

    def announce(
        self,
        key: str,
        note: str,
        *,
        state: State = State.PENDING,
        lease_seconds: float | None = None,
        timeout: float = _WRITE_SECONDS,
    ) -> bool:
        """Say that there is no value, and why; readers who give up repeat it.

        Returns:
            Whether it was said; not so when another writer has the key.
        """
        self._check(key, None, lease_seconds)
        make = partial(self._record, state, lease_seconds, note=note[:_NOTE_LENGTH])
        deadline = Deadline(timeout, self._clock)
        return self._put_unless_taken(key, make, None, deadline, heir=state is State.PENDING)

    def withdraw(self, key: str, note: str = "", *, timeout: float = _WRITE_SECONDS) -> bool:
        """Take one's own value back; another writer's stays. Returns whether it was ours."""
        return self.announce(key, note, state=State.WITHDRAWN, timeout=timeout)

    def error(self, message: str, *, timeout: float = _WRITE_SECONDS) -> bool:
        """Fail the run: every waiter ends at once with this message.

        The first error is the cause, later ones are its consequences: the first is kept.

        Returns:
            Whether ours is the one that counts.
        """
        text = message.strip() or "an error without a message"
        text = text.encode()[: records.VALUE_BYTES // 2].decode(errors="ignore")
        self._check(records.ERROR, text, None)
        make = partial(self._record, State.PUBLISHED, None, value=text)
        deadline = Deadline(timeout, self._clock)
        return self._put_unless_taken(records.ERROR, make, text, deadline, keep_first=True)

    # --- reading -----------------------------------------------------------------------

    def get(self, key: str, *, timeout: float = _WRITE_SECONDS) -> str | None:
        """Return the value now, or None; one request, no waiting for the key.

        Raises:
            PeerError: The run has failed.
            KubeError: The API server did not answer, or did not let us.
        """
        snapshot = self.read(timeout=timeout)
        self._raise_error(snapshot, key)
        return snapshot.value(key)

    def read(self, *, timeout: float = _WRITE_SECONDS) -> Snapshot:
        """Return all keys as they are now: one request."""
        found = self._client.list(
            CONFIGMAPS, namespace=self.namespace, name=self.name,
            deadline=Deadline(timeout, self._clock),
        )  # fmt: skip
        reader = Reader(self.run)
        now = self._clock()
        reader.see(found.items[0] if found.items else None, now, found.server_time)
        return reader.snapshot(now)

    def snapshot(self) -> Snapshot:
        """Return all keys as last seen by the watch, which starts with the first call.

        Costs no request. It holds nothing until the first answer: see `informer`.
        """
        _ = self.informer
        with self._lock:
            return self._reader.snapshot(self._clock())

    @property
    def informer(self) -> Informer:
        """The watch behind `wait`, `watch` and `snapshot`; started when it is first needed."""
        with self._lock:
            if self._informer is None:
                self._informer = Informer(
                    self._client, CONFIGMAPS, namespace=self.namespace, name=self.name,
                    window_seconds=self._window, clock=self._clock, listen=self._see,
                ).start()  # fmt: skip
            return self._informer

    def wait(
        self,
        key: str,
        *,
        timeout: float = 600.0,
        expected_writer: str = "",
        on_progress: Callable[[Progress], None] | None = None,
        progress_seconds: float = 10.0,
    ) -> str:
        """Wait for a value and return it.

        Args:
            key: The key.
            timeout: Longest wait in seconds.
            expected_writer: Who should write it, for the message; known for NeMo RL's keys.
            on_progress: Called about every `progress_seconds` with how it stands.
            progress_seconds: See `on_progress`.

        Raises:
            PeerError: The run has failed; raised at once.
            RegistryTimeout: The time is over.
            Unauthorized, Forbidden: The API server does not let us read; raised at once.
        """
        self._check(key, None, None)
        deadline = Deadline(timeout, self._clock)
        informer = self.informer
        told = 0.0
        while True:
            version = informer.version
            snapshot = self.snapshot()
            self._raise_error(snapshot, key)
            value = snapshot.value(key)
            if value is not None:
                return value
            if informer.closed:
                raise RegistryError(f"the registry was closed while {key} was waited for")
            if isinstance(informer.error, Unauthorized | Forbidden):
                raise informer.error
            if deadline.passed:
                who = expected_writer or records.WRITERS.get(key, "no one that is known here")
                raise RegistryTimeout(self._missing(key, who, timeout, snapshot, informer.error))
            if on_progress is not None and deadline.elapsed >= told:
                told = deadline.elapsed + progress_seconds
                on_progress(Progress(deadline.elapsed, _why(key, snapshot, informer.error)))
            informer.wait(version, deadline.within(progress_seconds))

    def watch(self, *, timeout: float | None = None) -> Iterator[Snapshot]:
        """Yield how things stand, and again whenever that changes, a lease that ends included.

        It ends with the time or `close`. It does not end by an `error`: that is in the
        snapshot.
        """
        deadline = Deadline(timeout, self._clock)
        informer = self.informer
        last: Any = None
        while not informer.closed:
            version = informer.version
            snapshot = self.snapshot()
            shown = (
                snapshot.exists, snapshot.of_our_run,
                {key: (entry.value, entry.why) for key, entry in snapshot.entries.items()},
            )  # fmt: skip
            if informer.synced and shown != last:
                last = shown
                yield snapshot
                continue
            if isinstance(informer.error, Unauthorized | Forbidden):
                raise informer.error
            if deadline.passed:
                return
            with self._lock:
                expiry = self._reader.next_expiry(self._clock())
            # A little later than the lease's end, so that it is over when we look.
            left = deadline.within(60.0 if expiry is None else expiry + 0.05)
            informer.wait(version, left)

    # --- inside ------------------------------------------------------------------------

    def _see(self, event: WatchEvent) -> None:
        now = self._clock()
        with self._lock:
            if isinstance(event, Lost):
                self._reader.lost()
            elif isinstance(event, Contact):
                self._reader.contact(now)
            elif isinstance(event, Changed):
                found = None if event.kind == "DELETED" else event.object
                self._reader.see(found, now, self._client.server_time(), listed=False)
            else:
                found = event.items[0] if event.items else None
                self._reader.see(found, now, event.server_time)

    def _check(self, key: str, value: str | None, lease_seconds: float | None) -> None:
        problems = list(records.key_problems(key))
        if value is not None:
            problems += records.value_problems(key, value)
        if lease_seconds is not None:
            problems += records.lease_problems(f"lease_seconds={lease_seconds}", lease_seconds)
        if problems:
            raise UserError(problems, ExitCode.USAGE)

    def _record(
        self, state: State, lease_seconds: float | None, *, value: str = "", note: str = ""
    ) -> Record:
        if not self.writer:
            what = "no writer is named: nobody could tell who wrote this"
            raise UserError(Problem(what, "set writer, such as gym"), ExitCode.USAGE)
        return Record(
            run=self.run.uid, writer=self.writer, pod=self._pod_uid,
            at=records.stamp(self._client.server_time()), instance=self._instance,
            state=state, lease_seconds=lease_seconds, beat=next(self._beats),
            digest=records.digest(value) if value else "", note=note,
        )  # fmt: skip

    def _write(self, patch: Mapping[str, Any], deadline: Deadline) -> None:
        """Send the patch of one key."""
        with self._rights():
            self._client.merge_patch(
                CONFIGMAPS, self.name, patch, namespace=self.namespace,
                field_manager=records.MANAGER, server_seconds=_PATCH_SECONDS, deadline=deadline,
            )  # fmt: skip

    @contextmanager
    def _rights(self) -> Iterator[None]:
        """Explain a refusal of what was allowed before.

        A namespace that is being deleted loses roles and accounts before the rest, so the
        Role's text is not what has to be mended.
        """
        try:
            yield
        except (Forbidden, Unauthorized) as error:
            if not self._was_ours:
                raise
            raise type(error)(
                error.call,
                "it was allowed before and is not any more: the namespace is being deleted and "
                "has lost its rights first, or somebody took them away",
                status=error.status, reason=error.reason,
            ) from error  # fmt: skip

    def _put_unless_taken(
        self,
        key: str,
        make: Callable[[], Record],
        value: str | None,
        deadline: Deadline,
        *,
        heir: bool = False,
        keep_first: bool = False,
    ) -> bool:
        """Look whose the key is, and write it if it is nobody's or ours; say whether it is.

        The patch holds for the version that was looked at and for no other.

        Args:
            key: The key.
            make: Returns the record, when the server's time is known.
            value: The value; None removes it.
            deadline: End of all attempts.
            heir: What a former process of the same writer left is ours.
            keep_first: Any value that is there already stays.
        """
        for attempt in count(1):
            found = self._ours(deadline)
            whose = records.claim(
                found, key, self.writer if heir else "", self._instance,
                self._client.server_time(),
            )  # fmt: skip
            if keep_first and (found.get("data") or {}).get(key):
                return whose is Claim.OURS
            if whose is Claim.TAKEN:
                return False
            record, metadata = make(), found["metadata"]
            body = records.patch(
                metadata["uid"], key, record, value,
                resource_version=metadata["resourceVersion"],
            )  # fmt: skip
            try:
                self._write(body, deadline)
            except (NotFound, Conflict) as error:
                self._lost(attempt, error, deadline)
                continue
            self._left[key] = record.encode()
            return True
        raise AssertionError("unreachable: the loop returns or raises")

    def _ours(self, deadline: Deadline) -> dict[str, Any]:
        """Return this run's object as it is now; make, adopt or replace it if need be."""
        for attempt in count(1):
            try:
                with self._rights():
                    found = self._look(deadline)
                    ours = self._take_over(found, deadline)
            except Conflict as error:
                # Somebody did something at the same time: look again.
                self._lost(attempt, error, deadline)
                continue
            if ours is not None:
                self._uid = str(ours["metadata"]["uid"])
                self._was_ours = True
                return ours
            self._pause(attempt, self._going(found), deadline)
        raise AssertionError("unreachable: the loop returns or raises")

    def _look(self, deadline: Deadline) -> dict[str, Any] | None:
        try:
            return self._client.get(
                CONFIGMAPS, self.name, namespace=self.namespace, deadline=deadline
            )
        except NotFound:
            return None

    def _take_over(self, found: dict[str, Any] | None, deadline: Deadline) -> dict[str, Any] | None:
        """Make, adopt or replace it; None while there is one that is being deleted."""
        if found is None:
            return self._make(deadline)
        what = records.standing(found, self.run, self._owners, had=self._was_ours)
        if what is Standing.NEWER:
            raise Superseded(self._hands_off(found))
        metadata = found["metadata"]
        if "deletionTimestamp" in metadata:
            return None
        if what is not Standing.FOREIGN:
            return self._claim(found, deadline)
        try:
            left = self._client.delete(
                CONFIGMAPS, self.name, namespace=self.namespace, uid=str(metadata["uid"]),
                resource_version=str(metadata["resourceVersion"]), deadline=deadline,
            )  # fmt: skip
        except NotFound:
            left = {}
        self.counts["replaced"] += 1
        # The server answers with the object when a finalizer holds it.
        held = "deletionTimestamp" in (left.get("metadata") or {})
        return None if held else self._make(deadline)

    def _make(self, deadline: Deadline) -> dict[str, Any]:
        made = self._client.create(
            CONFIGMAPS, records.new_object(self.job_id, self.run, self._owners),
            namespace=self.namespace, field_manager=records.MANAGER, deadline=deadline,
        )  # fmt: skip
        self.counts["created"] += 1
        return made

    def _hands_off(self, found: Mapping[str, Any]) -> str:
        """Return in words why an object is not replaced."""
        what = f"ConfigMap {self.namespace}/{self.name}"
        theirs = records.run_of(found)
        if not theirs:
            return f"{what} was made again for owners that are not those of our run {self.run.uid}"
        known = self.run.started or "nobody knows when"
        return (
            f"{what} belongs to run {theirs}; it is replaced only if that run surely began before "
            f"ours, {self.run.uid}, which began: {known}"
        )

    def _going(self, found: Mapping[str, Any] | None) -> Conflict:
        """Return what is in the way when an object is being deleted."""
        holders = ((found or {}).get("metadata") or {}).get("finalizers") or ()
        by = f", held by finalizers {', '.join(holders)}" if holders else ""
        call = Call("create", CONFIGMAPS.plural, "", self.namespace, self.name)
        return Conflict(call, f"the ConfigMap that is there is being deleted{by}")

    def _claim(self, found: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Add to an object of this run what it lacks: our label, our owners."""
        there = {each.get("uid") for each in found["metadata"].get("ownerReferences") or []}
        missing = [owner for owner in self._owners if owner.uid not in there]
        if records.run_of(found) == self.run.uid and not missing:
            return found
        body = records.new_object(self.job_id, self.run, missing)
        body["metadata"]["uid"] = found["metadata"]["uid"]
        # An apply, since it adds to the list of owners. One manager for each set of owners:
        # an apply takes away what its manager left out.
        owners = records.digest(",".join(sorted(owner.uid for owner in missing)))
        return self._client.apply(
            CONFIGMAPS, body, namespace=self.namespace, force=True, deadline=deadline,
            field_manager=f"{records.MANAGER}/owners/{owners}",
        )  # fmt: skip

    def _lost(self, attempt: int, error: KubeError, deadline: Deadline) -> None:
        """Forget the object that is gone, another, or changed; wait before the next look."""
        self._uid = ""
        self.counts["conflicts"] += 1
        self._pause(attempt, error, deadline)

    def _pause(self, attempt: int, error: KubeError, deadline: Deadline) -> None:
        """Wait before the next look, longer each time; end when time or attempts are over."""
        # Small waits: the next look finds out what has happened.
        wait = wait_seconds(attempt)
        if attempt >= self._attempts or wait >= deadline.remaining:
            raise DeadlineExceeded(error.call, error, attempt, deadline.elapsed) from error
        time.sleep(wait)

    def _raise_error(self, snapshot: Snapshot, key: str) -> None:
        if snapshot.error is not None and key != records.ERROR:
            raise PeerError(snapshot.error, snapshot.entries[records.ERROR].sign_of_life())

    def _missing(
        self, key: str, who: str, timeout: float, snapshot: Snapshot, error: KubeError | None
    ) -> str:
        """Return the message of a timeout."""
        entry = snapshot.entries.get(key)
        if entry is not None:
            sign = entry.sign_of_life()
        else:
            others = [f"{other.key}: {other.sign_of_life()}" for other in snapshot.entries.values()]
            sign = "none" + (f" for this key; others: {'; '.join(others)}" if others else "")
        return (
            f"{key} did not appear in ConfigMap {self.namespace}/{self.name} within "
            f"{timeout:g} s: {_why(key, snapshot, error)}. It is to be written by {who}. "
            f"Last sign of life: {sign}. Our run is {self.run.uid}"
        )


def _why(key: str, snapshot: Snapshot, error: KubeError | None) -> str:
    """Return in words why there is no value."""
    if error is not None:
        return f"the API server cannot be seen now: {error}"
    if not snapshot.exists:
        return "there is no such ConfigMap"
    if not snapshot.of_our_run:
        return "the ConfigMap belongs to another run"
    entry: Entry | None = snapshot.entries.get(key)
    if entry is None:
        return "nobody has written it"
    return f"{entry.why}; {entry.sign_of_life()}" if entry.record else entry.why


def _identity_problems(job_id: str, namespace: str, run_uid: str) -> Iterator[Problem]:
    """Yield what is wrong with the names that everything else stands on."""
    for what, value, fix in (
        ("job_id", job_id, "such as my-run-1"),
        ("namespace", namespace, "the run's namespace, such as tandem"),
        ("run_uid", run_uid.partition(".")[0], "the UID of the run's top object"),
    ):
        if not value:
            yield Problem(f"{what} is missing", fix)
        elif not records.is_label(value):
            yield Problem(f"{what}={value!r}: no DNS label (a-z, 0-9, '-', at most 63 long)", fix)


def resolve_run(
    client: Client, top: str, *, namespace: str = "", attempt: int = 0, timeout: float = 30.0
) -> tuple[Run, Owner]:
    """Return run and owner of a top object such as `RayJob/my-run`.

    Raises:
        UserError: It is not written so.
        NotFound: There is no such object.
    """
    kind, _, name = top.partition("/")
    if kind not in TOP_OBJECTS or not name:
        raise UserError(
            Problem(f"{top!r} names no object", f"KIND/NAME, KIND one of {', '.join(TOP_OBJECTS)}"),
            ExitCode.USAGE,
        )
    resource = TOP_OBJECTS[kind]
    found = client.get(resource, name, namespace=namespace, deadline=Deadline(timeout))["metadata"]
    owner = Owner(resource.api_version, kind, name, str(found["uid"]))
    return Run(owner.uid, str(found["creationTimestamp"]), attempt), owner


def adoptable_problems(thing: str) -> Iterator[Problem]:
    """Yield what is wrong with the name of something that is to go with a run."""
    kind, _, name = thing.partition("/")
    if kind not in ADOPTABLE or not name:
        yield Problem(
            f"{thing!r} names no object", f"KIND/NAME, KIND one of {', '.join(ADOPTABLE)}"
        )


def adopt(
    client: Client, thing: str, owner: Owner, *, namespace: str = "", timeout: float = 30.0
) -> bool:
    """Let an object such as `Deployment/judge` go with the run; return whether it was so already.

    Other owners stay; the garbage collector takes out by itself those that are gone.

    Raises:
        UserError: It is not written so.
        NotFound: There is no such object.
    """
    if problems := list(adoptable_problems(thing)):
        raise UserError(problems, ExitCode.USAGE)
    kind, _, name = thing.partition("/")
    resource, deadline = ADOPTABLE[kind], Deadline(timeout)
    ours = owner.reference()
    while True:
        found = client.get(resource, name, namespace=namespace, deadline=deadline)["metadata"]
        owners = found.get("ownerReferences") or []
        if any(each["uid"] == owner.uid for each in owners):
            return True
        metadata = {
            "resourceVersion": found["resourceVersion"], "ownerReferences": [*owners, ours],
        }  # fmt: skip
        try:
            client.merge_patch(
                resource, name, {"metadata": metadata}, field_manager="endpoint-registry",
                namespace=namespace, deadline=deadline,
            )  # fmt: skip
        except Conflict:
            continue
        return False


__all__ = [
    "EndpointRegistry",
    "PeerError",
    "Progress",
    "RegistryError",
    "RegistryTimeout",
    "Superseded",
    "adopt",
    "adoptable_problems",
    "resolve_run",
]
