"""A fake of the little of OmegaConf that gym-server's child uses."""

from typing import Any

from omegaconf.errors import OmegaConfBaseException


class DictConfig(dict[str, Any]):
    """A mapping."""


class OmegaConf:
    """Conversion that refuses what cannot be resolved."""

    @staticmethod
    def to_container(config: Any, *, resolve: bool) -> Any:
        if resolve and "unresolved" in config:
            error = OmegaConfBaseException("Interpolation key 'x' not found")
            error.full_key = "unresolved"
            raise error
        return config
