"""Build the images whose content has changed, and put them into the bundle."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, require_space
from tandem.images import bundle, rootfs, specs
from tandem.images.bundle import Record
from tandem.images.engine import Engine, lock
from tandem.images.specs import Image
from tandem.paths import BUILD, ROOT
from tandem.versions import pinned

LOGS = BUILD / "images"
#: What the machine's settings for package indices are called; given to the build as a secret.
INDEX_VARIABLES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of one image without building anything."""

    image: Image
    hash: str
    #: "built", "stale" (other content than the checkout's) or "missing".
    state: str
    problem: Problem | None = None


def arguments_of(image: Image, hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the build arguments of an image."""
    if image.base is None:
        return {}
    if image.base == "debian":
        return {"BASE": rootfs.reference()}
    return {"BASE": f"{specs.PREFIX}/{image.base}:{hashes[image.base]}"}


def content_of(image: Image, arguments: Mapping[str, str], root: Path) -> str:
    """Return the content hash of an image as the checkout is now."""
    return specs.content_hash(
        image, base_hash=arguments.get("BASE", ""), arguments=arguments, root=root
    )


def hash_all(images: Sequence[Image], root: Path) -> dict[str, str]:
    """Return the content hash of each image; they come in the order to build.

    Raises:
        UserError: Files are missing that go into an image; all of them are named.
    """
    hashes: dict[str, str] = {}
    problems: list[Problem] = []
    for image in images:
        try:
            hashes[image.name] = content_of(image, arguments_of(image, hashes), root)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return hashes


def status(engine: Engine, names: Sequence[str], root: Path = ROOT) -> list[Status]:
    """Return what is known of each image."""
    found: list[Status] = []
    hashes: dict[str, str] = {}
    for image in specs.select((), with_bases=True):
        try:
            hashes[image.name] = content_of(image, arguments_of(image, hashes), root)
        except UserError as error:
            found.append(Status(image, "", "missing", error.problems[0]))
            continue
        tags = engine.tags(image.repository)
        state = "built" if hashes[image.name] in tags else "stale" if tags else "missing"
        found.append(Status(image, hashes[image.name], state))
    wanted = {image.name for image in specs.select(names, with_bases=False)}
    return [each for each in found if each.image.name in wanted]


@contextmanager
def tidied(engine: Engine) -> Iterator[None]:
    """Leave no working container and no mount behind, neither of ours nor of a killed build."""
    engine.tidy()
    try:
        yield
    finally:
        engine.tidy()


@contextmanager
def build_secrets(environment: Mapping[str, str] = os.environ) -> Iterator[dict[str, Path]]:
    """Give the build this machine's package index settings and CA bundle, for its time only.

    Secrets of a RUN line are mounted, never stored: the image carries no trace of the
    machine that built it.
    """
    settings = {name: environment[name] for name in INDEX_VARIABLES if environment.get(name)}
    secrets: dict[str, Path] = {}
    authorities = Path(environment.get("SSL_CERT_FILE", "")).resolve()
    if authorities.is_file():
        secrets["ca-bundle"] = authorities
        inside = "/run/secrets/ca-bundle"
        settings |= {"SSL_CERT_FILE": inside, "PIP_CERT": inside, "UV_SYSTEM_CERTS": "true"}
    with tempfile.TemporaryDirectory(prefix="tandem-build-") as folder:
        if settings:
            file = Path(folder) / "build-env"
            file.touch(mode=0o600)
            file.write_text(
                "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items()),
                encoding="utf-8",
            )
            secrets["build-env"] = file
        yield secrets


def check_disk(engine: Engine, images: Sequence[Image]) -> None:
    """Refuse to begin when the disk cannot hold what will be built.

    Raises:
        UserError: There is too little space.
    """
    needed = sum(image.disk_gib for image in images)
    names = ", ".join(image.name for image in images)
    require_space(engine.disk, needed, f"building {names}")


def _build_one(
    engine: Engine, image: Image, content: str, arguments: Mapping[str, str], root: Path
) -> None:
    log = LOGS / f"{image.name}.log"
    suite = pinned("debian-suite")
    if image.base == "debian" and not engine.has(rootfs.reference(suite)):
        with console.phase(f"image debian:{suite}"):
            rootfs.provide(engine, suite, LOGS / "debian.log")
    with build_secrets() as secrets:
        engine.build(
            references=[f"{image.repository}:{content}", image.reference],
            dockerfile=root / image.dockerfile,
            context=root,
            arguments=arguments,
            secrets=secrets,
            log=log,
        )
    if content_of(image, arguments, root) != content:
        # Whoever edits while a build runs must not get the old image under the new content's
        # name, nor the reverse.
        engine.untag(f"{image.repository}:{content}")
        raise UserError(
            Problem(f"files of image {image.name} changed while it was built", "make images"),
            ExitCode.FAILURE,
        )
    # What earlier content left behind; layers that the new image shares stay.
    for tag in sorted(engine.tags(image.repository) - {content, image.tag}):
        engine.untag(f"{image.repository}:{tag}")


def _bundle(engine: Engine, image: Image, content: str, *, as_file: bool, folder: Path) -> Record:
    """Bring the bundle's entry of an image to this content."""
    record = Record(image.name, image.reference, content, engine=engine.name)
    file = record.file(folder)
    known = bundle.read(image.name, folder)
    if not as_file:
        file.unlink(missing_ok=True)
        bundle.write(record, folder)
        return record
    # The file is looked at, not believed: this is also how a damaged bundle is mended.
    current = known is not None and known.hash == content and known.sha256
    if known is not None and current and bundle.problem_of_file(known, folder) is None:
        return known
    folder.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".tar.new")
    draft.unlink(missing_ok=True)
    engine.export(image.reference, draft)
    draft.replace(file)
    record = replace(record, engine="", size=file.stat().st_size, sha256=bundle.sha256_of(file))
    bundle.write(record, folder)
    return record


def build(
    engine: Engine,
    names: Sequence[str] = (),
    *,
    all_as_files: bool = False,
    folder: Path = bundle.FOLDER,
    root: Path = ROOT,
) -> list[Record]:
    """Build the images of these names (all without any) and those they stand on.

    Args:
        engine: What builds them.
        names: Images to build.
        all_as_files: Write the big ones to the bundle as files too, to carry it elsewhere.
        folder: The bundle's image folder.
        root: The checkout whose images are built.

    Raises:
        UserError: Unknown names, missing inputs, too little disk, or a build that fails.
    """
    images = specs.select(names, with_bases=True)
    hashes = hash_all(images, root)
    records: list[Record] = []
    with lock(), tidied(engine):
        missing = [i for i in images if hashes[i.name] not in engine.tags(i.repository)]
        check_disk(engine, missing)
        for image in images:
            content = hashes[image.name]
            with console.phase(f"image {image.name}") as phase:
                phase.detail = f"{content}, as it was"
                if image in missing:
                    _build_one(engine, image, content, arguments_of(image, hashes), root)
                    phase.detail = content
                if image.for_nodes:
                    as_file = image.as_file or all_as_files
                    records.append(_bundle(engine, image, content, as_file=as_file, folder=folder))
        if missing:
            engine.prune()
    return records
