"""Who may call which of vLLM's routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem_trainer.gate import PublicRoutes, allowed

ELSEWHERE, LOOPBACK = ("10.1.2.3", 40000), ("127.0.0.1", 40000)


def _scope(path: str, client: Any, kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "path": path, "client": client}


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/health"]
)
def test_gym_reaches_what_answers(path: str) -> None:
    assert allowed(_scope(path, ELSEWHERE))


@pytest.mark.parametrize(
    "path",
    [
        "/collective_rpc", "/pause", "/resume", "/update_weights", "/sleep", "/server_info",
        "/abort_requests", "/", "/v1/models/", "//v1/models", "/v1/../pause", "/V1/MODELS",
    ],
)  # fmt: skip
def test_everything_else_is_for_loopback(path: str) -> None:
    assert not allowed(_scope(path, ELSEWHERE))
    assert allowed(_scope(path, LOOPBACK))


@pytest.mark.parametrize(
    ("client", "passes"),
    [
        (("::1", 1), True), (("::ffff:127.0.0.1", 1), True), (("127.8.8.8", 1), True),
        (("::ffff:10.0.0.1", 1), False), (("fd00::7", 1), False), (("192.0.2.9", 1), False),
        (None, False), (("", 0), False), (("localhost", 1), False),
    ],
)  # fmt: skip
def test_loopback_is_known_by_its_address(client: Any, passes: bool) -> None:  # noqa: FBT001
    assert allowed(_scope("/pause", client)) is passes


def test_a_websocket_from_elsewhere_is_refused_whatever_its_path() -> None:
    assert not allowed(_scope("/v1/models", ELSEWHERE, "websocket"))
    assert allowed({"type": "lifespan"})


def _call(scope: dict[str, Any]) -> tuple[list[Any], list[str]]:
    sent: list[Any] = []
    reached: list[str] = []

    async def app(inner: Any, _receive: Any, _send: Any) -> None:
        reached.append(inner["path"])

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(PublicRoutes(app)(scope, receive, send))
    return sent, reached


def test_a_refused_request_never_reaches_the_server() -> None:
    sent, reached = _call(_scope("/pause", ELSEWHERE))
    assert reached == []
    assert sent[0]["status"] == 403
    assert b"/pause" in sent[1]["body"]
    sent, reached = _call(_scope("/x", ELSEWHERE, "websocket"))
    assert (sent, reached) == ([{"type": "websocket.close", "code": 1008}], [])


def test_an_allowed_request_passes_untouched() -> None:
    assert _call(_scope("/pause", LOOPBACK)) == ([], ["/pause"])
