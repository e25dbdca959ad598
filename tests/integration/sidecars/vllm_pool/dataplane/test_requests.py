"""What reaches a replica, and that it is what the client has sent."""

# ruff: noqa: E501 - tables of requests, one a line

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import Exchange, Plane, Replica, read_until, until
from vllm_pool.dataplane import config, process

TOKEN = "a-long-and-secret-token"  # noqa: S105 - of this test's own
BEARER = {"authorization": f"Bearer {TOKEN}"}
# What Envoy may add to a request: its length is the client's, its id is wanted.
ADDED = {"x-request-id", "x-forwarded-proto"}

BODIES = {
    "spaces and order": b'{ "z" : 1.0,\n "a":1e3, "messages" : [ {"role":"user","content":"\\u00e9"} ]}\r\n',
    "unknown fields": b'{"messages":[{"role":"user","content":"x","odd":[1,{}]}],"return_token_ids":true}',
    "a number of more than 64 bits": b'{"prompt":"x","seed":123456789012345678901234567890}',
    "no JSON": bytes(range(256)) * 8,
    "all bytes in a prompt": b'{"prompt":"' + bytes(range(256)) * 40 + b'"}',
    "broken JSON": b'{"messages":[{"role":"user',
    "brackets that close nothing": b'{"messages":]}]}]}"',
    "gzip": gzip.compress(b'{"messages":[]}', mtime=0),
    "empty": b"",
    "only marks": b'{"messages":' + b'["\\"' * 3000,
}

PATHS = [
    ("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings?a=1&b=%20&b=%2F"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/pooling"), ("POST", "/score"), ("POST", "/v1/score"), ("POST", "/rerank"),
    ("POST", "/v1/rerank"), ("POST", "/classify"), ("GET", "/metrics"), ("GET", "/version"),
    ("GET", "/ping"), ("POST", "/invocations"), ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/files/f%2Fg"), ("PUT", "/a//b/../c/./d"), ("PATCH", "/x;y=1?q=a+b&q="),
    ("OPTIONS", "/v1/models"), ("GET", "/healthy"), ("GET", "/poolside"), ("GET", "/"),
]  # fmt: skip


@behaviour("a body of JSON is passed byte by byte", broken_by=faults.reserialises_bodies)
@behaviour(
    "a body that is no text is passed byte by byte",
    broken_by=faults.takes_bytes_for_text, body=BODIES["no JSON"],
)  # fmt: skip
@behaviour(
    "a number of more than 64 bits is passed as it is",
    broken_by=faults.rounds_numbers, body=BODIES["a number of more than 64 bits"],
)  # fmt: skip
@behaviour(
    "fields that nobody knows are passed",
    broken_by=faults.drops_unknown_fields, body=BODIES["unknown fields"],
)  # fmt: skip
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_bodies_are_passed_byte_by_byte(plane: Plane, body: bytes) -> None:
    (replica,) = plane.pool(1)
    assert plane.ask("POST", "/v1/chat/completions", body).status == 200
    assert replica.asked[0].body == body
    assert replica.asked[0].header("content-length") == str(len(body))


@behaviour("every path passes", broken_by=faults.knows_only_v1, path="/version")
@behaviour(
    "a query passes as it is",
    broken_by=faults.drops_the_query, path="/v1/embeddings?a=1&b=%20&b=%2F",
)  # fmt: skip
@behaviour("a path is not tidied", broken_by=faults.tidies_paths, path="/a//b/../c/./d")
@behaviour("a path is not unescaped", broken_by=faults.unescapes_paths, path="/v1/files/f%2Fg")
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_and_query_passes(plane: Plane, method: str, path: str) -> None:
    (replica,) = plane.pool(1)
    assert plane.ask(method, path).status == 200
    assert (replica.asked[0].method, replica.asked[0].target) == (method, path)


@behaviour("headers are kept", broken_by=faults.drops_headers)
@behaviour("headers of the hop are not passed on", broken_by=faults.passes_hop_by_hop)
@behaviour(
    "a header of 12 kB is passed",
    broken_by=faults.takes_small_headers_only, raises=(IndexError,),
)  # fmt: skip
def test_headers_are_kept_and_those_of_the_hop_are_not(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    sent = {
        "Accept-Encoding": "gzip, br", "X-Custom_Name": "kept", "traceparent": "00-abc-def-01",
        "Cookie": "a=b; c=d", "User-Agent": "of mine", "X-Forwarded-For": "10.1.2.3",
        "Content-Type": "application/json; charset=utf-8", "X-Long": "l" * 12_000,
    }  # fmt: skip
    hop = {"Connection": "close, X-Mine", "X-Mine": "1", "Keep-Alive": "timeout=5", "TE": "trailers",
           "Proxy-Connection": "keep-alive"}  # fmt: skip
    plane.ask("POST", "/v1/completions", b'{"prompt":"x"}', {**sent, **hop, **BEARER})
    got = dict(replica.asked[0].headers)
    assert {name: got.get(name.lower()) for name in sent} == sent
    assert not {"keep-alive", "proxy-connection", "authorization"} & set(got)
    assert "close" not in got.get("connection", "")
    assert set(got) - {name.lower() for name in sent} <= ADDED | {"host", "content-length"}
    assert got["host"] == f"127.0.0.1:{plane.port}"


@behaviour("a client cannot command the balancer", broken_by=faults.trusts_envoys_headers)
def test_what_only_envoy_understands_is_not_taken_from_clients(plane: Plane) -> None:
    replicas = plane.pool(2)

    async def failing(_replica: Replica, exchange: Exchange) -> None:
        await exchange.answer(400)

    for replica in replicas:
        replica.answer = failing
    reply = plane.ask(
        "POST", "/v1/completions", b'{"prompt":"x"}',
        {"x-envoy-retry-on": "retriable-4xx,retriable-status-codes", "x-envoy-max-retries": "9",
         "x-envoy-retriable-status-codes": "400", "x-envoy-upstream-rq-timeout-ms": "1"},
    )  # fmt: skip
    # A time of a millisecond would have been over before.
    assert reply.status == 400
    (asked,) = [one for replica in replicas for one in replica.asked]
    assert not [name for name, _ in asked.headers if name.startswith("x-envoy")]


@behaviour("answers keep their headers", broken_by=faults.names_itself_server)
def test_answers_keep_their_headers(plane: Plane) -> None:
    (replica,) = plane.pool(1)

    async def answer(_replica: Replica, exchange: Exchange) -> None:
        await exchange.answer(
            200, gzip.compress(b"zip"),
            {"server": "uvicorn", "content-encoding": "gzip", "x-odd": "1", "keep-alive": "timeout=5"},
        )  # fmt: skip

    replica.answer = answer
    reply = plane.ask("GET", "/v1/models")
    assert gzip.decompress(reply.body) == b"zip"
    assert reply.headers["server"] == "uvicorn"
    assert reply.headers["x-odd"] == "1"
    assert reply.headers["content-encoding"] == "gzip"
    assert not [name for name in reply.headers if name.startswith("x-envoy")]


@behaviour("a request keeps its id", broken_by=faults.makes_its_own_ids)
@behaviour("a request without an id gets one", broken_by=faults.makes_no_ids, raises=(KeyError,))
def test_a_request_has_one_id_from_end_to_end(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    ours = "11111111-2222-4333-8444-555555555555"
    for given in (ours, "not a uuid"):
        reply = plane.ask("GET", "/v1/models", headers={"x-request-id": given})
        assert reply.headers["x-request-id"] == given
        assert replica.asked[-1].header("x-request-id") == given
    made = plane.ask("GET", "/v1/models").headers["x-request-id"]
    assert len(made) == 36
    assert replica.asked[-1].header("x-request-id") == made
    assert plane.ask("GET", "/v1/models").headers["x-request-id"] != made


@behaviour("a body in chunks passes", broken_by=faults.needs_a_length)
def test_chunked_bodies_pass(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            b'9\r\n{"prompt"\r\n'
        )
        connection.sendall(b'6;ext=1\r\n: "x"}\r\n0\r\n\r\n')
        assert b"200 OK" in read_until(connection, b"}")
    assert replica.asked[0].body == b'{"prompt": "x"}'


@behaviour("who waits for 100 gets it", broken_by=faults.passes_100_continue)
def test_who_waits_for_100_continue_gets_it(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    with plane.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        assert b"100 Continue" in read_until(connection, b"\r\n\r\n")
        connection.sendall(b'{"prompt":"x"}')
        assert b"200 OK" in read_until(connection, b"}")
    assert replica.asked[0].body == b'{"prompt":"x"}'


@behaviour("requests may be sent before the last answer", broken_by=faults.closes_after_one)
def test_two_requests_sent_at_once_are_answered_in_order(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    one = b"GET /v1/one HTTP/1.1\r\nhost: a\r\n\r\n"
    with plane.connect() as connection:
        connection.sendall(one + one.replace(b"one", b"two"))
        until(lambda: len(replica.asked) == 2, "both are asked")
    assert [asked.target for asked in replica.asked] == ["/v1/one", "/v1/two"]


@behaviour("/health is the manager's", broken_by=faults.sends_health_to_replicas)
@behaviour("/health needs no token", broken_by=faults.locks_health, token=TOKEN)
@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_health_is_the_managers_and_open(
    make_plane: Callable[..., Plane], path: str, token: str | None
) -> None:
    plane = make_plane(token=token)
    manager, (replica,) = plane.manager(), plane.pool(1)
    assert plane.ask("GET", f"{path}?verbose=1").id == "manager"
    assert manager.asked[0].target == f"{path}?verbose=1"
    assert replica.asked == []


@behaviour(
    "the pool's own paths are the manager's",
    broken_by=faults.sends_pool_paths_to_replicas, path="/pool/replicas",
)  # fmt: skip
@behaviour("a refit is the manager's", broken_by=faults.sends_refits_to_one)
@pytest.mark.parametrize(
    "path",
    [*config.MANAGER_PATHS, "/pool", "/pool/replicas", "/pool/replicas/a%2Fb?epoch=1",
     "/update_weights", "/update_weights_from_distributed"],
)  # fmt: skip
def test_the_pools_own_paths_are_the_managers(make_plane: Callable[..., Plane], path: str) -> None:
    plane = make_plane(token=TOKEN)
    manager, _ = plane.manager(), plane.pool(1)
    assert plane.ask("POST", path, b"{}").status == 401
    assert manager.asked == []
    assert plane.ask("POST", path, b"{}", {**BEARER, "x-session-id": "s"}).id == "manager"
    assert manager.asked[0].target == path
    assert manager.asked[0].header("authorization") is None


@behaviour("without the token nothing is asked", broken_by=faults.asks_for_no_token)
@behaviour(
    "a word that begins with the token does not do",
    broken_by=faults.takes_what_begins_with_the_token, given=f"Bearer {TOKEN}x",
)  # fmt: skip
@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", TOKEN, f"bearer {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}",
     f"Basic {TOKEN}", f"Bearer x, Bearer {TOKEN}"],
)  # fmt: skip
def test_without_the_token_nothing_is_asked(
    make_plane: Callable[..., Plane], given: str | None
) -> None:
    plane = make_plane(token=TOKEN)
    (replica,) = plane.pool(1)
    headers = {} if given is None else {"authorization": given}
    for method, path, body in [
        ("POST", "/v1/completions", b'{"prompt":"x"}'), ("GET", "/metrics", None),
    ]:  # fmt: skip
        reply = plane.ask(method, path, body, headers)
        assert reply.status == 401
        assert "bearer token" in json.loads(reply.body)["error"]["message"]
    assert replica.asked == []


@behaviour("the token goes no further", broken_by=faults.passes_the_token)
def test_the_token_lets_in_and_goes_no_further(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(token=TOKEN)
    (replica,) = plane.pool(1)
    for method, path, body in [
        ("POST", "/v1/completions", b'{"prompt":"x"}'), ("POST", "/v1/embeddings", b"{}"),
        ("GET", "/metrics", None),
    ]:  # fmt: skip
        for session in ({}, {"x-session-id": "s"}):
            assert plane.ask(method, path, body, {**BEARER, **session}).status == 200
    assert len(replica.asked) == 6
    assert not any(TOKEN.encode() in asked.head for asked in replica.asked)


@behaviour("the token is in private files only", broken_by=faults.writes_for_everybody)
def test_the_token_is_only_in_files_that_are_private(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(token=TOKEN)
    assert not any(TOKEN in word for word in process.command(plane.run_dir, plane.settings))
    assert oct(plane.run_dir.stat().st_mode & 0o777) == "0o700"
    holders = [
        path for path in plane.run_dir.iterdir() if path.is_file() and TOKEN in path.read_text()
    ]
    assert holders
    assert {oct(path.stat().st_mode & 0o777) for path in holders} == {"0o600"}
