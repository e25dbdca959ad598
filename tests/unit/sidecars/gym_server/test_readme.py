from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gym_server import driver, server
from gym_server.config import RUN_KEYS
from gym_server.metrics import Metrics
from gym_server.settings import DriverSettings, GymServerSettings
from tandem.paths import ROOT
from tandem_common.settings import Settings, environment_table

README = (ROOT / "sidecars" / "gym-server" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [GymServerSettings, DriverSettings])
def test_the_environment_is_told_as_it_is(kind: type[Settings]) -> None:
    _, _, behind = README.partition(f"<!-- environment of {kind.__name__} -->\n")
    assert behind.partition("<!-- end -->")[0] == environment_table(kind)


def test_every_phase_is_told_with_a_deadline_that_exists() -> None:
    rows = re.findall(
        r"\| (gym-server|driver) \| `([\w-]+)` \|.*\| (?:`(\w+)`|[^|]*) \| [^|]+ \|$",
        README,
        re.MULTILINE,
    )
    assert {phase for program, phase, _ in rows if program == "driver"} == set(driver.PHASES)
    assert {phase for program, phase, _ in rows if program == "gym-server"} == set(server.PHASES)
    known = {
        kind.variable(name)
        for kind in (GymServerSettings, DriverSettings)
        for name in kind.model_fields
    }
    assert {variable for *_, variable in rows if variable} <= known


def test_every_metric_is_told() -> None:
    registry = CollectorRegistry()
    Metrics("x", ["a"], registry)
    text = generate_latest(registry).decode()
    families = set(re.findall(r"^# TYPE x_(\w+)", text, re.MULTILINE))
    told = set(re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram)", README, re.MULTILINE))
    assert {name for name in families if not name.endswith("_created")} == told


def test_every_key_that_the_run_sets_is_told() -> None:
    (sentence,) = re.findall(r"The run sets, whatever the files say: ([^.]*)\.", README)
    assert set(re.findall(r"`(\w+)`", sentence)) == RUN_KEYS
