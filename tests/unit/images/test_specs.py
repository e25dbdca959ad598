"""The content hash: the same for the same content, another for any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images.specs import Image, all_images, content_hash, copied_paths, select
from tandem.paths import ROOT

IMAGE = Image("thing", "dev", base="base")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one image: a program and a folder of sources."""
    dockerfile = tmp_path / IMAGE.dockerfile
    dockerfile.parent.mkdir(parents=True)
    dockerfile.write_text("FROM scratch\nCOPY bin/thing /thing\nCOPY src /src\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/thing").write_bytes(b"program")
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "src/inner/a.py").write_text("a = 1\n")
    return tmp_path


def _hash(root: Path, *, base: str = "b", **arguments: str) -> str:
    return content_hash(IMAGE, base_hash=base, arguments=arguments, root=root)


def test_the_hash_does_not_depend_on_times_or_caches(tree: Path) -> None:
    before = _hash(tree)
    (tree / "bin/thing").touch()
    (tree / "src/__pycache__").mkdir()
    (tree / "src/__pycache__/a.pyc").write_bytes(b"x")
    (tree / "bin/other").write_bytes(b"not copied")
    assert _hash(tree) == before
    assert len(before) == 12


def _edit_program(root: Path) -> None:
    (root / "bin/thing").write_bytes(b"programm")


def _edit_nested(root: Path) -> None:
    (root / "src/inner/a.py").write_text("a = 2\n")


def _rename_nested(root: Path) -> None:
    (root / "src/inner/a.py").rename(root / "src/inner/b.py")


def _make_executable(root: Path) -> None:
    (root / "bin/thing").chmod(0o755)


def _edit_dockerfile(root: Path) -> None:
    with (root / IMAGE.dockerfile).open("a") as file:
        file.write("USER 1\n")


@pytest.mark.parametrize(
    "change", [_edit_program, _edit_nested, _rename_nested, _make_executable, _edit_dockerfile]
)
def test_every_change_of_content_changes_the_hash(
    tree: Path, change: Callable[[Path], None]
) -> None:
    before = _hash(tree)
    change(tree)
    assert _hash(tree) != before


def test_base_and_arguments_are_part_of_the_hash(tree: Path) -> None:
    assert len({_hash(tree), _hash(tree, base="c"), _hash(tree, A="1"), _hash(tree, A="2")}) == 4


def test_missing_inputs_are_named_all_at_once_with_their_fix(tree: Path) -> None:
    (tree / "bin/thing").unlink()
    (tree / "src/inner/a.py").unlink()
    (tree / "src/inner").rmdir()
    (tree / "src").rmdir()
    with pytest.raises(UserError) as caught:
        _hash(tree)
    assert caught.value.code == ExitCode.PRECONDITION
    assert [p.fix for p in caught.value.problems] == ["make tools", "restore it: git checkout src"]


def test_copied_paths_understands_flags_continuations_comments_and_stages() -> None:
    dockerfile = """\
# COPY not/this /x
FROM a AS b
COPY --chown=1:1 one two \\
     # a comment between
     three /to/
RUN echo COPY no /x
COPY --from=b /other /other
add "with space" /y
"""
    assert copied_paths(dockerfile) == ["one", "two", "three", "with space"]


def test_an_image_of_another_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UserError, match="unknown image 'rey'") as caught:
        select(["rey", "pause"], with_bases=True)
    assert caught.value.code == ExitCode.PRECONDITION
    assert "ray-vllm-cpu" in caught.value.problems[0].fix


def test_an_image_brings_what_it_stands_on_and_comes_after_it() -> None:
    chain = ["base", "ray", "ray-vllm-cpu"]
    assert [i.name for i in select(["ray-vllm-cpu"], with_bases=True)] == chain
    assert [i.name for i in select(["ray-vllm-cpu"], with_bases=False)] == ["ray-vllm-cpu"]


@pytest.mark.parametrize("image", all_images(), ids=lambda image: image.name)
def test_every_copied_path_is_in_the_build_context(image: Image) -> None:
    # Docker leaves out what .dockerignore does not let in; buildah would not notice.
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert allowed
    for path in copied_paths((ROOT / image.dockerfile).read_text()):
        assert any(path == a or path.startswith(a + "/") for a in allowed), path


@pytest.mark.parametrize("image", all_images(), ids=lambda image: image.name)
def test_every_image_for_nodes_runs_as_a_numeric_user(image: Image) -> None:
    # `runAsNonRoot` cannot be checked for a name: the pod would never start.
    if not image.for_nodes:
        pytest.skip("a base; what stands on it sets the user")
    lines = (ROOT / image.dockerfile).read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    uid, _, gid = users[-1].partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
