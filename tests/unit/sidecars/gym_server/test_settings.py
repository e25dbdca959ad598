from __future__ import annotations

import argparse
import os

import pytest

from gym_server.settings import DriverSettings, GymServerSettings, add_flags, split
from tandem_common.errors import UserError
from tandem_common.settings import Settings

RIGHT = {"host": "10.0.0.7", "model": "policy", "config": "gym.yaml"}


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GYM_SERVER_", "DRIVER_"))]:
        monkeypatch.delenv(name)


def problems(kind: type[Settings], **flags: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        kind.load(flags)
    assert caught.value.code == 2
    return [problem.what for problem in caught.value.problems]


def test_the_heads_address_is_made_of_the_host_and_its_port() -> None:
    settings = GymServerSettings.load({**RIGHT, "head_port": 9191})
    assert str(settings.url) == "http://10.0.0.7:9191"
    assert settings.config == ("gym.yaml",)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"host": "fd00::1"}, "without IPv6's brackets"),
        ({"host": "http://10.0.0.7"}, "not a host alone"),
        ({"host": "10.0.0.7:9090"}, "not a host alone"),
        ({"host": "10.0.0.300"}, "10.0.0.300"),
        ({"config": " , "}, "GYM_SERVER_CONFIG names no file"),
        ({"head_port": 0}, "--head-port=0"),
        ({"port_range_low": 20000}, "GYM_SERVER_PORT_RANGE_LOW=20000 is above"),
        ({"head_port": 15500}, "GYM_SERVER_HEAD_PORT=15500 lies within the servers' ports"),
        ({"health_port": 15999}, "GYM_SERVER_HEALTH_PORT=15999 lies within the servers' ports"),
        ({"health_port": 9090}, "GYM_SERVER_HEAD_PORT and GYM_SERVER_HEALTH_PORT are the same"),
        ({"gym_ready_seconds": 0}, "--gym-ready-seconds=0"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(flags: dict[str, object], problem: str) -> None:
    (only,) = problems(GymServerSettings, **{**RIGHT, **flags})
    assert problem in only


def test_all_that_is_missing_is_told_at_once() -> None:
    told = problems(GymServerSettings)
    assert [what.split()[0] for what in told] == [
        "GYM_SERVER_HOST", "GYM_SERVER_MODEL", "GYM_SERVER_CONFIG",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("", ""),
        ("gym:9090", "http://gym:9090"),
        ("https://[fd00::1]/x/", "https://[fd00::1]:443/x"),
    ],
)
def test_the_driver_takes_a_gym_in_every_form(given: str, url: str) -> None:
    assert DriverSettings.load({"gym_url": given}).gym_url == url


def test_every_setting_but_a_secret_has_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, GymServerSettings)
    given = vars(parser.parse_args(["--head-port", "1", "--strict", "--job-id", "run-7"]))
    assert given["head_port"] == "1"
    assert given["strict"] is True
    assert given["job_id"] == "run-7"
    assert given["host"] is None
    assert "vllm_api_key" not in given
    assert set(GymServerSettings.model_fields) - set(given) == {"vllm_api_key"}


@pytest.mark.parametrize(
    ("argv", "before", "behind"),
    [
        (["--x", "1", "--", "a", "--", "b"], ["--x", "1"], ["a", "--", "b"]),
        (["--x"], ["--x"], []),
        (["--"], [], []),
    ],
)
def test_the_training_command_stands_behind_two_dashes(
    argv: list[str], before: list[str], behind: list[str]
) -> None:
    assert split(argv) == (before, behind)
