"""Acts on a verdict: writes it down, then deletes, each step safe to repeat.

One pass over the targets is `Actor.advance`; the loop calls it until nothing is left. Every
write names the UID that was seen, so another incarnation of a name is never touched. Two
watchers that do this at once write the same things: the first verdict on an object stays, and
a second delete finds nothing to do.

Deletion is `Foreground`: an object stays until its pods are gone, so "gone" means that the
GPUs are free, and a rerun under the same name cannot meet the old pods. The registry goes
last, so that no writer can make it again. What ends by itself (a finished Job, JobSet or
RayJob with `shutdownAfterJobFinishes`) is left: it keeps its logs and its own record. A JobSet
says that it has failed while its pods still end; these are waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from peer_watcher.convert import (
    JOBSET_LABEL,
    RECORD_ANNOTATION,
    RUN_ID_LABEL,
    VERDICT_ANNOTATION,
    object_facts,
)
from peer_watcher.facts import Outcome, Record, Target, Verdict, record_to_json
from peer_watcher.observe import RESOURCES, short
from tandem_common.clock import Deadline
from tandem_common.kube import (
    EVENTS,
    PODS,
    AlreadyExists,
    Client,
    Conflict,
    KubeError,
    NamespaceTerminating,
    NotFound,
)
from tandem_common.logs import get_logger

FIELD_MANAGER: Final = "peer-watcher"
_REPORTER: Final = "tandem.dev/peer-watcher"
#: The API's own limit for the note of an Event: bytes, whatever its message says.
_NOTE_BYTES: Final = 1024
_CALL_SECONDS: Final = 10.0
_OVER: Final = ("Succeeded", "Failed")

Object = dict[str, Any]


def clip(text: str, size: int) -> str:
    """Return as much of a text as fits into so many bytes of UTF-8, without half a character."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a teardown is.

    Attributes:
        left: Targets that are still there, and are to go.
        faults: What did not work this time.
    """

    left: tuple[Target, ...]
    faults: tuple[str, ...]

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.left and not self.faults


class Actor:
    """Writes and deletes for one watcher."""

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        now: Callable[[], str],
        count: Callable[[str, str], None] = lambda _kind, _result: None,
        run_id: str = "",
    ) -> None:
        """Take what is needed.

        Args:
            client: The API server.
            identity: Name of this watcher, for verdicts and Events.
            now: Wall time as RFC 3339 with microseconds, for people and Events.
            count: Told of each deletion: kind, result.
            run_id: The run's id; Events bear it as a label, so that they are found by it when
                the run's objects are gone.
        """
        self._client = client
        self._identity = identity
        self._now = now
        self._count = count
        self._labels = {RUN_ID_LABEL: run_id} if run_id else {}
        self._log = get_logger()
        #: Whether the verdict stands on some object of the run, be it gone by now.
        self._stands = False

    def remember(self, carrier: Target, record: Record) -> None:
        """Write what is to be remembered onto this side's own object.

        Raises:
            KubeError: It could not be written; it is tried again with the next step.
        """
        self._annotate(carrier, {RECORD_ANNOTATION: record_to_json(record)})

    def event(self, target: Target, *, reason: str, note: str, warning: bool, name: str) -> None:
        """Write an Event on an object; one of that name is written once.

        Raises:
            KubeError: It could not be written.
        """
        resource = RESOURCES[target.ref.kind]
        body = {
            "metadata": {"name": name, "labels": self._labels},
            "eventTime": self._now(),
            "reportingController": _REPORTER,
            "reportingInstance": self._identity,
            "action": "Watch",
            "reason": reason,
            "note": clip(note, _NOTE_BYTES),
            "type": "Warning" if warning else "Normal",
            "regarding": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": target.ref.name,
                "namespace": self._client.config.namespace,
                "uid": target.uid,
            },
        }
        try:
            self._client.create(EVENTS, body, deadline=Deadline(_CALL_SECONDS))
        except AlreadyExists:
            self._log.debug("event_exists", name=name)

    def advance(self, verdict: Verdict) -> Progress:
        """Do everything that can be done now.

        Nothing is deleted before the verdict stands on the server: as an Event or as an
        annotation of at least one object.
        """
        signed = verdict if verdict.by else replace(verdict, by=self._identity, at=self._now())
        faults: list[str] = []
        members = [t for t in signed.targets if t.ref.kind != "ConfigMap"]
        present = {t: obj for t in members if (obj := self._find(t, faults)) is not None}
        written = [self._write_down(signed, t, obj, faults) for t, obj in present.items()]
        self._stands = self._stands or any(written)
        if present and not any(written):
            return Progress(tuple(present), tuple(faults))
        left = [t for t, obj in present.items() if not self._delete(t, obj, faults)]
        if not left and not faults:
            registry = [t for t in signed.targets if t.ref.kind == "ConfigMap"]
            there = {t: obj for t in registry if (obj := self._find(t, faults)) is not None}
            if not there and not self._stands and not faults:
                # All was gone before anyone could write on it: an Event may be of what is gone.
                self._stands = any(self._tell(signed, t, faults) for t in members[:1])
            left = [
                t for t, obj in there.items()
                if not (self._tell_on_registry(signed, t, faults) and self._delete(t, obj, faults))
            ]  # fmt: skip
        return Progress(tuple(left), tuple(faults))

    def _find(self, target: Target, faults: list[str]) -> Object | None:
        """Return the very object that was seen; None when it is gone."""
        try:
            obj = self._client.get(
                RESOURCES[target.ref.kind], target.ref.name, deadline=Deadline(_CALL_SECONDS)
            )
        except NotFound:
            return None
        except KubeError as error:
            faults.append(short(error))
            return None
        return obj if obj["metadata"]["uid"] == target.uid else None

    def _write_down(self, verdict: Verdict, target: Target, obj: Object, faults: list[str]) -> bool:
        """Write the verdict as annotation and as Event; return whether one of them stands."""
        standing = False
        annotations = obj["metadata"].get("annotations") or {}
        found = Verdict.from_json(str(annotations.get(VERDICT_ANNOTATION, "")))
        if found is not None and found.covers(target.ref, target.uid):
            standing = True
        else:
            try:
                version = str(obj["metadata"]["resourceVersion"])
                self._annotate(target, {VERDICT_ANNOTATION: verdict.to_json()}, version)
                standing = True
            except NotFound:
                pass
            except KubeError as error:
                # A conflict: somebody wrote at the same time. The next pass reads it.
                faults.append(short(error))
        told = self._tell(verdict, target, faults)
        return standing or told

    def _tell(self, verdict: Verdict, target: Target, faults: list[str]) -> bool:
        """Write the verdict as Event; return whether it stands."""
        try:
            self.event(
                target,
                reason="RunSucceeded" if verdict.outcome is Outcome.SUCCEEDED else "RunFailed",
                note=f"{verdict.reason} [{verdict.rule}]; {'; '.join(verdict.evidence)}",
                warning=verdict.outcome is Outcome.FAILED,
                name=f"{target.ref.name}.verdict-{target.uid}",
            )
        except NamespaceTerminating:
            self._log.info("event_refused", reason="the namespace is being deleted")
        except KubeError as error:
            faults.append(short(error))
        else:
            return True
        return False

    def _tell_on_registry(self, verdict: Verdict, target: Target, faults: list[str]) -> bool:
        """Write the verdict as Event on the registry; return whether it stands there or did.

        With every other object gone before anyone could write on it, the registry is all that
        is left to carry the reason.
        """
        return self._tell(verdict, target, faults) or self._stands

    def _annotate(
        self, target: Target, annotations: dict[str, str], resource_version: str = ""
    ) -> None:
        preconditions = {"uid": target.uid}
        if resource_version:
            preconditions["resourceVersion"] = resource_version
        self._client.merge_patch(
            RESOURCES[target.ref.kind],
            target.ref.name,
            {"metadata": {"annotations": annotations, **preconditions}},
            field_manager=FIELD_MANAGER,
            deadline=Deadline(_CALL_SECONDS),
        )

    def _delete(self, target: Target, obj: Object, faults: list[str]) -> bool:
        """Ask for the deletion unless it is under way; return whether nothing is left to do."""
        kind = target.ref.kind
        if kind != "ConfigMap":
            facts = object_facts(obj)
            if facts.ended is not None and facts.frees_itself:
                return kind != "JobSet" or self._freed(target, faults)
        if obj["metadata"].get("deletionTimestamp"):
            return False
        try:
            self._client.delete(
                RESOURCES[kind], target.ref.name, uid=target.uid, propagation="Foreground",
                deadline=Deadline(_CALL_SECONDS),
            )  # fmt: skip
        except NotFound:
            self._count(kind, "gone")
            return True
        except Conflict as error:
            # Another incarnation by now, or somebody wrote at the same time: the API server
            # says the same to both, and only a look tells.
            return self._gone_after_all(target, error, faults)
        except KubeError as error:
            self._count(kind, "error")
            faults.append(short(error))
            return False
        self._count(kind, "deleted")
        self._log.info("deleted", object=str(target.ref), uid=target.uid)
        return kind == "ConfigMap"

    def _freed(self, target: Target, faults: list[str]) -> bool:
        """Return whether the pods of a JobSet have ended: until then they may write."""
        try:
            pods = self._client.list(
                PODS, label_selector=f"{JOBSET_LABEL}={target.ref.name}",
                deadline=Deadline(_CALL_SECONDS),
            )  # fmt: skip
        except KubeError as error:
            faults.append(short(error))
            return False
        return all((pod.get("status") or {}).get("phase") in _OVER for pod in pods.items)

    def _gone_after_all(self, target: Target, error: Conflict, faults: list[str]) -> bool:
        """Look again after a refused deletion; what is still there is left to the next pass."""
        kind, unread = target.ref.kind, len(faults)
        if self._find(target, faults) is None and len(faults) == unread:
            self._count(kind, "gone")
            return True
        self._count(kind, "error")
        faults.append(short(error))
        return False
