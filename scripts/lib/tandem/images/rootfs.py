"""The Debian image at the bottom: made by debootstrap, or a registry's where that cannot be.

Whichever engine builds and wherever it comes from, it has one name of ours: what stands on
it has the same content hash everywhere, and a machine without a registry needs none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tandem.errors import Problem, UserError, require_space
from tandem.images.engine import CHOICE, Engine, bootstraps, run_watched
from tandem.images.specs import PREFIX
from tandem.paths import CACHE
from tandem.process import run
from tandem.versions import pinned

BOOTSTRAP_SECONDS = 900.0
#: The container that debootstrap fills; one at a time, under the builder's lock.
CONTAINER = "tandem-debian"
#: GiB of the unpacked tree, its archive and the image, before anything is left out.
DISK_GIB = 1.5
#: Only caches and texts that nobody reads in a container.
NOT_NEEDED = (
    "var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
    "usr/share/locale", "usr/share/info",
)  # fmt: skip


def reference(suite: str = "") -> str:
    """Return our name of the base image of a Debian release, the pinned one by default."""
    return f"{PREFIX}/debian:{suite or pinned('debian-suite')}"


def upstream(suite: str) -> str:
    """Return the name of a registry's image that serves as well."""
    return f"docker.io/library/debian:{suite}-slim"


def provide(engine: Engine, suite: str, log: Path) -> None:
    """Bring the base into an engine's store.

    Raises:
        UserError: It cannot be made here, and no registry gives it.
    """
    if bootstraps():
        _bootstrap(engine, suite, log)
        return
    try:
        engine.fetch(upstream(suite), reference(suite))
    except UserError as error:
        why = "debootstrap is missing"
        if shutil.which("debootstrap") is not None:
            why = f"debootstrap needs root, this is user {os.geteuid()}"
        raise UserError(
            Problem(
                f"no base image: {why}, and {engine.name} cannot pull {upstream(suite)}:\n"
                f"{error.problems[0].what}",
                "make system (as root) installs debootstrap, which needs no registry; run the"
                f" build as root then; or bring the image by hand: {engine.name} tag IMAGE"
                f" {reference(suite)}; {CHOICE} chooses another program",
            )
        ) from error


def _bootstrap(engine: Engine, suite: str, log: Path) -> None:
    if engine.name == "buildah":
        require_space(engine.disk, DISK_GIB, f"debian:{suite}")
        _into_container(engine, suite, log)
        return
    # Below the checkout and not in /tmp, which is often mounted so that no device works.
    CACHE.mkdir(parents=True, exist_ok=True)
    require_space(CACHE, DISK_GIB, f"debian:{suite}")
    with tempfile.TemporaryDirectory(prefix="debian-", dir=CACHE) as folder:
        tree, archive = Path(folder) / "tree", Path(folder) / "debian.tar"
        tree.mkdir()
        fill(tree, suite, log)
        run(
            ["tar", "--numeric-owner", "--create", "--file", archive, "--directory", tree, "."],
            timeout=BOOTSTRAP_SECONDS, fix="read the message above",
        )  # fmt: skip
        engine.import_tree(archive, reference(suite))


def _into_container(engine: Engine, suite: str, log: Path) -> None:
    """Make it straight in a container's layer: no second copy of the tree, no archive."""
    try:
        engine.query("from", "--name", CONTAINER, "scratch")
        fill(Path(engine.query("mount", CONTAINER).strip()), suite, log)
        engine.query("config", "--cmd", "bash", CONTAINER)
        engine.query("commit", "--quiet", CONTAINER, reference(suite), timeout=BOOTSTRAP_SECONDS)
    finally:
        engine.tidy()


def fill(tree: Path, suite: str, log: Path) -> None:
    """Fill a folder with a minimal Debian release."""
    run_watched(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(tree)],
        log=log,
        timeout=BOOTSTRAP_SECONDS,
    )
    for folder in NOT_NEEDED:
        shutil.rmtree(tree / folder, ignore_errors=True)
    # apt wants this one to exist.
    (tree / "var/cache/apt/archives/partial").mkdir(parents=True)
