"""What is asked again of another replica, what is not, and how a request ends at last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import (
    Answer,
    Exchange,
    Plane,
    Replica,
    Reply,
    failing,
    friendly,
    resetting,
)  # fmt: skip

CHAT = [{"role": "user", "content": "the same for all"}]
MIB = 1024 * 1024


async def closing(_replica: Replica, exchange: Exchange) -> None:
    """Close before a byte of the answer."""
    exchange.writer.close()


async def resetting_in_headers(_replica: Replica, exchange: Exchange) -> None:
    """Reset with half of the headers sent."""
    await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-le")
    exchange.reset()


FAILURES: dict[str, Answer] = {
    "500": failing(500), "502": failing(502), "503": failing(503), "504": failing(504),
    "reset": resetting, "closed": closing, "reset in headers": resetting_in_headers,
}  # fmt: skip


def favourite(plane: Plane, replicas: list[Replica]) -> Replica:
    """Return the replica that the test's conversation belongs to."""
    name = plane.chat(CHAT).id
    return next(replica for replica in replicas if replica.id == name)


def asked(replicas: list[Replica]) -> Counter[str]:
    """Return how often each has been asked, and forget it."""
    counts = Counter({replica.id: len(replica.asked) for replica in replicas})
    for replica in replicas:
        replica.asked.clear()
    return counts


@behaviour("500 is asked of another", broken_by=faults.passes_status(500), failure=FAILURES["500"])
@behaviour("502 is asked of another", broken_by=faults.passes_status(502), failure=FAILURES["502"])
@behaviour("503 is asked of another", broken_by=faults.passes_status(503), failure=FAILURES["503"])
@behaviour("504 is asked of another", broken_by=faults.passes_status(504), failure=FAILURES["504"])
@behaviour(
    "a 503 of a stream is asked of another",
    broken_by=faults.never_asks_another, failure=FAILURES["503"], stream=True,
)  # fmt: skip
@behaviour("a reset is asked of another", broken_by=faults.passes_resets, failure=FAILURES["reset"])
@behaviour(
    "a close before the answer is asked of another",
    broken_by=faults.passes_resets, failure=FAILURES["closed"],
)  # fmt: skip
@behaviour(
    "a reset within the headers is asked of another",
    broken_by=faults.passes_resets, failure=FAILURES["reset in headers"],
)  # fmt: skip
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_failure_before_the_answer_is_asked_of_another(
    plane: Plane, failure: Answer, *, stream: bool
) -> None:
    replicas = plane.pool(3)
    sick = favourite(plane, replicas)
    sick.answer = failure
    asked(replicas)
    reply = plane.chat(CHAT, stream=stream)
    assert (reply.status, reply.id != sick.id) == (200, True)
    counts = asked(replicas)
    assert counts[sick.id] == 1
    assert counts.total() == 2


@behaviour("a dead replica is passed over", broken_by=faults.passes_refusals)
def test_a_replica_that_nobody_listens_for_is_passed_over(plane: Plane) -> None:
    replicas = plane.pool(3)
    dead = favourite(plane, replicas)
    plane.wait(dead.close())
    assert all(plane.chat(CHAT).status == 200 for _ in range(10))


@behaviour(
    "a large body is asked again whole",
    broken_by=faults.keeps_small_bodies_only, size=10, session=True,
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10, 50], ids="{} MB".format)
@pytest.mark.parametrize("session", [False, True], ids=["keyed by body", "by session"])
def test_large_bodies_are_asked_again_whole(plane: Plane, size: int, *, session: bool) -> None:
    replicas = plane.pool(3)
    body = json.dumps({"messages": CHAT, "pad": "p" * (size * MIB)}).encode()
    headers = {"x-session-id": "one"} if session else {}
    path = "/v1/chat/completions"
    sick = next(r for r in replicas if r.id == plane.ask("POST", path, body, headers).id)
    sick.answer = failing(503)
    asked(replicas)
    reply = plane.ask("POST", path, body, headers)
    assert (reply.status, reply.id != sick.id) == (200, True)
    seen = [one for replica in replicas for one in replica.asked]
    assert len(seen) == 2
    assert all(one.body == body for one in seen)


@behaviour("no replica is asked twice", broken_by=faults.asks_the_same_again, count=2)
@behaviour("the last error is passed on", broken_by=faults.rewrites_errors, count=1)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_no_replica_is_asked_twice(plane: Plane, count: int) -> None:
    replicas = plane.pool(count)
    for replica in replicas:
        replica.answer = failing(503, b"the last word")
    for number in range(20):
        reply = plane.chat([{"role": "user", "content": f"{number}"}])
        assert (reply.status, reply.body) == (503, b"the last word")
        assert set(asked(replicas).values()) == {1}


@behaviour("four of five may be sick", broken_by=faults.asks_two_at_most)
def test_four_of_five_are_sick(plane: Plane) -> None:
    replicas = plane.pool(5)
    for replica in replicas[:4]:
        replica.answer = failing(500)
    for number in range(40):
        assert plane.chat([{"role": "user", "content": f"{number}"}]).id == "b4"
        assert max(asked(replicas).values()) == 1


@behaviour("no more than five are asked", broken_by=faults.asks_ten)
def test_no_more_than_five_are_asked(plane: Plane) -> None:
    replicas = plane.pool(8)
    for replica in replicas:
        replica.answer = failing(502)
    assert plane.chat(CHAT).status == 502
    assert asked(replicas).total() == 5


@behaviour("400 is said once", broken_by=faults.asks_again_after(400), status=400)
@behaviour("408 is said once", broken_by=faults.asks_again_after(408), status=408)
@behaviour("429 is said once", broken_by=faults.asks_again_after(429), status=429)
@behaviour("a refusal keeps its status", broken_by=faults.rewrites_refusals, status=422)
@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429])
def test_the_clients_fault_is_said_once(plane: Plane, status: int) -> None:
    replicas = plane.pool(3)
    for replica in replicas:
        replica.answer = failing(status, b"your fault")
    reply = plane.chat(CHAT)
    assert (reply.status, reply.body) == (status, b"your fault")
    assert asked(replicas).total() == 1


@behaviour("an empty pool says so in JSON", broken_by=faults.says_plain_text, raises=(KeyError,))
def test_without_a_replica_it_says_so_at_once(plane: Plane) -> None:
    for reply in (plane.chat(CHAT), plane.ask("GET", "/v1/models")):
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["content-type"] == "application/json"
        assert (
            json.loads(reply.body)["error"]["message"] == "no replica of this pool is in rotation"
        )
    plane.pool(1)
    assert plane.chat(CHAT).status == 200


@behaviour("an error says when to come back", broken_by=faults.says_no_time, raises=(KeyError,))
def test_a_replica_that_cannot_be_reached_is_an_error_in_json(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    plane.wait(replica.close())
    reply = plane.chat(CHAT)
    assert reply.status == 503
    assert reply.headers["retry-after"] == "1"
    assert str(plane.run_dir) not in reply.body.decode()
    assert json.loads(reply.body)["error"]["code"] == 503


@behaviour("poison leaves the pool up", broken_by=faults.throws_out_for_5xx)
def test_poison_leaves_the_pool_up(plane: Plane) -> None:
    replicas = plane.pool(3)

    async def poisoned(replica: Replica, exchange: Exchange) -> None:
        if b"poison" in exchange.asked.body:
            await exchange.answer(500, b"boom")
        else:
            await friendly(replica, exchange)

    for replica in replicas:
        replica.answer = poisoned
    for _ in range(15):
        assert plane.chat([{"role": "user", "content": "poison"}]).status == 500
    went = [plane.chat([{"role": "user", "content": f"{n}"}]) for n in range(30)]
    assert [reply.status for reply in went] == [200] * 30
    assert len({reply.id for reply in went}) == 3


@behaviour("one sick replica fails nobody", broken_by=faults.retries_one_at_a_time)
def test_one_sick_replica_under_many_clients_fails_nobody(plane: Plane) -> None:
    replicas = plane.pool(3)
    replicas[0].answer = failing(503)

    def ask(number: int) -> int:
        return plane.chat([{"role": "user", "content": f"{number}"}]).status

    with ThreadPoolExecutor(24) as clients:
        statuses = Counter(clients.map(ask, range(600)))
    assert statuses == {200: 600}
    assert len(replicas[0].asked) > 50


@behaviour(
    "a time to the first byte acts",
    broken_by=faults.waits_for_the_first_byte,
)  # fmt: skip
def test_a_configured_time_to_the_first_byte_asks_another(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(first_byte_seconds=0.3)
    replicas = plane.pool(3)
    hung = favourite(plane, replicas)

    async def silent(_replica: Replica, exchange: Exchange) -> None:
        await exchange.gone()

    hung.answer = silent
    reply: Reply = plane.chat(CHAT)
    assert (reply.status, reply.id != hung.id) == (200, True)
