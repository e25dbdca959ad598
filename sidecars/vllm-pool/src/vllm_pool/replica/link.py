"""Requests to one manager, and what its answers are in the agent's terms."""

from __future__ import annotations

import asyncio
import json
import socket
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp

from vllm_pool.replica.decide import Answer, Reply

_SHOWN: Final = 200


def read_answer(status: int, body: Any, name: str) -> Answer:
    """Return what a manager's answer means.

    Args:
        status: HTTP status.
        body: Parsed body, None when it was no JSON.
        name: Id of the replica.
    """
    said = body if isinstance(body, dict) else {}
    reason = "" if status < HTTPStatus.BAD_REQUEST else f"HTTP {status}: {str(body)[:_SHOWN]}"
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return Answer(Reply.DONE, state=_state(said, name))
    if status == HTTPStatus.CONFLICT:
        epoch = said.get("epoch")
        known = epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else 0
        return Answer(Reply.CONFLICT, reason, epoch=known)
    if status == HTTPStatus.NOT_FOUND:
        return Answer(Reply.UNKNOWN, reason)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return Answer(Reply.FAILING, reason)
    return Answer(Reply.REFUSED, reason)


def read_state(status: int, body: Any, name: str) -> Answer:
    """Return the state in which a manager's `/health` lists a replica.

    `/health` is 503 when no replica is in rotation, and lists them all the same.
    """
    said = body if isinstance(body, dict) else {}
    if not isinstance(said.get("backends"), list):
        return Answer(Reply.FAILING, f"HTTP {status} without a list of backends")
    state = _state(said, name)
    return Answer(Reply.DONE, state=state) if state else Answer(Reply.UNKNOWN, "not listed")


def _state(said: dict[str, Any], name: str) -> str:
    """Return a replica's state from an answer about it alone, or about all."""
    listed = said.get("backends")
    every = listed if isinstance(listed, list) else [said]
    for each in every:
        if isinstance(each, dict) and each.get("id", name) == name:
            return str(each.get("state") or "")
    return ""


class Link:
    """One manager."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        name: str,
        *,
        token_file: Path | None,
        seconds: float,
    ) -> None:
        """Take where it is, the replica's id, the token's file and the time for one request."""
        self.url = url
        self._session = session
        self._name = name
        self._token_file = token_file
        self._seconds = seconds

    async def put(self, body: dict[str, Any]) -> Answer:
        """Register or renew."""
        return await self._member("PUT", "", body)

    async def drain(self) -> Answer:
        """Ask for nothing new to be sent to this replica."""
        return await self._member("POST", "/drain")

    async def withdraw(self, epoch: int) -> Answer:
        """Take the registration of an epoch back."""
        return await self._member("DELETE", f"?epoch={epoch}")

    async def state(self) -> Answer:
        """Ask for the state that it has this replica in."""
        got = await self._ask("GET", "/health")
        return got if isinstance(got, Answer) else read_state(*got, self._name)

    async def _member(self, method: str, rest: str, body: Any = None) -> Answer:
        got = await self._ask(method, f"/pool/replicas/{quote(self._name, safe='')}{rest}", body)
        return got if isinstance(got, Answer) else read_answer(*got, self._name)

    async def _ask(self, method: str, path: str, body: Any = None) -> Answer | tuple[int, Any]:
        try:
            headers = self._headers()
        except (OSError, ValueError) as error:
            return Answer(Reply.REFUSED, f"the token's file: {error}")
        # Who takes no connection is away with its data plane; who takes it and says nothing is not.
        timeout = aiohttp.ClientTimeout(total=self._seconds, sock_connect=self._seconds / 2)
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=headers, timeout=timeout,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                raw = await answer.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Answer(Reply.AWAY, f"{type(error).__name__}: {error}")
        except TimeoutError:
            return Answer(Reply.FAILING, f"no answer in {self._seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(Reply.FAILING, f"{type(error).__name__}: {error}")
        try:
            said = json.loads(raw) if raw else None
        except ValueError:
            said = raw[:_SHOWN].decode(errors="replace")
        return answer.status, said

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        token = self._token_file.read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}


async def addresses(url: str) -> list[str]:
    """Return the managers that an address stands for.

    `dns+http://name:port` stands for every address of the name, any other for itself.

    Raises:
        OSError: The name cannot be resolved at present.
    """
    if not url.startswith("dns+"):
        return [url]
    parts = urlsplit(url.removeprefix("dns+"))
    port = parts.port or 80
    found = await asyncio.get_running_loop().getaddrinfo(
        parts.hostname, port, type=socket.SOCK_STREAM
    )
    hosts = sorted({str(each[4][0]) for each in found})
    return [f"http://{f'[{host}]' if ':' in host else host}:{port}" for host in hosts]


def own_address(manager: str) -> str:
    """Return this host's address on the way to a manager; nothing is sent.

    Raises:
        OSError: There is no way to it, or its name cannot be resolved.
    """
    parts = urlsplit(manager.removeprefix("dns+"))
    family, kind, _, _, where = socket.getaddrinfo(
        parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
