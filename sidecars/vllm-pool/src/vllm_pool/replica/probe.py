"""Looks at the vLLM server: `/health`, one token, and the tokens that it has generated so far."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from vllm_pool import engine
from vllm_pool.core import evidence
from vllm_pool.engine import Got
from vllm_pool.replica.decide import Canary, Sample

#: Seconds for `/health` and for what is asked beside the canary.
_SHORT_SECONDS: Final = 5.0


class Probe:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, target: str, model: str = "") -> None:
        """Take where it is; without a model the first one that it serves is asked."""
        self._session = session
        self._target = target
        self._model = model

    async def look(self, canary_seconds: float) -> Sample:
        """Return what the server looks like now; its canary gets so many seconds."""
        health = await self._ask("GET", "/health", _SHORT_SECONDS)
        if health.status != HTTPStatus.OK:
            return Sample(refused=health.refused, reason=f"/health: {health.reason}")
        if not (model := self._model or await self._first_model()):
            return Sample(healthy=True, canary=Canary.FAILED, reason="/v1/models names no model")
        began = time.monotonic()
        got = await self._ask("POST", "/v1/completions", canary_seconds, engine.one_token(model))
        seconds = time.monotonic() - began
        metrics = (await self._ask("GET", "/metrics", _SHORT_SECONDS)).text
        tokens = evidence.tokens(metrics, evidence.OUT)
        if got.status == HTTPStatus.OK and got.has_choice:
            return Sample(healthy=True, canary=Canary.PASSED, seconds=seconds, tokens=tokens)
        reason = got.reason or "it has no choice in it"
        return Sample(
            refused=got.refused,
            healthy=True,
            canary=Canary.LATE if got.late else Canary.FAILED,
            seconds=seconds,
            tokens=tokens,
            resting=got.late and await self._resting(),
            reason=f"canary: {reason}",
        )

    async def _first_model(self) -> str:
        return (await self._ask("GET", "/v1/models", _SHORT_SECONDS)).model

    async def _resting(self) -> bool:
        """Return whether it was paused for a refit, or put to sleep; servers may lack both."""
        for path, field in (("/is_paused", "is_paused"), ("/is_sleeping", "is_sleeping")):
            said = (await self._ask("GET", path, _SHORT_SECONDS)).json()
            if isinstance(said, dict) and said.get(field) is True:
                return True
        return False

    async def _ask(self, method: str, path: str, seconds: float, body: Any = None) -> Got:
        return await engine.ask(self._session, method, self._target + path, seconds, body)
