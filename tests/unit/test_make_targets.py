"""Bare `make` prints the documented targets, and whatever the repository tells to make exists."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

import pytest

from tandem.paths import ROOT

#: Targets that other targets need, and that nobody has to type.
UNDOCUMENTED = {"venv"}
#: Said in `backticks`, at the begin of a line of shell, or as the whole of a fix in Python.
_SAID = re.compile(
    r"(?:`|^|\")(?:sudo )?make(?: -C \S+)? (?P<target>[a-z][a-z0-9-]*)"
    # The end, more of the sentence, a comment, or variables; not just the next word.
    r"(?=[`\");,:]|$|\s*#|\s+[A-Z]+=)",
    re.MULTILINE,
)
_FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"`make[^`\n]*`")


def make(*words: str) -> str:
    # As a person calls it, also when these tests run under make.
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", *words],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=60, env=env,
    ).stdout  # fmt: skip


@cache
def printed() -> dict[str, str]:
    """What bare `make` prints: the targets with their sentence."""
    rows = re.findall(r"^  ([a-z][a-z0-9-]*) +(\S.*)$", make(), re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows}), "a target is printed twice"
    return dict(rows)


@cache
def phony() -> frozenset[str]:
    [line] = re.findall(r"^\.PHONY: (.*)$", make("--print-data-base", "--dry-run"), re.MULTILINE)
    return frozenset(line.split())


def told(text: str, *, markdown: bool) -> set[str]:
    """Return the targets that a text tells a person to make."""
    if markdown:
        # In prose "make" is also a verb: only code counts.
        text = "\n".join([*_FENCES.findall(text), *_LITERAL.findall(text)])
    return {match["target"] for match in _SAID.finditer(text)}


def test_bare_make_prints_every_target_with_a_sentence() -> None:
    assert set(printed()) == phony() - UNDOCUMENTED
    assert len(printed()) > 20
    assert all(len(sentence) > 5 for sentence in printed().values())


def test_bare_make_and_make_help_do_nothing_else() -> None:
    assert make() == make("help")


@pytest.mark.parametrize("target", ["demo", "check", "check-full", "bench", "tools", "cluster-up"])
def test_the_targets_that_the_readme_promises_are_there(target: str) -> None:
    assert target in printed()


def files() -> list[str]:
    said = subprocess.run(
        ["git", "ls-files", "*.md", "*.mk", "scripts", "cluster", "helmfile.yaml", "charts"],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=60,
    ).stdout  # fmt: skip
    return [name for name in said.splitlines() if (ROOT / name).is_file()]


def test_every_target_that_a_text_or_a_message_names_exists() -> None:
    unknown = {}
    seen: set[str] = set()
    for name in files():
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found = told(text, markdown=name.endswith(".md"))
        seen |= found
        if found - phony():
            unknown[name] = found - phony()
    assert unknown == {}
    assert {"demo", "tools", "images", "cluster-down", "check"} <= seen


@pytest.mark.parametrize(
    ("text", "markdown", "targets"),
    [
        ("run `make cluster-up PROVIDER=host` and\nmake sure\n", True, {"cluster-up"}),
        ("```\nmake demo      # a run\nsudo make e2e\n```\nmake it so\n", True, {"demo", "e2e"}),
        ('Problem("no tools", "make tools")', False, {"tools"}),
        ('f"make -C {other} cluster-down"', False, {"cluster-down"}),
        ('"make images; then again"', False, {"images"}),
        ('help="make them again"', False, set()),
    ],
)
def test_targets_are_found_where_a_person_reads_them(
    text: str, targets: set[str], *, markdown: bool
) -> None:
    assert told(text, markdown=markdown) == targets
