"""The manager's HTTP interface, on its socket; Envoy passes the pool's own paths to it.

| request | answer |
| --- | --- |
| GET /health | 200 when a replica is in rotation, else 503; all replicas |
| GET /ready | 200 when enough are, and the balancer is not about to go; else 503 with reasons |
| GET /pool, /pool/replicas[/{id}] | all of it, the replicas, or one |
| PUT /pool/replicas/{id} | registers or renews; 409 with `epoch` when a newer launch is known |
| DELETE /pool/replicas/{id}[?epoch=] | takes it out |
| POST /pool/replicas/{id}/drain, /undrain | nothing new for it, or again |
| POST /pool/drain, /pool/undrain | the balancer itself is not ready any more, or again |
| POST /pool/canary[?id=] | asks for a token now |
| a refit's paths | to all replicas, one answer: `core.refit` |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from tandem_common import logs
from vllm_pool.core import refit
from vllm_pool.core.membership import Registration, StaleError, UnknownError, check_id, parse_url
from vllm_pool.manager.loop import Manager

API_SOURCE: Final = "api"
_FIELDS: Final = ("url", "epoch", "lease_seconds", "ready", "weight_version")
_LARGEST_EPOCH: Final = 2**53
_LONGEST_LEASE: Final = 86400.0

_LOG: Final = logs.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RefusedError(Exception):
    """A request that is wrong, with all that is wrong with it."""

    def __init__(self, reasons: list[str]) -> None:
        """Take the reasons."""
        self.reasons = reasons
        super().__init__("; ".join(reasons))


def application(manager: Manager, max_body_bytes: int) -> web.Application:
    """Return the application that answers for a manager."""
    api = _Api(manager)
    app = web.Application(client_max_size=max_body_bytes, middlewares=[_as_json])
    one = "/pool/replicas/{id}"
    app.add_routes(
        [
            web.get("/health", api.health),
            web.get("/ready", api.ready),
            web.get("/pool", api.health),
            web.get("/pool/replicas", api.replicas),
            web.get(one, api.replica),
            web.put(one, api.register),
            web.delete(one, api.remove),
            web.post(f"{one}/drain", api.drain(draining=True)),
            web.post(f"{one}/undrain", api.drain(draining=False)),
            web.post("/pool/drain", api.drain_all(draining=True)),
            web.post("/pool/undrain", api.drain_all(draining=False)),
            web.post("/pool/canary", api.canary),
            web.route("*", "/{path:.*}", api.refit),
        ]
    )
    return app


@web.middleware
async def _as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every refusal the form that vLLM's have."""
    try:
        return await handler(request)
    except RefusedError as error:
        return _refusal(HTTPStatus.BAD_REQUEST, str(error), reasons=error.reasons)
    except UnknownError as error:
        return _refusal(HTTPStatus.NOT_FOUND, str(error))
    except web.HTTPException as error:
        return _refusal(error.status, error.reason, error.headers)
    except Exception:  # noqa: BLE001 - a defect of ours: it is logged, and the form is kept
        _LOG.exception("request_failed", method=request.method, path=request.path)
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of the manager: see its log")


def _refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any
) -> web.Response:
    body = {"error": {"message": message, "type": "vllm_pool", "code": int(status)}, **more}
    kept = {"Allow": headers["Allow"]} if headers and "Allow" in headers else None
    return web.json_response(body, status=status, headers=kept)


class _Api:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._pool = manager.pool

    async def health(self, _: web.Request) -> web.Response:
        quorum = self._pool.quorum()
        body = {
            "status": quorum.status,
            "healthy_backends": quorum.in_rotation,
            "total_backends": quorum.total,
            "min_ready": quorum.min_ready,
            "ready": quorum.ready,
            "draining": self._pool.draining,
            "weight_version": self._pool.weights.version,
            "backends": [row.as_json() for row in self._pool.rows()],
        }
        good = quorum.in_rotation > 0
        return web.json_response(body, status=200 if good else HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready(self, _: web.Request) -> web.Response:
        quorum = self._pool.quorum()
        return web.json_response(
            {"ready": quorum.ready, "reasons": list(quorum.reasons)},
            status=200 if quorum.ready else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    async def replicas(self, _: web.Request) -> web.Response:
        return web.json_response({"replicas": [row.as_json() for row in self._pool.rows()]})

    async def replica(self, request: web.Request) -> web.Response:
        return self._one(request.match_info["id"])

    def _one(self, name: str) -> web.Response:
        for row in self._pool.rows():
            if row.member.id == name:
                return web.json_response(row.as_json())
        raise UnknownError(f"no replica {name!r}")

    async def register(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        said = registration(name, await _json(request))
        known = self._pool.membership.members.get(name)
        try:
            self._pool.register(said, API_SOURCE)
        except StaleError as error:
            epoch = known.epoch if known is not None else 0
            return _refusal(HTTPStatus.CONFLICT, str(error), epoch=epoch)
        self._manager.apply()
        return self._one(name)

    async def remove(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        text = request.query.get("epoch")
        if text is not None and not text.isdecimal():
            raise RefusedError([f"epoch={text!r} is no number"])
        known = self._pool.membership.members.get(name)
        try:
            self._pool.remove(name, None if text is None else int(text))
        except StaleError as error:
            epoch = known.epoch if known is not None else 0
            return _refusal(HTTPStatus.CONFLICT, str(error), epoch=epoch)
        self._manager.apply()
        return web.json_response({"id": name, "state": "gone"})

    def drain(self, *, draining: bool) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            name = request.match_info["id"]
            self._pool.drain(name, draining=draining)
            self._manager.apply()
            return self._one(name)

        return handle

    def drain_all(self, *, draining: bool) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            self._pool.draining = draining
            self._manager.apply()
            return await self.ready(request) if not draining else await self._going(request)

        return handle

    async def _going(self, _: web.Request) -> web.Response:
        return web.json_response({"draining": True, "reasons": list(self._pool.quorum().reasons)})

    async def canary(self, request: web.Request) -> web.Response:
        name = request.query.get("id")
        try:
            said = await self._manager.canaries(name)
        except KeyError:
            raise UnknownError(f"no replica {name!r}") from None
        good = bool(said) and all(each["ok"] for each in said.values())
        return web.json_response(
            {"ok": good, "replicas": said}, status=200 if good else HTTPStatus.BAD_GATEWAY
        )

    async def refit(self, request: web.Request) -> web.Response:
        if refit.kind(request.path) is None:
            return _refusal(HTTPStatus.NOT_FOUND, f"the pool has no path {request.path}")
        status, body = await self._manager.refit(
            request.method, request.raw_path, request.headers, await request.read()
        )
        return web.json_response(body, status=status)


async def _json(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError:
        raise RefusedError(["the body is no JSON"]) from None


def registration(name: str, said: Any) -> Registration:
    """Return what a body says of a replica.

    Raises:
        RefusedError: With all that is wrong.
    """
    if not isinstance(said, dict):
        raise RefusedError(["the body is no JSON object"])
    wrong = list(_wrong(name, said))
    if wrong:
        raise RefusedError(wrong)
    lease = said.get("lease_seconds")
    return Registration(
        id=name,
        url=said["url"],
        epoch=said.get("epoch"),
        lease_seconds=None if lease is None else float(lease),
        ready=said.get("ready", True),
        weight_version=said.get("weight_version"),
    )


def _wrong(name: str, said: dict[str, Any]) -> Iterator[str]:
    try:
        check_id(name)
    except ValueError as error:
        yield str(error)
    for unknown in sorted(said.keys() - set(_FIELDS)):
        yield f"{unknown}: no such field; there are {', '.join(_FIELDS)}"
    url = said.get("url")
    if not isinstance(url, str):
        yield f"url: {url!r} is no text such as http://host:port"
    else:
        try:
            parse_url(url)
        except ValueError as error:
            yield f"url: {error}"
    epoch = said.get("epoch")
    if epoch is not None and (type(epoch) is not int or not 0 <= epoch <= _LARGEST_EPOCH):
        yield f"epoch: {epoch!r} is no number from 0 to 2**53"
    lease = said.get("lease_seconds")
    if lease is not None and (
        isinstance(lease, bool)
        or not isinstance(lease, int | float)
        or not 0 < lease <= _LONGEST_LEASE
    ):
        yield f"lease_seconds: {lease!r} is no number above 0, up to {_LONGEST_LEASE:g}"
    if not isinstance(said.get("ready", True), bool):
        yield f"ready: {said['ready']!r} is neither true nor false"
    version = said.get("weight_version")
    if version is not None and not isinstance(version, str):
        yield f"weight_version: {version!r} is no text"
