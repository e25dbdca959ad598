"""The output of a run's containers, read while they live: a pod that is gone has no log.

One thread reads one container; a connection that breaks is opened again where it broke.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client

from tandem.run.kube import api_client
from tandem.run.shapes import role_of

Object = dict[str, Any]

#: A container that says nothing for so long is asked again; nothing is lost by it.
_READ_TIMEOUT_SECONDS = 60.0
_CONNECT_TIMEOUT_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
_NANOSECOND_DIGITS = 9
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?")


#: What reading a log can end with before its end.
UNREADABLE = (client.ApiException, urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Source:
    """One container of a run."""

    namespace: str
    pod: str
    uid: str
    container: str
    role: str
    #: A container that is started again has a log of its own.
    restarts: int = 0

    @property
    def label(self) -> str:
        """What a person reads before each line."""
        name = f"{self.role or self.pod}/{self.container}"
        return f"{self.role}/" if self.container == self.role else name


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a container; `stamp` (UTC, nanoseconds) sorts lines of all."""

    source: Source
    stamp: str
    text: str


def parse(raw: bytes) -> tuple[str, str]:
    """Return the stamp of a line, all of one length so that they sort, and its text."""
    found = _STAMP.match(raw)
    text = raw[found.end() if found else 0 :].decode("utf-8", errors="replace").rstrip("\r\n")
    if not found:
        return "", text
    fraction = (found[2] or b"").decode().ljust(_NANOSECOND_DIGITS, "0")
    return f"{found[1].decode()}.{fraction}Z", text


def begun(pod: Object) -> list[Source]:
    """Return those containers of a pod that run or have run: only these have a log."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    return [
        Source(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            each["name"],
            role_of(pod),
            int(each.get("restartCount") or 0),
        )
        for key in ("initContainerStatuses", "containerStatuses")
        for each in status.get(key) or []
        if not (each.get("state") or {}).get("waiting")
    ]


def lines_of(
    api: client.ApiClient, source: Source, *, follow: bool, since: str = "", tail: int = 0
) -> Iterator[Line]:
    """Yield a container's lines, from a stamp on, until it ends or the connection does.

    Raises:
        ApiException: The API server refuses (404: the pod is gone).
        HTTPError: The connection broke.
    """
    query = [("container", source.container), ("timestamps", "true")]
    query += [("follow", "true")] if follow else []
    # The server knows whole seconds only; what is told again is passed over.
    query += [("sinceTime", f"{since[:19]}Z")] if since else []
    query += [("tailLines", str(tail))] if tail and not since else []
    request = api.param_serialize(
        "GET", f"/api/v1/namespaces/{source.namespace}/pods/{source.pod}/log",
        query_params=query, auth_settings=["BearerToken"],
    )  # fmt: skip
    timeout = (_CONNECT_TIMEOUT_SECONDS, _READ_TIMEOUT_SECONDS)
    answer = api.call_api(*request, _request_timeout=timeout)
    if answer.status != 200:  # noqa: PLR2004 - OK
        raise client.ApiException(status=answer.status, reason=answer.reason)
    try:
        for raw in answer.response:
            stamp, text = parse(raw)
            if not since or stamp > since:
                yield Line(source, stamp, text)
    finally:
        answer.response.close()


class Reader(threading.Thread):
    """Follows one container to its end and hands every line on."""

    def __init__(self, source: Source, take: Callable[[Line], None], tail: int = 0) -> None:
        """Take the container, and who wants its lines; `start` begins."""
        super().__init__(daemon=True, name=f"log-{source.pod}")
        self._source, self._take, self._tail = source, take, tail
        self._halt = threading.Event()

    def run(self) -> None:
        """Read until the container's log ends, or its pod is gone."""
        api = api_client()
        since = ""
        while not self._halt.is_set():
            try:
                for line in lines_of(api, self._source, follow=True, since=since, tail=self._tail):
                    since = line.stamp or since
                    self._take(line)
                    if self._halt.is_set():
                        return
            except client.ApiException as error:
                if error.status in (400, 404):
                    return
            except (urllib3.exceptions.HTTPError, OSError):
                pass  # the server is away, or the container silent: go on where it broke
            else:
                return  # the log ended with its container
            self._halt.wait(_AGAIN_SECONDS)

    def stop(self) -> None:
        """Stop after the line at hand; the thread is a daemon and holds nothing up."""
        self._halt.set()


class Readers:
    """Reads every container of the pods that it is shown, each once."""

    def __init__(self, take: Callable[[Line], None], tail: int = 0) -> None:
        """Hand lines to `take`, which is called by many threads, one at a time."""
        self._lock = threading.Lock()
        self._take, self._tail = take, tail
        self._readers: dict[Source, Reader] = {}

    def see(self, pod: Object) -> None:
        """Begin to read the containers of a pod that have begun."""
        for source in begun(pod):
            if source not in self._readers:
                self._readers[source] = Reader(source, self._one, self._tail)
                self._readers[source].start()

    def _one(self, line: Line) -> None:
        with self._lock:
            self._take(line)

    def drain(self, seconds: float) -> None:
        """Let the readers come to their containers' ends, for so long altogether."""
        deadline = time.monotonic() + seconds
        for reader in list(self._readers.values()):
            reader.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop all readers."""
        for reader in self._readers.values():
            reader.stop()


class Folder:
    """Writes the lines of each container to a file of its own."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, and make it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def path_of(self, source: Source) -> Path:
        """Return the file of a container."""
        return self._folder / f"{source.role or 'other'}.{source.pod}.{source.container}.log"

    def last(self, source: Source) -> str:
        """Return the stamp of a container's last line; "" when nothing of it was kept."""
        path = self.path_of(source)
        lines = path.read_bytes().splitlines() if path.exists() else []
        return next((stamp for line in reversed(lines) if (stamp := parse(line)[0])), "")

    def write(self, line: Line) -> None:
        """Append a line, at once: who follows may be ended at any moment."""
        with self.path_of(line.source).open("a", encoding="utf-8") as file:
            file.write(f"{line.stamp} {line.text}\n")
