"""Traps of KAI and Kueue: rules, each with its examples in tests/unit/explain/fixtures."""

from __future__ import annotations

from tandem.explain.findings import Finding, Rule, Subject
from tandem.explain.lint import gangs, kueue, queues, releases, workloads

RULES: tuple[Rule, ...] = (
    *workloads.RULES, *gangs.RULES, *queues.RULES, *releases.RULES, *kueue.RULES,
)  # fmt: skip


def lint(subject: Subject) -> list[Finding]:
    """Return all that the rules find, errors first."""
    found = [finding for rule in RULES for finding in rule.findings(subject)]
    return sorted(found, key=lambda finding: finding.level != "error")
