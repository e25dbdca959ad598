"""What Envoy counts, per replica and of the pool, read from its admin socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from vllm_pool.dataplane.config import KEYED, UNKEYED

_ADMIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BackendStats:
    """Of one replica, both clusters together; counters since Envoy has known it.

    `error` counts answers of 5xx and lost connections, `ejected` says that Envoy leaves it out
    for the moment because it could not be reached, `draining` that it sends it nothing new.
    """

    active: int = 0
    total: int = 0
    success: int = 0
    error: int = 0
    timeout: int = 0
    connect_failures: int = 0
    connections: int = 0
    ejected: bool = False
    draining: bool = False

    def __add__(self, other: BackendStats) -> BackendStats:
        """Add the counters of the same replica in another cluster."""
        sums: dict[str, Any] = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.type == "int"
        }
        return BackendStats(
            **sums,
            ejected=self.ejected or other.ejected,
            # One of the clusters may not have read it yet.
            draining=self.draining and other.draining,
        )


_NAMES = {
    "rq_active": "active",
    "rq_total": "total",
    "rq_success": "success",
    "rq_error": "error",
    "rq_timeout": "timeout",
    "cx_connect_fail": "connect_failures",
    "cx_active": "connections",
}


def parse_clusters(text: str | bytes) -> Mapping[str, BackendStats]:
    """Return the counters of each replica from the admin's `/clusters?format=json`.

    Raises:
        ValueError: the text is not what Envoy writes.
    """
    found: dict[str, BackendStats] = {}
    try:
        for cluster in json.loads(text).get("cluster_statuses", []):
            if cluster["name"] not in (KEYED, UNKEYED):
                continue
            for host in cluster.get("host_statuses", []):
                counts: dict[str, Any] = {
                    _NAMES[stat["name"]]: int(stat.get("value", 0))
                    for stat in host.get("stats", [])
                    if stat["name"] in _NAMES
                }
                health = host.get("health_status", {})
                one = BackendStats(
                    **counts,
                    ejected=bool(health.get("failed_outlier_check", False)),
                    draining=health.get("eds_health_status") == "DRAINING",
                )
                name = host["hostname"]
                found[name] = found[name] + one if name in found else one
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a report of Envoy's clusters: {error!r}") from error
    return found


def parse_counters(text: str) -> Mapping[str, int]:
    """Return the numbers of the admin's `/stats`, by name; other kinds of value are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(": ")
        if separator and value.isdigit():
            found[name] = int(value)
    return found


class Admin:
    """Envoy's admin interface on its socket; an asynchronous context manager.

    Every method raises `aiohttp.ClientError`, `OSError` or `TimeoutError` when Envoy does not
    answer.
    """

    def __init__(self, socket: Path) -> None:
        """Take the path of the admin socket."""
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session; the first connection is made with the first question."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self._socket)),
            timeout=aiohttp.ClientTimeout(total=_ADMIN_SECONDS),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, method: str, path: str) -> tuple[int, str]:
        if self._session is None:
            raise RuntimeError("Admin is used outside of `async with`")
        async with self._session.request(method, f"http://envoy{path}") as response:
            return response.status, await response.text()

    async def backends(self) -> Mapping[str, BackendStats]:
        """Return the counters of every replica that Envoy knows."""
        _, text = await self._ask("GET", "/clusters?format=json")
        return parse_clusters(text)

    async def counters(self, pattern: str = "") -> Mapping[str, int]:
        """Return Envoy's own counters and gauges, by their names; those of a pattern (RE2)."""
        _, text = await self._ask("GET", f"/stats?filter={quote(pattern)}" if pattern else "/stats")
        return parse_counters(text)

    async def ready(self) -> bool:
        """Return whether Envoy serves."""
        status, _ = await self._ask("GET", "/ready")
        return status == 200  # noqa: PLR2004 - OK

    async def drain(self) -> None:
        """Let clients go: every answer closes its connection, new ones are still taken.

        This lasts until Envoy ends; nothing brings it back.
        """
        await self._post("/drain_listeners?graceful&skip_exit")

    async def close_listener(self) -> None:
        """Take no new connections; requests under way go on, and Envoy keeps running."""
        await self._post("/drain_listeners")

    async def _post(self, path: str) -> None:
        status, text = await self._ask("POST", path)
        if status != 200:  # noqa: PLR2004 - OK
            raise aiohttp.ClientError(f"Envoy answers {path} with {status} {text.strip()}")
