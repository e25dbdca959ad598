"""Each version of a known kind is compared with versions.yaml: a changed one is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tandem.paths import ROOT
from tandem.verify.literals import Literal, literals
from tandem.verify.versions import RULES, disagreements, uncovered
from tandem.versions import all_pinned

GO_MOD = """\
module m

go 1.26.0

tool e.io/a/v2/cmd/x

require (
\te.io/a v1.0.0 // indirect
\te.io/a/v2 v2.0.0 // indirect
\te.io/b v3.0.0
)

replace e.io/d => e.io/d v5.0.0
"""
OURS = list(literals(ROOT))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that hold versions, to be changed."""
    root = tmp_path_factory.mktemp("checkout")
    held = {path for rule in RULES for path in ROOT.glob(rule.files)}
    for path in held | {literal.path for literal in OURS}:
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return root


def changed(copy: Path, literal: Literal) -> list[str]:
    """Return what verify says with one literal changed."""
    path = copy / literal.path.relative_to(ROOT)
    text = path.read_text()
    end = literal.start + len(literal.text)
    path.write_text(f"{text[: literal.start]}9{literal.text}{text[end:]}")
    problems = disagreements(RULES, copy, all_pinned) + uncovered(RULES, copy)
    path.write_text(text)
    return [problem.what for problem in problems]


def test_all_kinds_are_found() -> None:
    found = {literal.path.relative_to(ROOT).as_posix() for literal in OURS}
    # Without a module of somebody else's there is no version.
    modules = {path for path in ROOT.glob("tools/*/go.mod") if "require" in path.read_text()}
    assert found >= {path.relative_to(ROOT).as_posix() for path in modules}
    assert found >= {
        "cluster/host/images/base/Dockerfile",
        "requirements/binaries.in",
        "requirements/dev.in",
        "requirements/ray-vllm-cpu.in",
        "requirements/ray-vllm-cpu.overrides",
        "requirements/uv.in",
    }


def test_nothing_is_said_of_what_agrees(copy: Path) -> None:
    assert disagreements(RULES, copy, all_pinned) == []
    assert uncovered(RULES, copy) == []


@pytest.mark.parametrize(
    "literal", OURS, ids=lambda each: f"{each.path.relative_to(ROOT)}:{each.text}"
)
def test_a_changed_literal_is_named(copy: Path, literal: Literal) -> None:
    name = literal.path.relative_to(ROOT).as_posix()
    line = literal.path.read_text().count("\n", 0, literal.start) + 1
    assert any(what.startswith(f"{name}:{line}: ") for what in changed(copy, literal))


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("requirements/x.in", "# a==1\nray[default]==2.0 ; x\nfree\nb>=3\n", ["2.0"]),
        ("requirements/x.txt", "locked==1.0\n", []),
        ("a/Dockerfile", "FROM debian:trixie AS one\nFROM scratch\nFROM one\n", ["trixie"]),
        ("a/Dockerfile", "ARG BASE=localhost/tandem/base:dev\nFROM ${BASE}\n", []),
        ("a/Dockerfile", "FROM --platform=linux/amd64 r.io:5000/x:1.2@sha256:ab\n", ["1.2"]),
        ("a/b.Dockerfile", "ARG UV=0.1.2\nARG UID=10001\nARG SUITE=trixie\n", ["0.1.2", "trixie"]),
        (
            "tools/x/go.mod",
            GO_MOD,
            ["v2.0.0", "v3.0.0"],
        ),
        (
            "tools/x/go.mod",
            "module m\n\ntool (\n\te.io/c\n)\n\nrequire e.io/c v4.0.0\n",
            ["v4.0.0"],
        ),
        (".venv/Dockerfile", "FROM debian:trixie\n", []),
        ("build/Dockerfile", "FROM debian:trixie\n", []),
        ("a/build/Dockerfile", "FROM debian:trixie\n", ["trixie"]),
    ],
)
def test_what_is_a_version_and_what_is_none(
    tmp_path: Path, file: str, text: str, expected: list[str]
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert [literal.text for literal in literals(tmp_path)] == expected
    found = uncovered([], tmp_path)
    assert [problem.what.split()[1] for problem in found] == expected
