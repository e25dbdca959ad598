"""Give a running vLLM server new weights over HTTP (its development mode)."""

from __future__ import annotations

from pathlib import Path

from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi


class RefitClient:
    """Replaces the weights that a vLLM server serves.

    While paused the server answers /health with 200 and holds every generation back. When a
    step of the refit fails it stays paused on purpose: half-loaded weights must answer nobody.
    """

    def __init__(self, api: JsonApi) -> None:
        """Take the server; its HTTP API must be in development mode."""
        self._api = api

    def apply(self, weights: Path, version: str) -> str:
        """Load the weights of a folder that the server can read; return the version it reports.

        Raises:
            TrainerError: A step failed, or the server reports another version afterwards.
        """
        self._api.post("/pause")
        self._api.post(
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}},
        )
        # Cached keys and values belong to the old weights.
        self._api.post("/reset_prefix_cache")
        self._api.post("/update_weight_version", {"new_version": version})
        self._api.post("/resume")
        reported = self._api.get("/weight_info").get("weight_version")
        if reported != version:
            raise TrainerError(f"vLLM serves weights {reported!r} after a refit to {version!r}")
        return version
