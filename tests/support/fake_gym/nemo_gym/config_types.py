"""A fake."""


class ConfigError(Exception):
    """Base of NeMo Gym's own refusals."""
