"""Every target works on a bare checkout: what its recipe needs is made first."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tandem.paths import ROOT

READY = ".venv/.ready"
RULE = re.compile(r"^(?P<target>[^\s#:=%][^:=]*?)(?P<colons>::?)(?!=)\s*(?P<needs>[^=]*)$")


@dataclass(frozen=True)
class Rule:
    """One rule; a target with two colons has several."""

    target: str
    needs: tuple[str, ...]
    recipe: str


def parse(database: str) -> list[Rule]:
    """Return the rules of what `make --print-data-base` prints."""
    rules = []
    for paragraph in database.split("\n\n"):
        lines = paragraph.splitlines()
        if not lines or "# Not a target:" in lines:
            continue
        # A target with two colons has its rules in one paragraph, each begun by its line.
        for line in lines:
            match = RULE.match(line)
            if match:
                needs = match["needs"].replace("|", " ").split()
                rules.append(Rule(match["target"], tuple(needs), ""))
            elif line.startswith("\t") and rules:
                last = rules.pop()
                rules.append(Rule(last.target, last.needs, f"{last.recipe}{line}\n"))
    return rules


@cache
def rules_of_the_makefile() -> tuple[Rule, ...]:
    done = subprocess.run(
        ["make", "--dry-run", "--print-data-base", "help"],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    return tuple(parse(done.stdout))


def uses_environment(recipe: str, root: Path) -> bool:
    """Whether a recipe runs Python of .venv, by itself or through a program of scripts/."""
    if re.search(r"\$\(PY\)|\$\{PY\}|\.venv/", recipe):
        return True
    return any(".venv/" in text for text in programs_of(recipe, root).values())


def programs_of(recipe: str, root: Path) -> dict[Path, str]:
    """Return the programs of scripts/ that a recipe runs, and those that these run."""
    found: dict[Path, str] = {}
    texts = [recipe]
    while texts:
        paths = {root / name for name in re.findall(r"scripts/[\w./-]+", texts.pop())}
        fresh = {path: path.read_text() for path in paths - set(found) if path.is_file()}
        found |= fresh
        texts += fresh.values()
    return found


def lacking(rules: tuple[Rule, ...], root: Path) -> list[str]:
    """Return the targets whose recipes use .venv without anything that makes it before."""
    ready = {READY}
    # A target is as ready as the targets that it needs.
    while more := {
        rule.target for rule in rules if ready & set(rule.needs) and rule.target not in ready
    }:
        ready |= more
    return sorted(
        rule.target
        for rule in rules
        if rule.target != READY
        and uses_environment(rule.recipe, root)
        # Each rule for itself: of two with the same target the other may not have run.
        and not ready & set(rule.needs)
    )


def test_each_target_that_uses_the_environment_makes_it_first() -> None:
    assert lacking(rules_of_the_makefile(), ROOT) == []


def test_the_targets_are_seen() -> None:
    rules = rules_of_the_makefile()
    using = {rule.target for rule in rules if uses_environment(rule.recipe, ROOT)}
    assert {
        "bench", "check", "cluster-up", "demo", "images-load", "lint", "test", "tools", "update",
        "verify",
    } <= using  # fmt: skip
    assert not {"help", "system", "venv"} & using


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ("bad:\n\t@$(PY) -m x\n", ["bad"]),
        ("bad: other\n\t.venv/bin/python -m x\n\nother:\n\ttrue\n", ["bad"]),
        ("bad:\n\t@scripts/lint\n", ["bad"]),
        ("bad:: .venv/.ready\n\t@$(PY) -m x\nbad::\n\t@$(PY) -m y\n", ["bad"]),
        ("good: other\n\t@$(PY)\n\nother: | .venv/.ready\n\ttrue\n", []),
        ("good:\n\t@scripts/system-packages\n", []),
        ("PY := .venv/bin/python\n\n# Not a target:\nx:\n\t@$(PY)\n", []),
    ],
)
def test_a_target_without_it_is_found(database: str, expected: list[str]) -> None:
    assert lacking(tuple(parse(database)), ROOT) == expected
