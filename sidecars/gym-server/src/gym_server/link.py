"""The two programs' side of the endpoint registry: news come as events, writes go to a thread.

Nothing here makes the main thread wait, except for the last words of a program, and those have
a short deadline: a request to end must be obeyed while the API server does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from endpoint_registry.records import ERROR, Snapshot, object_name
from endpoint_registry.registry import EndpointRegistry, RegistryError, Superseded
from gym_server.program import Complaint, Lost, News
from gym_server.signals import Mailbox, thread
from tandem_common import logs
from tandem_common.kube import (
    Forbidden,
    Invalid,
    KubeError,
    NamespaceTerminating,
    OwnedByAnother,
    Unauthorized,
)

#: A lease outlives two renewals that fail.
_RENEWALS: Final = 3
#: Seconds for the last words of a program.
_LAST_SECONDS: Final = 5.0
#: Key of the run's verdict; there is none but success, since `error` tells of failures.
VERDICT: Final = "verdict"
SUCCEEDED: Final = "succeeded"
#: What trying again does not mend.
_FINAL: Final = (Forbidden, Unauthorized, Invalid, NamespaceTerminating, Superseded)


def name(job_id: str) -> str:
    """Return the name of a run's ConfigMap."""
    return object_name(job_id)


@dataclass(slots=True)
class _Kept:
    """A value that is kept alive."""

    value: str
    #: Whether a write was begun, and whether one has succeeded.
    tried: bool = False
    written: bool = False
    #: When the next write is due.
    due: float = 0.0


class Registry:
    """One program's endpoints and its view of everybody's."""

    def __init__(self, registry: EndpointRegistry, mailbox: Mailbox, lease_seconds: float) -> None:
        """Take the connection; nothing is read or written before `start`."""
        self._registry = registry
        self._mailbox = mailbox
        self._lease = lease_seconds
        self._log = logs.get_logger()
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        # Held while a value is written, so that none is written after its withdrawal.
        self._writing = threading.Lock()
        self._closed = False
        self._threads = [
            thread("registry-watch", self._watch, mailbox.put),
            thread("registry-write", self._write, mailbox.put),
        ]

    def start(self) -> Self:
        """Begin to tell the news and to write."""
        for each in self._threads:
            each.start()
        return self

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; what is published stays until its lease is over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._registry.close()

    # --- writing -----------------------------------------------------------------------

    def publish(self, key: str, value: str) -> None:
        """Write a value and keep it alive until it is withdrawn."""
        with self._changed:
            self._kept[key] = _Kept(value)
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Take back every value of this program."""
        until = time.monotonic() + _LAST_SECONDS
        with self._changed:
            kept, self._kept = self._kept, {}
        # One that is being written now is written first.
        held = self._writing.acquire(timeout=_LAST_SECONDS)
        try:
            for key in (key for key, one in kept.items() if one.tried):
                self._last_words(f"withdrawing {key}", until, partial(self._withdraw, key))
        finally:
            if held:
                self._writing.release()

    def _withdraw(self, key: str, left: float) -> None:
        self._registry.withdraw(key, "the program ends", timeout=left)

    def fail(self, message: str) -> None:
        """Tell every other program of the run that it has failed, and why."""
        self._last_words(
            "writing the error", time.monotonic() + _LAST_SECONDS,
            lambda left: self._registry.error(message, timeout=left),
        )  # fmt: skip

    def succeed(self) -> None:
        """Write down that the run has succeeded."""
        self._last_words(
            "writing the verdict", time.monotonic() + _LAST_SECONDS,
            lambda left: self._registry.publish(VERDICT, SUCCEEDED, timeout=left),
        )  # fmt: skip

    def _last_words(self, what: str, until: float, say: Callable[[float], object]) -> None:
        try:
            say(max(0.1, until - time.monotonic()))
        except (KubeError, RegistryError) as error:
            # Leases end by themselves, and the peer-watchers look at more than the registry.
            self._log.warning("registry_not_written", what=what, reason=str(error))

    def _write(self) -> None:
        """Write what is due, until closed."""
        while True:
            with self._changed:
                if self._closed:
                    return
                due = min((kept.due for kept in self._kept.values()), default=None)
                now = time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else due - now)
                    continue
                key, kept = next(item for item in self._kept.items() if item[1].due <= now)
            self._write_one(key, kept)

    def _write_one(self, key: str, kept: _Kept) -> None:
        with self._writing:
            with self._changed:
                if self._kept.get(key) is not kept:
                    return
            kept.tried = True
            self._put(key, kept)

    def _put(self, key: str, kept: _Kept) -> None:
        period = self._lease / _RENEWALS
        put = self._registry.renew if kept.written else self._registry.publish
        try:
            # A write that takes longer is better begun anew with what is true then.
            put(key, kept.value, lease_seconds=self._lease, timeout=period)
            if not kept.written:
                self._log.info("published", key=key, value=kept.value)
            kept.written = True
        except OwnedByAnother as error:
            self._log.warning("key_taken", key=key, reason=str(error))
            self._forget(key, kept)
            return
        except _FINAL as error:
            if not kept.written or isinstance(error, Superseded):
                self._mailbox.put(Lost(str(error)))
                self._forget(key, kept)
                return
            self._log.warning("registry_not_written", what=f"renewing {key}", reason=str(error))
        except KubeError as error:
            self._log.warning("registry_not_written", what=f"writing {key}", reason=str(error))
        kept.due = time.monotonic() + (period if kept.written else min(1.0, period))

    def _forget(self, key: str, kept: _Kept) -> None:
        with self._changed:
            if self._kept.get(key) is kept:
                del self._kept[key]

    # --- reading -----------------------------------------------------------------------

    def silence(self, key: str) -> str:
        """Return the last sign of life of whoever writes a key, for messages."""
        error = self._registry.informer.error
        if error is not None:
            return f"the API server cannot be seen now: {error}"
        snapshot = self._registry.snapshot()
        if not snapshot.exists:
            return "there is no such ConfigMap"
        if not snapshot.of_our_run:
            return "the ConfigMap belongs to another run"
        entry = snapshot.entries.get(key)
        if entry is None:
            return "nobody has written it"
        return f"{entry.why}; {entry.sign_of_life()}"

    def _watch(self) -> None:
        try:
            for snapshot in self._registry.watch():
                self._tell(snapshot)
        except KubeError as error:
            self._mailbox.put(Lost(str(error)))

    def _tell(self, snapshot: Snapshot) -> None:
        found = snapshot.entries.get(ERROR)
        if found is not None and found.value is not None:
            ours = found.record is not None and found.record.writer == self._registry.writer
            if not ours:
                self._mailbox.put(Complaint(found.value, found.sign_of_life()))
        values = {
            key: entry.value
            for key, entry in snapshot.entries.items()
            if entry.value is not None and key != ERROR
        }
        self._mailbox.put(News(values))


class Nobody:
    """No registry at all: for what is only checked."""

    def publish(self, key: str, value: str) -> None:
        """Do nothing."""

    def withdraw(self) -> None:
        """Do nothing."""

    def fail(self, message: str) -> None:
        """Do nothing."""

    def succeed(self) -> None:
        """Do nothing."""

    def silence(self, key: str) -> str:
        """Return nothing."""
        del key
        return ""
