"""The environment's reward, and the configuration that Gym reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tandem.paths import ROOT
from tandem_trainer.disaggregated import parser
from tandem_trainer.errors import TrainerError
from tandem_trainer.gym_source import environment_url
from vowel_reward import vowel_share

FOLDER = ROOT / "environments/resources_servers/vowels"


@pytest.mark.parametrize(
    ("text", "share"), [("", 0.0), ("xyz", 0.0), ("aEiou", 1.0), ("a b\ufffd", 0.25), ("é", 0.0)]
)
def test_the_reward_is_the_share_of_vowels(text: str, share: float) -> None:
    assert vowel_share(text) == share


def test_the_configuration_serves_the_agent_that_the_trainer_asks_for() -> None:
    config = yaml.safe_load((FOLDER / "configs/vowels.yaml").read_text())
    agent = parser().get_default("agent")
    # Gym adds the address at its start.
    with pytest.raises(TrainerError, match="'vowels_environment' no host and port"):
        environment_url(config, agent)
    config["vowels_environment"]["environment_servers"]["legacy_agent"] |= {
        "host": "10.0.0.9", "port": 15001,
    }  # fmt: skip
    assert environment_url(config, agent) == "http://10.0.0.9:15001"


def test_every_entry_point_that_is_ours_is_there() -> None:
    config = yaml.safe_load((FOLDER / "configs/vowels.yaml").read_text())
    (settings,) = config["vowels"]["resources_servers"].values()
    assert (FOLDER / Path(settings["entrypoint"])).is_file()
    # Gym takes a folder for a server only when it says what it needs.
    assert (FOLDER / "requirements.txt").is_file()
