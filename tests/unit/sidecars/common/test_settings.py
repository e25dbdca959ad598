"""Settings: everything that is wrong is told at once, and the table is the class's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.settings import (
    DnsLabel,
    PositiveSeconds,
    Settings,
    SettingsConfigDict,
    Words,
    environment_table,
    setting,
)


class PingSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="PING_")

    target: DnsLabel = setting("What is pinged.", fix="set it to the peer's name")
    itself: DnsLabel = setting("Who pings.", default="me")
    interval_seconds: PositiveSeconds = setting("Time between pings.", default=2.0)
    attempts: Annotated[int, Field(ge=1, le=9)] = setting("Attempts.", default=3)
    words: Words = setting("Words.", default=("a", "b"))
    mode: Literal["fast", "slow"] = setting("How.", default="fast")
    key: str = setting("Key.", default="", secret=True)

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        if values.get("target") and values.get("target") == values.get("itself"):
            yield Problem(f"PING_TARGET and PING_ITSELF are both {values['target']!r}", "differ")


def wrong(flags: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(UserError) as caught:
        PingSettings.load(flags)
    assert caught.value.code == ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def test_flags_win_over_the_environment_and_that_over_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PING_TARGET", "from-environment")
    monkeypatch.setenv("PING_ATTEMPTS", "5")
    monkeypatch.setenv("PING_WORDS", "x, y z")
    loaded = PingSettings.load({"target": "from-flag", "mode": None})
    assert loaded.target == "from-flag"
    assert (loaded.attempts, loaded.words, loaded.mode) == (5, ("x", "y", "z"), "fast")


def test_everything_wrong_is_told_at_once_with_name_value_limit_and_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PING_INTERVAL_SECONDS", "-1")
    monkeypatch.setenv("PING_ATTEMPTS", "0")
    monkeypatch.setenv("PING_MODE", "idle")
    monkeypatch.setenv("PING_TARGT", "typo")
    problems = wrong({"target": "Not_A_Label"})
    assert len(problems) == 5
    text = "\n".join(problems)
    assert "--target='Not_A_Label'" in text
    assert "fix: set it to the peer's name" in text
    assert "PING_INTERVAL_SECONDS='-1': allowed is > 0" in text
    assert "PING_ATTEMPTS='0': allowed is ≥ 1, ≤ 9" in text
    assert "PING_MODE='idle': allowed is one of fast, slow" in text
    assert "PING_TARGT is set" in text
    assert "did you mean PING_TARGET?" in text


def test_a_check_across_fields_runs_although_another_field_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PING_TARGET", "me")
    monkeypatch.setenv("PING_ATTEMPTS", "none")
    problems = wrong()
    assert [p for p in problems if "both 'me'" in p]
    assert [p for p in problems if "PING_ATTEMPTS='none'" in p]


def test_a_missing_setting_is_named_with_its_meaning() -> None:
    [problem] = wrong()
    assert problem.startswith("PING_TARGET is missing: What is pinged")


def test_variables_of_a_service_with_the_programs_name_are_no_typos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PING_TARGET", "peer")
    for name in ("PING_SERVICE_HOST", "PING_SERVICE_PORT", "PING_PORT", "PING_PORT_80_TCP_ADDR"):
        monkeypatch.setenv(name, "10.0.0.1")
    assert PingSettings.load().target == "peer"


def test_variables_of_a_kindred_program_are_no_typos(monkeypatch: pytest.MonkeyPatch) -> None:
    class More(PingSettings):
        extra: str = setting("More.", default="")

    monkeypatch.setenv("PING_TARGET", "peer")
    monkeypatch.setenv("PING_EXTRA", "x")
    assert PingSettings.load().target == "peer"
    assert More.load().extra == "x"
    monkeypatch.setenv("PING_OTHER", "x")
    assert "PING_OTHER" in wrong()[0]


def test_the_value_of_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secretive(PingSettings):
        key: DnsLabel = setting("Key.", secret=True)

    monkeypatch.setenv("PING_TARGET", "peer")
    monkeypatch.setenv("PING_KEY", "S3CRET!")
    with pytest.raises(UserError) as caught:
        Secretive.load()
    assert "PING_KEY" in str(caught.value)
    assert "S3CRET" not in str(caught.value)


def test_the_table_has_a_row_for_each_setting_with_default_and_limit() -> None:
    rows = environment_table(PingSettings).splitlines()
    assert len(rows) == 2 + len(PingSettings.model_fields)
    assert "| `PING_TARGET` | required | a DNS label | What is pinged |" in rows
    assert "| `PING_ATTEMPTS` | `3` | ≥ 1, ≤ 9 | Attempts |" in rows
    assert "| `PING_WORDS` | `a,b` | words, parted by commas | Words |" in rows
    assert "| `PING_MODE` | `fast` | one of fast, slow | How |" in rows


@pytest.mark.parametrize("bad", ["", "A", "a_b", "-a", "a-", "a.b", "a" * 64])
def test_what_is_no_dns_label_is_refused(bad: str) -> None:
    assert len(wrong({"target": bad})) == 1
