"""Load images of the bundle into a containerd node: only what it does not have yet.

Every image in a node carries a second tag, its content hash, which is how the next call
knows. Everything is checked before the first image is loaded.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.console import console
from tandem.errors import Problem, UserError
from tandem.images import bundle
from tandem.images.bundle import Record
from tandem.images.engine import Engine, lock
from tandem.process import failure, run, tool_env

#: Kubernetes' images in containerd.
NAMESPACE = "k8s.io"
QUERY_SECONDS = 60.0
IMPORT_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of one image."""

    image: str
    hash: str
    seconds: float
    #: False when the node had it.
    fresh: bool


def _ctr(socket: Path, *arguments: str) -> list[str]:
    return ["ctr", "--address", str(socket), "--namespace", NAMESPACE, *arguments]


def _choose(names: Sequence[str] | None, folder: Path) -> list[Record]:
    records = bundle.read_all(folder)
    if names is None:
        return records
    known = {record.name: record for record in records}
    missing = [name for name in names if name not in known]
    if missing:
        raise UserError(
            [
                Problem(
                    f"image {name!r} is not in the bundle ({folder})",
                    f"make images; it holds: {', '.join(known) or 'nothing'}",
                )
                for name in missing
            ]
        )
    return [known[name] for name in names]


def _problem(record: Record, folder: Path) -> Problem | None:
    """Return why an image cannot be loaded."""
    if record.sha256:
        return bundle.problem_of_file(record, folder)
    engine = Engine(record.engine)
    repository, _, _ = record.image.rpartition(":")
    if record.hash in engine.tags(repository):
        return None
    return Problem(
        f"image {record.name} ({record.hash}) is no longer in {record.engine}'s store",
        f"make images, or: python -m tandem.images build {record.name}",
    )


def _import(socket: Path, record: Record, folder: Path) -> None:
    # Without the unpacked layers' archives the image is on the node's disk once, not twice.
    words = _ctr(socket, "images", "import", "--local", "--discard-unpacked-layers")
    if record.sha256:
        run([*words, record.file(folder)], timeout=IMPORT_SECONDS, fix=bundle.REBUILD)
        return
    with lock(), Engine(record.engine).stream(record.image) as source:
        done = _pipe([*words, "-"], source)
    if done is not None:
        raise failure(f"loading {record.image} failed", done, "make images; then again", [folder])


def _pipe(words: Sequence[str], source: subprocess.Popen[bytes]) -> str | None:
    """Feed a process's output to another; return what they said when one of them fails."""
    said: list[bytes] = []
    # Read beside: a source that fills the pipe of its messages would stop for ever.
    reader = threading.Thread(
        target=lambda: said.append(source.stderr.read() if source.stderr else b""), daemon=True
    )
    reader.start()
    try:
        sink = subprocess.run(
            list(words), check=False, stdin=source.stdout, capture_output=True,
            timeout=IMPORT_SECONDS, env=tool_env(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {IMPORT_SECONDS:.0f} s"
    if source.stdout:
        source.stdout.close()
    code = source.wait(timeout=60)
    reader.join(timeout=10)
    if sink.returncode == 0 and code == 0:
        return None
    return (sink.stderr + b"\n" + b"".join(said)).decode(errors="replace")


def load_into_node(
    socket: Path,
    names: Sequence[str] | None = None,
    *,
    folder: Path = bundle.FOLDER,
    report: Callable[[Loaded], None] | None = None,
) -> list[Loaded]:
    """Load images into the node whose containerd listens on a socket.

    Args:
        socket: containerd's socket; it must be serving.
        names: Images to load; without it everything that the bundle holds.
        folder: The bundle's image folder.
        report: Called after each image.

    Returns:
        What became of each image, in the bundle's order.

    Raises:
        UserError: An image is missing, corrupt or unknown (code 3, and nothing was loaded),
            or an import failed (code 1).
    """
    records = _choose(names, folder)
    present = _present(socket)
    wanted = [r for r in records if not {r.by_hash, r.image} <= set(present)]
    problems = [p for p in (_problem(record, folder) for record in wanted) if p]
    if problems:
        raise UserError(problems)

    results: list[Loaded] = []
    for record in records:
        seconds, fresh = 0.0, record in wanted
        if fresh:
            with console.phase(f"load {record.image}") as phase:
                _import(socket, record, folder)
                _retag(socket, record)
            seconds = phase.seconds
        results.append(Loaded(record.image, record.hash, seconds, fresh))
        if report:
            report(results[-1])
    return results


def _present(socket: Path) -> dict[str, str]:
    """Return the digest of each image in the node, by name."""
    table = run(_ctr(socket, "images", "list"), timeout=QUERY_SECONDS).splitlines()
    # REF TYPE DIGEST SIZE …, under a line of headings.
    return {words[0]: words[2] for words in (line.split() for line in table[1:]) if words}


def _retag(socket: Path, record: Record) -> None:
    """Mark the content, and drop the names that lead to earlier content: it can go then."""
    tag = _ctr(socket, "images", "tag", "--force", record.image, record.by_hash)
    run(tag, timeout=QUERY_SECONDS)
    old = outdated(record, _present(socket))
    if old:
        run(_ctr(socket, "images", "remove", *old), timeout=QUERY_SECONDS)


def outdated(record: Record, present: Mapping[str, str]) -> list[str]:
    """Return the names in a node that keep nothing but earlier content of an image.

    Those are the marks of other content, and names `sha256:…`, which the kubelet's half of
    containerd gives to every image and forgets about when the last proper name is gone.
    """
    repository, _, _ = record.image.rpartition(":")
    marks = [
        name
        for name in present
        if name.rpartition(":")[0] == repository and name not in (record.image, record.by_hash)
    ]
    named = {
        digest
        for name, digest in present.items()
        if not name.startswith("sha256:") and name not in marks
    }
    orphans = [
        name
        for name, digest in present.items()
        if name.startswith("sha256:") and digest not in named
    ]
    return sorted(marks + orphans)
