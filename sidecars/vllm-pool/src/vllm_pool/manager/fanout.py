"""One call of a refit to many replicas, and all that they answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from vllm_pool.core.refit import Answer

#: Headers of a client that a replica has to see.
_PASSED: Final = ("content-type", "content-encoding", "accept", "x-request-id")


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be asked of each.

    Attributes:
        target: Path and query, as the client sent them.
        bodies: What each replica is sent, by its id.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    bodies: Mapping[str, bytes]


async def fan_out(
    session: aiohttp.ClientSession, call: Call, urls: Mapping[str, str], seconds: float
) -> dict[str, Answer]:
    """Ask all at once; return what each said. An answer that did not come has status 0."""
    headers = {name: value for name, value in call.headers.items() if name.lower() in _PASSED}

    async def ask(name: str, url: str) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                where = URL(url + call.target, encoded=True)
                async with session.request(
                    call.method, where, data=call.bodies[name] or None,
                    headers=headers, allow_redirects=False,
                ) as answer:  # fmt: skip
                    return Answer(answer.status, _body(await answer.read()))
        except TimeoutError:
            return Answer(0, error=f"no answer in {seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")

    names = sorted(urls)
    said = await asyncio.gather(*(ask(name, urls[name]) for name in names))
    return dict(zip(names, said, strict=True))


def _body(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
