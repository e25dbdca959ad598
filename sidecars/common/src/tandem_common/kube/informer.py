"""A watch in a thread of its own, and what it knows, for any number of readers.

Readers never ask the server: they look at what is known, and wait for it to change. How old
that knowledge may be is told too (`error`, `last_contact`), so that a reader can tell "gone"
from "cannot see".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tandem_common.clock import Clock
from tandem_common.kube.client import Client
from tandem_common.kube.errors import KubeError
from tandem_common.kube.resources import Resource
from tandem_common.kube.watch import Changed, Lost, Synced, Watch, WatchEvent

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0


class Informer:
    """Knows the objects of one kind in one namespace, or the one of one name.

    It never gives up by itself: also what is not transient (403, a kind that is not
    installed yet) is tried again, each time later, up to 15 s; `error` tells.

    Attributes:
        error: Why the server cannot be seen now; None while it can.
        last_contact: Clock's time of the last sign of the server; None before the first.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str = "",
        name: str = "",
        label_selector: str = "",
        window_seconds: float = 60.0,
        clock: Clock = time.monotonic,
        listen: Callable[[WatchEvent], None] = lambda _event: None,
    ) -> None:
        """Prepare it; nothing is sent until `start`.

        Args:
            client: Connection to use.
            resource: Kind to watch.
            namespace: Namespace; the client's when left out.
            name: Name of the one object to watch; all when left out.
            label_selector: Labels of the objects to watch.
            window_seconds: Longest time of one watch request.
            clock: Seconds that only grow.
            listen: Told of each event, in the informer's thread, before readers wake.
        """
        self._listen = listen
        self._client = client
        self._what: dict[str, Any] = {
            "namespace": namespace, "name": name, "label_selector": label_selector,
            "window_seconds": window_seconds,
        }  # fmt: skip
        self._resource = resource
        self._clock = clock
        self._objects: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._synced = False
        self._stop = threading.Event()
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self.error: KubeError | None = None
        self.last_contact: float | None = None

    def start(self) -> Self:
        """Begin to watch; returns at once."""
        name = f"informer-{self._resource.plural}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End the watch and wake every reader."""
        self._stop.set()
        with self._changed:
            watch = self._watch
        if watch is not None:
            watch.close()
        self._bump()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._stop.is_set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs; when it does not although it was not closed, that is a bug."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def synced(self) -> bool:
        """Whether the first list has come."""
        return self._synced

    @property
    def version(self) -> int:
        """A number that grows with everything that happens; for `wait`."""
        return self._version

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the object of that name as last seen; not to be modified."""
        return self._objects.get(name)

    def objects(self) -> dict[str, dict[str, Any]]:
        """Return all objects by name as last seen; the objects are not to be modified."""
        with self._changed:
            return dict(self._objects)

    def wait(self, seen: int, seconds: float | None = None) -> int:
        """Wait until something happened after `seen`, or the time is over; return the version.

        Args:
            seen: `version` as it was before the reader looked.
            seconds: Longest wait; None for any time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, seconds)
            return self._version

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            watch = self._client.watch(self._resource, **self._what)
            with self._changed:
                self._watch = watch
            if self._stop.is_set():
                watch.close()
            try:
                for event in watch:
                    failures = 0
                    self._take(event)
            except KubeError as error:
                failures += 1
                self._fail(error)
                self._stop.wait(min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - 1, 10)))

    def _take(self, event: WatchEvent) -> None:
        self._listen(event)
        if isinstance(event, Lost):
            self._fail(event.error)
            return
        with self._changed:
            self.last_contact = self._clock()
            news = self.error is not None
            self.error = None
            if isinstance(event, Synced):
                self._objects = {item["metadata"]["name"]: item for item in event.items}
                self._synced = news = True
            elif isinstance(event, Changed):
                name = event.object["metadata"]["name"]
                if event.kind == "DELETED":
                    self._objects.pop(name, None)
                else:
                    self._objects[name] = event.object
                news = True
            if news:
                self._version += 1
                self._changed.notify_all()

    def _fail(self, error: KubeError) -> None:
        with self._changed:
            self.error = error
            self._version += 1
            self._changed.notify_all()

    def _bump(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()
