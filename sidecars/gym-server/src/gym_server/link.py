"""The two programs' side of the endpoint registry."""

from __future__ import annotations

PREFIX = "nemo-rl-endpoints-"


def name(job_id: str) -> str:
    """Return the name of a run's ConfigMap."""
    return f"{PREFIX}{job_id}"


class Nobody:
    """No registry at all: for what is only checked."""

    def publish(self, key: str, value: str) -> None:
        """Do nothing."""

    def withdraw(self) -> None:
        """Do nothing."""

    def fail(self, message: str) -> None:
        """Do nothing."""

    def succeed(self) -> None:
        """Do nothing."""

    def silence(self, key: str) -> str:
        """Return nothing."""
        del key
        return ""
