"""The program that builds images: docker, podman or buildah, whichever is there and works.

Buildah works without a daemon, without a registry and inside a container; it gets a store
of its own, so that nothing of the user's is touched and everything of ours can be found and
removed. Docker and podman use the user's store, as one expects of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandem.console import console
from tandem.errors import Problem, UserError
from tandem.process import failure, run, tool_env

#: In the order of preference: what a person already uses comes first.
KNOWN = ("docker", "podman", "buildah")
#: Set to one of `KNOWN` to choose.
CHOICE = "TANDEM_IMAGE_BUILDER"
QUERY_SECONDS = 60.0
#: A daemon that has not answered by then is as good as none.
ANSWER_SECONDS = 20.0
BUILD_SECONDS = 3600.0


def store() -> Path:
    """Return the folder of buildah's images: one a user, shared by checkouts."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tandem" / "buildah"


@contextmanager
def lock() -> Iterator[None]:
    """Keep builds, and loads that read the store, apart: one at a time on this machine.

    Two builds would make the same layers twice, and a build removes what it replaces.
    """
    folder = store()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note("images: waiting for another build or load to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that builds images, and how it says things."""

    name: str

    @property
    def command(self) -> list[str]:
        """The program with its global options."""
        if self.name == "buildah":
            folder = store()
            return ["buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run")]
        return [self.name]

    @property
    def disk(self) -> Path:
        """A folder on the disk that images are built on."""
        if self.name == "buildah":
            return store()
        return Path("/var/lib/docker" if self.name == "docker" else "/var/lib/containers")

    def query(self, *arguments: str, timeout: float = QUERY_SECONDS) -> str:
        """Run a short command and return what it prints."""
        return run([*self.command, *arguments], timeout=timeout, fix="read the message above")

    def tags(self, repository: str) -> set[str]:
        """Return the tags that a repository has in the store."""
        if self.name == "buildah" and not store().is_dir():
            return set()
        name = "Name" if self.name == "buildah" else "Repository"
        listed = self.query("images", "--format", f"{{{{.{name}}}}}:{{{{.Tag}}}}")
        return {
            line.rpartition(":")[2]
            for line in listed.split()
            if line.rpartition(":")[0] == repository
        }

    def has(self, reference: str) -> bool:
        """Whether the store holds an image of this name."""
        repository, _, tag = reference.rpartition(":")
        return tag in self.tags(repository)

    def fetch(self, reference: str, name: str) -> None:
        """Get an image from its registry under another name."""
        self.query("pull", reference, timeout=BUILD_SECONDS)
        self.query("tag", reference, name)

    def import_tree(self, archive: Path, reference: str) -> None:
        """Make an image of a file system's archive (docker and podman)."""
        self.query(
            "import", "--change", 'CMD ["bash"]', str(archive), reference, timeout=BUILD_SECONDS
        )

    def untag(self, reference: str) -> None:
        """Remove one tag; the image goes with its last."""
        self.query("rmi", reference)

    def tidy(self) -> None:
        """Remove what failed or killed builds left: working containers, with their mounts.

        Buildah's store is ours alone, and callers hold its lock, so nobody's work is hit.
        """
        if self.name == "buildah" and self.query("containers", "--quiet").strip():
            self.query("rm", "--all")

    def prune(self) -> None:
        """Remove images in our own store that no tag leads to any more."""
        if self.name == "buildah":
            self.query("rmi", "--prune")

    def build(
        self,
        *,
        references: Sequence[str],
        dockerfile: Path,
        context: Path,
        arguments: Mapping[str, str],
        secrets: Mapping[str, Path],
        log: Path,
    ) -> None:
        """Build a Dockerfile; everything that is said goes into the log."""
        words = [*self.command, "bud" if self.name == "buildah" else "build"]
        if self.name == "buildah":
            # chroot: works where no namespaces may be made, such as inside a container.
            words += ["--isolation", "chroot"]
        if self.name != "docker":
            words += ["--layers", "--format", "docker"]
        for reference in references:
            words += ["--tag", reference]
        for key, value in arguments.items():
            words += ["--build-arg", f"{key}={value}"]
        for key, path in secrets.items():
            words += ["--secret", f"id={key},src={path}"]
        words += ["--file", str(dockerfile), str(context)]
        run_watched(words, log=log, timeout=BUILD_SECONDS)

    def export(self, reference: str, path: Path) -> None:
        """Write an image to a file that `ctr images import` and `docker load` read."""
        if self.name == "buildah":
            # Not oci-archive: it loses the name.
            self.query(
                "push", "--quiet", reference, f"docker-archive:{path}:{reference}",
                timeout=BUILD_SECONDS,
            )  # fmt: skip
        else:
            self.query("save", "--output", str(path), reference, timeout=BUILD_SECONDS)

    @contextmanager
    def stream(self, reference: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a process whose stdout is the image as an archive; it never outlives the block."""
        if self.name == "buildah":
            # A pipe, although it looks like a file name: the archive is written front to back.
            target = f"docker-archive:/dev/stdout:{reference}"
            words = [*self.command, "push", "--quiet", reference, target]
        else:
            words = [*self.command, "save", reference]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=tool_env(), start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process and everything it started; no effect when it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def run_watched(words: Sequence[str], *, log: Path, timeout: float) -> None:
    """Run a long program with its output in a log; it and its children end with us.

    Raises:
        UserError: It failed or ran out of time; the message holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=tool_env(), start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    if code == 0:
        return
    said = log.read_text(encoding="utf-8", errors="replace")
    how = f"did not end within {timeout:.0f} s" if code is None else f"ended with code {code}"
    what = f"{words[0]} {how} (all of it: {log})"
    raise failure(what, said, "mend what it says, then again", [store(), log])


def _answers(name: str) -> bool:
    """Whether an engine is there and works: docker's command may be there without a daemon."""
    if shutil.which(name) is None:
        return False
    # Buildah has neither a daemon nor a state before its first use.
    asks = {"docker": "version", "podman": "info"}
    if name not in asks:
        return True
    try:
        done = subprocess.run(
            [name, asks[name]], check=False, capture_output=True, timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def prefer(
    working: Sequence[Engine], *, bootstraps: bool, has_base: Callable[[Engine], bool]
) -> Engine | None:
    """Return the engine that builds with the least from outside, None when none works.

    Where debootstrap can run, every engine gets its base without a registry, and the first
    one is taken. Where it cannot, an engine that has the base already goes before one that
    would have to pull it.

    Args:
        working: Engines that answer, in the order of preference.
        bootstraps: Whether a base can be made on this machine.
        has_base: Whether an engine's store holds the base.
    """
    if not bootstraps:
        for engine in working:
            if has_base(engine):
                return engine
    return next(iter(working), None)


def bootstraps() -> bool:
    """Whether debootstrap can make a base here: it is there, and it makes devices as root."""
    return os.geteuid() == 0 and shutil.which("debootstrap") is not None


def detect(base: str = "") -> Engine:
    """Return the engine to use: the one that `TANDEM_IMAGE_BUILDER` names, else the best found.

    Args:
        base: Name of the image at the bottom of all others.

    Raises:
        UserError: There is none, or the chosen one does not answer.
    """
    chosen = os.environ.get(CHOICE)
    if chosen is not None:
        if chosen not in KNOWN:
            raise UserError(
                Problem(
                    f"{CHOICE}={chosen!r} is no program that builds images",
                    f"set it to one of: {', '.join(KNOWN)}; or unset it",
                )
            )
        if not _answers(chosen):
            raise UserError(
                Problem(f"{CHOICE}={chosen}, which does not answer here", f"unset {CHOICE}")
            )
        return Engine(chosen)
    working = [Engine(name) for name in KNOWN if _answers(name)]
    found = prefer(
        working, bootstraps=bootstraps(), has_base=lambda engine: bool(base) and engine.has(base)
    )
    if found is None:
        raise UserError(
            Problem("no program to build images: docker, podman and buildah are missing or do"
                    " not work", "make system (installs buildah)")
        )  # fmt: skip
    return found
