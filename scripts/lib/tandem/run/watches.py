"""Kubernetes watches that survive the API server's absence, feeding one queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from typing import Any, cast

import urllib3
from kubernetes import client, watch

from tandem.console import console

#: One watch request lasts this long at most; then it is opened again from a fresh list.
_WATCH_SECONDS = 60
#: Pause before a watch that broke is opened again.
_REOPEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation: kind of object, whether it is gone, and the object as plain data."""

    kind: str
    deleted: bool
    obj: dict[str, Any]


class WatchInto(threading.Thread):
    """Lists and watches one collection and puts every observation into a queue.

    Each time it is opened it starts from a list, so nothing that happened while the
    server was away is lost; an object that vanished meanwhile shows only by its absence,
    which a caller's deadline has to cover.
    """

    def __init__(
        self, kind: str, queue: Queue[Seen], list_call: Callable[..., Any], **arguments: str
    ) -> None:
        """Take the list call to watch and its arguments; `start` begins."""
        super().__init__(daemon=True, name=f"watch-{kind}")
        self._kind, self._queue = kind, queue
        self._list, self._arguments = list_call, arguments
        self._halt = threading.Event()
        self._to_plain = cast(
            Callable[[object], dict[str, Any]], client.ApiClient().sanitize_for_serialization
        )

    def run(self) -> None:
        """Watch until stopped."""
        told = False
        while not self._halt.is_set():
            try:
                watcher: Any = watch.Watch()
                for event in watcher.stream(
                    self._list, **self._arguments,
                    timeout_seconds=_WATCH_SECONDS, _request_timeout=_WATCH_SECONDS + 5,
                ):  # fmt: skip
                    plain = self._to_plain(event["object"])
                    self._queue.put(Seen(self._kind, event["type"] == "DELETED", plain))
                    if self._halt.is_set():
                        return
            except client.ApiException as error:
                if error.status in (401, 403) and not told:
                    told = True
                    console.warn(f"may not watch {self._kind} ({error.status} {error.reason})")
                # Else the watch was too old: list again after a pause.
                self._halt.wait(_REOPEN_SECONDS)
            except (urllib3.exceptions.HTTPError, OSError):
                # The server is away.
                self._halt.wait(_REOPEN_SECONDS)

    def stop(self) -> None:
        """Stop after the observation at hand; the thread is a daemon and holds nothing up."""
        self._halt.set()
