"""Questions to one launch of a replica: /health, and one token.

Two endless loops; what they see goes to `tell`. Nothing here decides anything: see `core.health`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

import aiohttp

from vllm_pool import engine
from vllm_pool.core import evidence
from vllm_pool.core.evidence import Sample
from vllm_pool.core.health import Health, Kind, Probe, Result
from vllm_pool.engine import Got

#: Seconds until the next question after a bad answer, and while a replica is not there yet.
_SOON: Final = 0.2
#: Seconds for what is asked beside: the list of models, the counters of tokens.
_BESIDE_SECONDS: Final = 0.5
_MODELS_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Times:
    """How often is asked, and how long an answer may take; seconds."""

    health_interval: float = 1.0
    health: float = 2.0
    canary_interval: float = 2.0
    canary: float = 3.0
    first_canary: float = 60.0


def _result(said: Got) -> Result:
    """Return what an answer means."""
    if said.late:
        return Result.LATE
    return Result.OK if said.status == HTTPStatus.OK else Result.FAILED


class Tell(Protocol):
    """Told of each answer, and whether the replica's work went on while it was late."""

    def __call__(self, probe: Probe, *, progress: bool) -> None:
        """Take one answer."""


class Prober:
    """Asks one launch of one replica."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        times: Times,
        *,
        model: str = "",
        health: Callable[[], Health],
        successes: Callable[[], int | None],
        resting: Callable[[], bool],
        tell: Tell,
    ) -> None:
        """Take where it is and whom to tell.

        Args:
            session: Client to ask with.
            url: Where the replica is.
            times: How often.
            model: Whom the canary asks; empty: the first one.
            health: What is known of the replica now.
            successes: How many requests of clients it has ended well.
            resting: Whether its generation was halted on purpose.
            tell: Told of each answer.
        """
        self._session = session
        self._url = url
        self._times = times
        self._model = model
        # The first model, as long as it answers.
        self._found = ""
        self._health = health
        self._successes = successes
        self._resting = resting
        self._tell = tell

    async def health_loop(self) -> None:
        """Ask /health for ever."""
        while True:
            before = Sample(successes=self._successes())
            said = await self._ask("GET", "/health", self._times.health)
            after = Sample(successes=self._successes())
            probe = Probe(Kind.HTTP, _result(said), said.reason)
            self._tell(probe, progress=evidence.progress(before, after))
            well = _result(said) is Result.OK and self._health().up
            await asyncio.sleep(_spread(self._times.health_interval) if well else _SOON)

    async def canary_loop(self) -> None:
        """Ask for a token for ever, as long as /health answers and nobody halted it."""
        while True:
            if self._resting() or not self._answers():
                await asyncio.sleep(_SOON)
                continue
            probe, progress = await self.canary()
            if self._resting():
                # Halted meanwhile: whatever came says nothing.
                continue
            self._tell(probe, progress=progress)
            well = probe.result is Result.OK and self._health().up
            await asyncio.sleep(_spread(self._times.canary_interval) if well else _SOON)

    def _answers(self) -> bool:
        return self._health().http_good > 0

    async def canary(self) -> tuple[Probe, bool]:
        """Ask for one token; return the answer, and whether work went on while it was late."""
        seconds = self._times.canary if self._health().proven else self._times.first_canary
        began = time.monotonic()
        model = self._model or self._found or await self._first_model()
        self._found = ""
        if not model:
            return Probe(Kind.CANARY, Result.FAILED, "/v1/models names no model"), False
        body = engine.one_token(model)
        asked = asyncio.create_task(self._ask("POST", "/v1/completions", seconds, body))
        try:
            # Looked at twice while the token is late: whether others get theirs.
            await asyncio.wait({asked}, timeout=seconds / 2)
            before = None if asked.done() else await self._sample()
            said = await asked
        finally:
            asked.cancel()
        progress = False
        if said.late and before is not None:
            progress = evidence.progress(before, await self._sample())
        took = time.monotonic() - began
        result, reason = _result(said), said.reason
        if result is Result.OK and not said.has_choice:
            result, reason = Result.FAILED, "its answer has no choice in it"
        if result is Result.OK:
            self._found = model
        return Probe(Kind.CANARY, result, reason, took), progress

    async def _first_model(self) -> str:
        return (await self._ask("GET", "/v1/models", _MODELS_SECONDS)).model

    async def _sample(self) -> Sample:
        said = await self._ask("GET", "/metrics", _BESIDE_SECONDS)
        return Sample(evidence.tokens(said.text, evidence.OUT, evidence.IN), self._successes())

    async def _ask(self, method: str, path: str, seconds: float, body: Any = None) -> Got:
        return await engine.ask(self._session, method, self._url + path, seconds, body)


def _spread(seconds: float) -> float:
    """Return about so many seconds: balancers that began together do not ask together."""
    return seconds * random.uniform(0.9, 1.0)  # noqa: S311 - spreads load
