"""Which of vLLM's routes others than its own pod may call.

vLLM's development mode, which refits need, has routes that pause the server, load weights and
run methods of the engine, without any authentication. Gym has to reach the server from other
pods and needs only what answers: everything else is open to loopback alone. vLLM loads this as
ASGI middleware (`--middleware tandem_trainer.gate.PublicRoutes`).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

#: Compared as they are: a path that is written in another way is not on the list.
PUBLIC = frozenset(
    {
        "/health",
        "/metrics",
        "/tokenize",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
    }
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def allowed(scope: Scope) -> bool:
    """Return whether a request may pass: to a public route, or from loopback."""
    if scope["type"] == "lifespan":
        return True
    if scope["type"] == "http" and scope["path"] in PUBLIC:
        return True
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        # Nobody knows where it comes from.
        return False
    # A dual-stack socket shows IPv4 as ::ffff:a.b.c.d.
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class PublicRoutes:
    """Answers 403 to everything that is not allowed."""

    def __init__(self, app: App) -> None:
        """Take the application behind."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if allowed(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        body = json.dumps({"error": f"{scope['path']} is open to this pod only"}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})
