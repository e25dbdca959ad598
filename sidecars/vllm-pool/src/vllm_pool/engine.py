"""Questions to one vLLM server, as the agent beside it and the managers ask them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Got:
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

    @property
    def model(self) -> str:
        """The first model of a list of models; empty when it names none."""
        try:
            return str(self.json()["data"][0]["id"])
        except (TypeError, LookupError):
            return ""

    @property
    def has_choice(self) -> bool:
        """Whether it is a completion with something in it."""
        said = self.json()
        return isinstance(said, dict) and bool(said.get("choices"))


def one_token(model: str) -> dict[str, Any]:
    """Return the request for one token."""
    return {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, seconds: float, body: Any = None
) -> Got:
    """Return the answer to one request, or why there was none."""
    try:
        async with asyncio.timeout(seconds):
            async with session.request(method, url, json=body, allow_redirects=False) as answer:
                text = await answer.text(errors="replace")
    except TimeoutError:
        return Got(0, late=True, reason=f"no answer in {seconds:g} s")
    except aiohttp.ClientConnectorError as error:
        gone = isinstance(error.os_error, ConnectionRefusedError)
        return Got(0, refused=gone, reason=str(error.os_error))
    except (aiohttp.ClientError, OSError) as error:
        return Got(0, reason=f"{type(error).__name__}: {error}")
    well = answer.status == HTTPStatus.OK
    reason = "" if well else f"HTTP {answer.status}: {text[:_SHOWN]}"
    return Got(answer.status, text, reason=reason)
