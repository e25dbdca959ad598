"""A fake: takes everything but a config with the key `refused`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config_types import ConfigError


@dataclass
class GlobalConfigDictParserConfig:
    """What the parser is given."""

    dotenv_path: Path | None = None
    skip_load_from_dotenv: bool = False
    skip_load_from_cli: bool = False
    initial_global_config_dict: Any = None
    offline: bool = False


class GlobalConfigDictParser:
    """The parser."""

    def parse(self, parse_config: GlobalConfigDictParserConfig) -> Any:
        assert parse_config.offline
        config = parse_config.initial_global_config_dict
        if "refused" in config:
            raise ConfigError(f"'refused' must not be {config['refused']!r}")
        return config

    def raise_on_no_server_instances(self, config: Any) -> None:
        assert config
