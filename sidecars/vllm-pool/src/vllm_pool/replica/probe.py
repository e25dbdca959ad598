"""Looks at the vLLM server: `/health`, one token, and the tokens that it has generated so far."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from vllm_pool.core import evidence
from vllm_pool.replica.decide import Canary, Sample

#: Seconds for `/health` and for what is asked beside the canary.
_SHORT_SECONDS: Final = 5.0
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class _Got:
    """One answer: status 0 when there was none."""

    status: int
    text: str = ""
    refused: bool = False
    late: bool = False
    reason: str = ""

    def json(self) -> Any:
        """Return the body's JSON, None when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


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
        body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        got = await self._ask("POST", "/v1/completions", canary_seconds, body)
        seconds = time.monotonic() - began
        metrics = (await self._ask("GET", "/metrics", _SHORT_SECONDS)).text
        tokens = evidence.tokens(metrics, evidence.OUT)
        if got.status == HTTPStatus.OK and _has_choice(got.json()):
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
        said = (await self._ask("GET", "/v1/models", _SHORT_SECONDS)).json()
        try:
            return str(said["data"][0]["id"])
        except (TypeError, LookupError):
            return ""

    async def _resting(self) -> bool:
        """Return whether it was paused for a refit, or put to sleep; servers may lack both."""
        for path, field in (("/is_paused", "is_paused"), ("/is_sleeping", "is_sleeping")):
            said = (await self._ask("GET", path, _SHORT_SECONDS)).json()
            if isinstance(said, dict) and said.get(field) is True:
                return True
        return False

    async def _ask(self, method: str, path: str, seconds: float, body: Any = None) -> _Got:
        try:
            async with asyncio.timeout(seconds):
                async with self._session.request(
                    method, self._target + path, json=body, allow_redirects=False
                ) as answer:
                    text = await answer.text(errors="replace")
        except TimeoutError:
            return _Got(0, late=True, reason=f"no answer in {seconds:g} s")
        except aiohttp.ClientConnectorError as error:
            gone = isinstance(error.os_error, ConnectionRefusedError)
            return _Got(0, refused=gone, reason=str(error.os_error))
        except (aiohttp.ClientError, OSError) as error:
            return _Got(0, reason=f"{type(error).__name__}: {error}")
        well = answer.status == HTTPStatus.OK
        reason = "" if well else f"HTTP {answer.status}: {text[:_SHOWN]}"
        return _Got(answer.status, text, reason=reason)


def _has_choice(said: Any) -> bool:
    return isinstance(said, dict) and bool(said.get("choices"))
