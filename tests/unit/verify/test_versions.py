from pathlib import Path

import pytest

from tandem.paths import ROOT
from tandem.verify.versions import RULES, Rule, disagreements
from tandem.versions import PinnedSet, all_pinned

RULE = Rule("go.mod", r"(?m)^require etcd (?P<version>\S+)", "etcd")


def pins(which: PinnedSet) -> dict[str, str]:
    return {"etcd": "v1.0.0"} if which == "served" else {}


def test_the_repository_agrees_with_versions_yaml() -> None:
    assert disagreements(RULES, ROOT, all_pinned) == []


def test_an_equal_literal_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("require etcd v1.0.0\n")
    assert disagreements([RULE], tmp_path, pins) == []


def test_another_literal_is_named_with_file_line_and_both_values(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\nrequire etcd v2.0.0\n")
    [problem] = disagreements([RULE], tmp_path, pins)
    assert problem.what == "go.mod:2: etcd is v2.0.0, versions.yaml (served) says v1.0.0"


@pytest.mark.parametrize("content", ["", "require other v1.0.0\n"])
def test_a_rule_that_matches_nothing_is_a_problem(tmp_path: Path, content: str) -> None:
    (tmp_path / "go.mod").write_text(content)
    [problem] = disagreements([RULE], tmp_path, pins)
    assert "matches" in problem.what


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.files}:{rule.name}")
def test_each_rule_of_ours_sees_a_changed_pin(rule: Rule) -> None:
    def changed(which: PinnedSet) -> dict[str, str]:
        return dict.fromkeys(all_pinned(which), "v0.0.0")

    assert disagreements([rule], ROOT, changed)
