"""A fake."""


class OmegaConfBaseException(Exception):  # noqa: N818 - its name
    """Base of its errors."""

    full_key: str | None = None
