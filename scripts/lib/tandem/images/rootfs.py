"""A Debian base image where no registry is in reach: debootstrap into buildah's store."""

from __future__ import annotations

import shutil
from pathlib import Path

from tandem.errors import Problem, UserError
from tandem.images.engine import Engine, run_watched
from tandem.images.specs import PREFIX

BOOTSTRAP_SECONDS = 900.0
#: The container that debootstrap fills; one at a time, under the builder's lock.
CONTAINER = "tandem-debian"
#: Only caches and texts that nobody reads in a container.
NOT_NEEDED = (
    "var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man",
    "usr/share/locale", "usr/share/info",
)  # fmt: skip


def reference(suite: str) -> str:
    """Return the name of the image that `build` makes."""
    return f"{PREFIX}/debian:{suite}"


def build(engine: Engine, suite: str, log: Path) -> None:
    """Make the image of a minimal Debian release.

    Raises:
        UserError: debootstrap is missing or fails.
    """
    if shutil.which("debootstrap") is None:
        raise UserError(
            Problem("debootstrap is missing: no base image without a registry", "make system")
        )
    try:
        engine.query("from", "--name", CONTAINER, "scratch")
        mounted = Path(engine.query("mount", CONTAINER).strip())
        # Straight into the container's layer: no second copy of the tree.
        run_watched(
            ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(mounted)],
            log=log,
            timeout=BOOTSTRAP_SECONDS,
        )
        for folder in NOT_NEEDED:
            shutil.rmtree(mounted / folder, ignore_errors=True)
        # apt wants this one to exist.
        (mounted / "var/cache/apt/archives/partial").mkdir(parents=True)
        engine.query("config", "--cmd", "bash", CONTAINER)
        engine.query("commit", "--quiet", CONTAINER, reference(suite), timeout=BOOTSTRAP_SECONDS)
    finally:
        engine.tidy()
