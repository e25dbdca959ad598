"""The exact words that docker, podman and buildah are called with.

Only buildah is on every machine that runs these tests; for the others a program that
writes down its words stands in their place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.images.engine import Engine, store

IMAGE = "localhost/tandem/pause:dev"
FAKE = """\
#!/bin/sh
for word; do printf '%s\\n' "$word"; done >>"$(dirname "$0")/words"
cat "$(dirname "$0")/answer"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with fakes of all three engines, first on PATH, and an empty store."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "answer").touch()
    for name in ("docker", "podman", "buildah"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return programs


def said(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()


def build(engine: str, folder: Path) -> list[str]:
    Engine(engine).build(
        references=[f"{IMAGE[:-3]}abc", IMAGE],
        dockerfile=Path("/checkout/pause/Dockerfile"),
        context=Path("/checkout"),
        arguments={"BASE": "localhost/tandem/debian:trixie"},
        secrets={"build-env": Path("/secret/build-env")},
        log=folder / "log",
    )
    return said(folder)


COMMON = [
    "--tag", f"{IMAGE[:-3]}abc", "--tag", IMAGE,
    "--build-arg", "BASE=localhost/tandem/debian:trixie",
    "--secret", "id=build-env,src=/secret/build-env",
    "--file", "/checkout/pause/Dockerfile", "/checkout",
]  # fmt: skip


def test_docker_builds_with_its_own_defaults(folder: Path) -> None:
    # BuildKit knows neither --layers nor --format: both are its only way.
    assert build("docker", folder) == ["build", *COMMON]


def test_podman_keeps_layers_and_writes_dockers_format(folder: Path) -> None:
    # The format of OCI drops HEALTHCHECK and SHELL; without --layers nothing is reused.
    assert build("podman", folder) == ["build", "--layers", "--format", "docker", *COMMON]


def own_store() -> list[str]:
    return ["--root", str(store() / "root"), "--runroot", str(store() / "run")]


def test_buildah_builds_without_namespaces_in_a_store_of_its_own(folder: Path) -> None:
    words = ["bud", "--isolation", "chroot", "--layers", "--format", "docker"]
    assert build("buildah", folder) == [*own_store(), *words, *COMMON]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_is_written_to_a_file_by_save(engine: str, folder: Path) -> None:
    Engine(engine).export(IMAGE, Path("/bundle/pause.tar"))
    assert said(folder) == ["save", "--output", "/bundle/pause.tar", IMAGE]


def test_buildah_writes_an_archive_that_keeps_the_name(folder: Path) -> None:
    Engine("buildah").export(IMAGE, Path("/bundle/pause.tar"))
    target = f"docker-archive:/bundle/pause.tar:{IMAGE}"
    assert said(folder) == [*own_store(), "push", "--quiet", IMAGE, target]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("docker", ["save", IMAGE]),
        ("podman", ["save", IMAGE]),
        ("buildah", ["push", "--quiet", IMAGE, f"docker-archive:/dev/stdout:{IMAGE}"]),
    ],
)
def test_loading_reads_the_image_from_a_pipe(engine: str, words: list[str], folder: Path) -> None:
    (folder / "answer").write_text("the archive")
    with Engine(engine).stream(IMAGE) as process:
        assert process.communicate(timeout=60) == (b"the archive", b"")
    assert said(folder)[-len(words) :] == words


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_tags_are_those_of_the_repository_alone(engine: str, folder: Path) -> None:
    store().mkdir(parents=True)
    (folder / "answer").write_text(
        "localhost/tandem/pause:dev\nlocalhost/tandem/pause:abc\n"
        "localhost/tandem/pause-other:x\n<none>:<none>\n"
    )
    assert Engine(engine).tags("localhost/tandem/pause") == {"dev", "abc"}
    name = "Name" if engine == "buildah" else "Repository"
    assert said(folder)[-3:] == ["images", "--format", f"{{{{.{name}}}}}:{{{{.Tag}}}}"]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_nothing_in_a_users_store_is_tidied_or_pruned(engine: str, folder: Path) -> None:
    Engine(engine).tidy()
    Engine(engine).prune()
    assert not (folder / "words").exists()


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_one_tag_is_removed_by_its_name(engine: str, folder: Path) -> None:
    Engine(engine).untag(f"{IMAGE[:-3]}old")
    assert said(folder) == ["rmi", f"{IMAGE[:-3]}old"]
