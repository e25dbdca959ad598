"""What all roles of a run say, as one stream: merged by time, or as it comes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from kubernetes import client, config
from rich.console import Console
from rich.text import Text

from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import Problem, UserError
from tandem.paths import ARTIFACTS
from tandem.run.kube import api_client, kubeconfig
from tandem.run.pod_logs import UNREADABLE, Line, Readers, Source, begun, lines_of, parse
from tandem.run.remove import things_of
from tandem.run.shapes import has_ended, pods_in
from tandem.run.status import status_of
from tandem.run.watches import Seen, WatchInto

#: One colour a role; the same for all of its pods.
_COLOURS = {"rl": "cyan", "gym": "magenta", "driver": "green", "pool": "blue", "watcher": "yellow"}
#: So long a watch says nothing before the run is looked at.
_LOOK_SECONDS = 1.0
_DRAIN_SECONDS = 5.0


def _line(line: Line) -> Text:
    source = line.source
    text = Text(f"{source.label:<16} ", style=_COLOURS.get(source.role, ""))
    return text.append(line.text, style="default")


def _print(lines: Iterable[Line], out: Console) -> None:
    for line in lines:
        out.print(_line(line))


def _read_all(source: Source, tail: int) -> Iterator[Line]:
    try:
        yield from lines_of(api_client(), source, follow=False, tail=tail)
    except UNREADABLE as error:
        yield Line(source, "9", f"(no log: {getattr(error, 'reason', '') or error})")


def _kept(folder: Path, tail: int) -> list[list[Line]]:
    """Return the lines that were kept of a run that is gone, by container."""
    found = []
    for path in sorted(folder.glob("*.*.*.log")):
        role, _, rest = path.stem.partition(".")
        pod, _, container = rest.rpartition(".")
        source = Source("", pod, "", container, role)
        raw = path.read_bytes().splitlines()
        found.append([Line(source, *parse(each)) for each in (raw[-tail:] if tail else raw)])
    return found


def show(namespace: str, run_id: str, out: Console, *, tail: int = 0) -> None:
    """Print what every container of a run has said, merged by time.

    Raises:
        UserError: There is no pod of it, and nothing was kept.
    """
    pods = pods_in(things_of(namespace, run_id))
    sources = [source for pod in pods for source in begun(pod)]
    streams: list[Iterable[Line]] = [_read_all(source, tail) for source in sources]
    streams += _kept(ARTIFACTS / run_id / "logs", tail) if not sources else []
    if not streams:
        raise UserError(
            Problem(
                f"run {run_id} has no logs: no container of it has begun, and none were kept",
                f"make status RUN_ID={run_id}",
            )
        )
    _print(heapq.merge(*streams, key=lambda line: line.stamp), out)


def _may_come(run_id: str, things: list[dict[str, Any]]) -> bool:
    """Return whether a run has pods that go on, or can still get some. Pure."""
    if not all(has_ended(pod) for pod in pods_in(things)):
        return True
    status = status_of(run_id, things, None, [])
    return status is not None and not status.over


def follow(namespace: str, run_id: str, out: Console, *, tail: int = 0) -> None:
    """Print what the containers of a run say, as it comes, until all of its pods have ended.

    Of a run that has ended, what there is.

    Raises:
        UserError: Nothing of it is there.
    """
    things = things_of(namespace, run_id)
    if not things:
        raise UserError(
            Problem(f"run {run_id} is not on the cluster", f"make logs RUN_ID={run_id}")
        )
    if not _may_come(run_id, things):
        show(namespace, run_id, out, tail=tail)
        return
    config.load_kube_config(str(kubeconfig()))
    queue: Queue[Seen] = Queue()
    readers = Readers(lambda line: out.print(_line(line)), tail)
    pods = WatchInto(
        "pod", queue, client.CoreV1Api().list_namespaced_pod,
        namespace=namespace, label_selector=f"{RUN_ID_LABEL}={run_id}",
    )  # fmt: skip
    pods.start()
    alive: set[str] = set()
    try:
        while True:
            try:
                seen = queue.get(timeout=_LOOK_SECONDS)
            except Empty:
                if not alive and not _may_come(run_id, things_of(namespace, run_id)):
                    break
                continue
            over = seen.deleted or has_ended(seen.obj)
            (alive.discard if over else alive.add)(seen.obj["metadata"]["name"])
            if not seen.deleted:
                readers.see(seen.obj)
        readers.drain(_DRAIN_SECONDS)
    finally:
        pods.stop()
        readers.stop()
