"""Looks: a watch for each object of the run, its head pods and the registry.

`observe` puts together what the watches know, at no cost. `confirm` asks the API server
itself, by lists that it must answer from its newest state: pods first, then the objects that
they belong to, so that a suspend that explains missing pods cannot be overlooked. A list of
one name tells "not there" from "no such kind", which a get does not.

Where the account may not watch, `poll` looks every `poll_seconds`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from peer_watcher.convert import head_facts, head_selector, matches, object_facts
from peer_watcher.facts import (
    ABSENT,
    NO_HEAD,
    RAY_KINDS,
    Absent,
    HeadReading,
    Members,
    Namespace,
    NamespaceReading,
    ObjectReading,
    Observation,
    Ref,
    RegistryReading,
    Unknown,
    View,
)
from peer_watcher.registry import registry_facts
from tandem_common.clock import Clock, Deadline
from tandem_common.kube import (
    CONFIGMAPS,
    JOBS,
    JOBSETS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    Client,
    Forbidden,
    Informer,
    KubeError,
    NotFound,
    Resource,
)

Object = Mapping[str, Any]

RESOURCES: Final[dict[str, Resource]] = {
    "RayCluster": RAYCLUSTERS,
    "RayJob": RAYJOBS,
    "JobSet": JOBSETS,
    "Job": JOBS,
    "ConfigMap": CONFIGMAPS,
}
#: One look by hand must not hold up the loop.
_LOOK_SECONDS: Final = 5.0
#: The API server sends a sign of life at least this often into a watch (a bookmark a minute).
_SILENCE_SECONDS: Final = 100.0


class _NamespaceResource(Resource):
    """The run's namespace itself; a Role in a namespace may allow to read that one."""

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of the namespace."""
        del name, subresource
        return f"/api/v1/namespaces/{namespace}"


NAMESPACES: Final = _NamespaceResource("", "v1", "namespaces", "Namespace")


@dataclass(frozen=True, slots=True)
class _Polled:
    at: float
    objects: tuple[Object, ...]


def short(error: KubeError) -> str:
    """Return an error in a few words, with its type: how a query finds it."""
    return f"{type(error).__name__}: {error}"[:300]


class Source:
    """One kind of objects of the run: the one of a name, or those with a label."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        name: str = "",
        label_selector: str = "",
        poll_seconds: float,
        clock: Clock = time.monotonic,
        on_reconnect: Callable[[str], None] = lambda _plural: None,
    ) -> None:
        """Prepare it; nothing is sent until `start`."""
        self.resource = resource
        self._client, self._clock = client, clock
        self._name, self._labels = name, label_selector
        self._poll_seconds = poll_seconds
        self._informer = Informer(
            client, resource, name=name, label_selector=label_selector, clock=clock
        )
        self._polled: _Polled | None = None
        self._poll_error: KubeError | None = None
        self._next_poll = 0.0
        self._on_reconnect = on_reconnect

    def start(self, wake: threading.Event) -> None:
        """Begin to watch; `wake` is set at every change."""
        self._informer.start()
        name = f"wake-{self.resource.plural}"
        threading.Thread(target=self._pump, args=[wake], name=name, daemon=True).start()

    def close(self) -> None:
        """Stop to watch."""
        self._informer.close()

    def _pump(self, wake: threading.Event) -> None:
        seen, broken = 0, False
        while not self._informer.closed:
            seen = self._informer.wait(seen)
            if broken and self._informer.error is None:
                self._on_reconnect(self.resource.plural)
            broken = self._informer.error is not None
            wake.set()

    @property
    def tried(self) -> bool:
        """Whether the API server has said anything yet, or why it does not."""
        return self._informer.synced or self._informer.error is not None

    @property
    def denied(self) -> bool:
        """Whether the account may not watch this."""
        return isinstance(self._informer.error, Forbidden)

    def poll(self) -> None:
        """Look by hand where watching is denied, when it is time to."""
        now = self._clock()
        if not self.denied or now < self._next_poll:
            return
        self._next_poll = now + self._poll_seconds
        try:
            found = self.look()
        except KubeError as error:
            self._poll_error = error
        else:
            self._polled, self._poll_error = _Polled(self._clock(), found), None

    def look(self) -> tuple[Object, ...]:
        """Ask the API server itself.

        Raises:
            KubeError: It does not say.
        """
        deadline = Deadline(_LOOK_SECONDS, self._clock)
        try:
            return self._client.list(
                self.resource, name=self._name, label_selector=self._labels, deadline=deadline
            ).items
        except Forbidden:
            if not self._name:
                raise
        # Some may get, but not list. A 404 that names no object is about the kind.
        try:
            return (self._client.get(self.resource, self._name, deadline=deadline),)
        except NotFound as error:
            if f'"{self._name}"' in str(error):
                return ()
            raise

    def objects(self) -> tuple[Object, ...] | Unknown:
        """Return what is known without asking."""
        informer = self._informer
        error = informer.error
        if informer.synced and error is None:
            silent = self._clock() - (informer.last_contact or 0.0)
            if silent > _SILENCE_SECONDS:
                return Unknown(f"the watch has been silent for {silent:.0f} s")
            return tuple(informer.objects().values())
        if self.denied and self._poll_error is None and self._polled is not None:
            age = self._clock() - self._polled.at
            if age <= 3 * self._poll_seconds:
                return self._polled.objects
        error = self._poll_error or error
        return Unknown(short(error) if error else "not read yet")


def _one(objects: tuple[Object, ...] | Unknown) -> Object | Absent | Unknown:
    if isinstance(objects, Unknown):
        return objects
    return objects[0] if objects else ABSENT


class Observer:
    """All sources of one run."""

    def __init__(
        self,
        client: Client,
        members: Members,
        *,
        head_job: str = "",
        poll_seconds: float = 5.0,
        clock: Clock = time.monotonic,
        on_reconnect: Callable[[str], None] = lambda _plural: None,
    ) -> None:
        """Prepare; nothing is sent until `start`."""
        self._client, self._members, self._clock = client, members, clock
        self._head_job = head_job
        self._poll_seconds = poll_seconds

        def source(resource: Resource, *, name: str = "", label_selector: str = "") -> Source:
            return Source(
                client, resource, name=name, label_selector=label_selector,
                poll_seconds=poll_seconds, clock=clock, on_reconnect=on_reconnect,
            )  # fmt: skip

        self._objects = {ref: source(RESOURCES[ref.kind], name=ref.name) for ref in members.all}
        self._pods: dict[str, Source] = {}
        ray = [ref for ref in members.all if ref.kind in RAY_KINDS]
        if ray:
            label = "ray.io/node-type=head"
            if all(ref.kind == "RayCluster" for ref in ray):
                # The clusters of RayJobs get their names from the operator.
                label += f",ray.io/cluster in ({','.join(ref.name for ref in ray)})"
            self._pods["ray"] = source(PODS, label_selector=label)
        if head_job and any(ref.kind == "JobSet" for ref in members.all):
            label = f"jobset.sigs.k8s.io/replicatedjob-name={head_job}"
            self._pods["jobset"] = source(PODS, label_selector=label)
        self._registry = source(CONFIGMAPS, name=members.registry) if members.registry else None
        self.wake = threading.Event()

    @property
    def _sources(self) -> tuple[Source, ...]:
        found = [*self._objects.values(), *self._pods.values()]
        return (*found, self._registry) if self._registry else tuple(found)

    def start(self) -> None:
        """Begin to watch."""
        for source in self._sources:
            source.start(self.wake)

    @property
    def tried(self) -> bool:
        """Whether every source has been read once, or has failed to.

        Before that, a side could be taken for up whose head is not known yet; that a head
        took its place a moment later could not be told.
        """
        return all(source.tried for source in self._sources)

    @property
    def wait_seconds(self) -> float:
        """How long what is known is good for: without end, unless something has to be polled."""
        polled = any(source.denied for source in self._sources)
        return self._poll_seconds if polled else math.inf

    def close(self) -> None:
        """Stop to watch."""
        for source in self._sources:
            source.close()
        self.wake.set()

    def observe(self) -> Observation:
        """Return what is known now, without asking (but for what may not be watched)."""
        for source in self._sources:
            source.poll()
        return self._put_together(Source.objects, Namespace.ACTIVE, confirmed=False)

    def confirm(self) -> Observation:
        """Ask for everything, in an order in which nothing can be overlooked."""
        return self._put_together(_ask, None, confirmed=True)

    def _put_together(
        self,
        read: Callable[[Source], tuple[Object, ...] | Unknown],
        namespace: NamespaceReading | None,
        *,
        confirmed: bool,
    ) -> Observation:
        pods = {kind: read(source) for kind, source in self._pods.items()}
        registry: RegistryReading = None
        if self._registry is not None:
            found = _one(read(self._registry))
            registry = registry_facts(found) if isinstance(found, Mapping) else found
        objects = {ref: _one(read(source)) for ref, source in self._objects.items()}
        return Observation(
            views={ref: self._view(ref, obj, pods) for ref, obj in objects.items()},
            registry=registry,
            namespace=self._namespace() if namespace is None else namespace,
            confirmed=confirmed,
        )

    def _view(
        self,
        ref: Ref,
        obj: Object | Absent | Unknown,
        pods: Mapping[str, tuple[Object, ...] | Unknown],
    ) -> View:
        found = pods.get("jobset" if ref.kind == "JobSet" else "ray")
        if ref.kind == "Job" or found is None:
            found = None
        if not isinstance(obj, Mapping):
            head: HeadReading = NO_HEAD if found is None else Unknown("its object is not known")
            return View(obj, head if isinstance(obj, Unknown) else NO_HEAD)
        facts: ObjectReading = object_facts(obj)
        if found is None:
            return View(facts)
        if isinstance(found, Unknown):
            return View(facts, found)
        selector = head_selector(obj, self._head_job)
        if selector is None:
            return View(facts, ABSENT)
        heads = [pod for pod in found if matches(selector, pod["metadata"].get("labels") or {})]
        return View(facts, head_facts(heads))

    def _namespace(self) -> NamespaceReading:
        try:
            found = self._client.get(
                NAMESPACES, self._client.config.namespace,
                deadline=Deadline(_LOOK_SECONDS, self._clock),
            )  # fmt: skip
        except NotFound:
            return ABSENT
        except KubeError as error:
            return Unknown(short(error))
        return (
            Namespace.TERMINATING
            if found["metadata"].get("deletionTimestamp")
            else (Namespace.ACTIVE)
        )


def _ask(source: Source) -> tuple[Object, ...] | Unknown:
    try:
        return source.look()
    except KubeError as error:
        return Unknown(short(error))
