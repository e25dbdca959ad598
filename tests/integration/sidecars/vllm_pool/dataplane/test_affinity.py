"""Which replica a request goes to: a session, a conversation and a prompt keep theirs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import pool_faults as faults
from support.pool_behaviours import behaviour
from support.pool_plane import Exchange, Plane, Replica, friendly, until

SYSTEM = {"role": "system", "content": 'You judge "answers" [strictly], {never} kindly.\n'}


def conversation(number: int, turns: int) -> list[dict[str, Any]]:
    """Return a conversation that has had so many turns of the assistant."""
    messages: list[dict[str, Any]] = [
        SYSTEM, {"role": "user", "content": f'question {number} \\" ]}} \\\\'},
    ]  # fmt: skip
    for turn in range(turns):
        messages.append({"role": "assistant", "content": f"answer {turn} of {number}"})
        messages.append({"role": "user", "content": f"and then {turn}?"})
    return messages


@behaviour("a session stays", broken_by=faults.forgets_sessions)
def test_a_session_stays_whatever_it_asks(plane: Plane) -> None:
    plane.pool(4)
    for session in range(12):
        headers = {"x-session-id": f"s{session}"}
        went = {plane.chat(conversation(n, n % 3), headers).id for n in range(5)}
        went |= {plane.ask("GET", "/v1/models", headers=headers).id}
        assert len(went) == 1


@behaviour("sessions spread", broken_by=faults.puts_all_on_one)
def test_sessions_spread(plane: Plane) -> None:
    plane.pool(4)
    went = Counter(
        plane.ask("GET", "/v1/models", headers={"x-session-id": f"s{n}"}).id for n in range(200)
    )
    assert len(went) == 4
    assert min(went.values()) >= 20


@behaviour("a growing conversation stays", broken_by=faults.keys_the_whole_conversation)
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "indented"])
@pytest.mark.parametrize("order", ["role first", "content first"])
def test_a_growing_conversation_stays(plane: Plane, indent: int | None, order: str) -> None:
    plane.pool(4)
    for number in range(12):
        went = set()
        for turns in range(4):
            messages = conversation(number, turns)
            if order == "content first":
                messages = [dict(sorted(message.items())) for message in messages]
            body = json.dumps({"model": "m", "messages": messages, "n": turns}, indent=indent)
            went.add(plane.ask("POST", "/v1/chat/completions", body.encode()).id)
        assert len(went) == 1, number


@behaviour("a conversation of parts stays", broken_by=faults.keys_the_whole_conversation)
def test_a_growing_conversation_of_parts_stays(plane: Plane) -> None:
    plane.pool(4)
    for number in range(12):
        opening: dict[str, Any] = {
            "role": "user",
            "content": [{"type": "text", "text": f"look at {number}"}],
        }
        grown = [opening, {"role": "assistant", "content": "yes"}, opening]
        assert plane.chat([opening]).id == plane.chat(grown, seed=3).id


@behaviour("a quoted assistant ends no key", broken_by=faults.keys_up_to_the_word)
def test_the_assistant_that_is_only_spoken_of_ends_no_key(plane: Plane) -> None:
    plane.pool(4)
    quoted = [
        plane.chat([{"role": "user", "content": f'he wrote {{"role": "assistant"}} {n}'}]).id
        for n in range(40)
    ]
    assert len(set(quoted)) == 4


@behaviour("a seed does not matter", broken_by=faults.keys_the_whole_body)
def test_fields_beside_the_messages_do_not_matter(plane: Plane) -> None:
    plane.pool(4)
    for number in range(12):
        messages = conversation(number, 0)
        went = {plane.chat(messages, seed=seed, user="x" * seed).id for seed in (1, 22, 333)}
        assert len(went) == 1


@behaviour("distinct prompts spread", broken_by=faults.keys_the_first_bytes)
@behaviour("distinct prompts of 2 kB spread", broken_by=faults.keys_the_first_bytes, size=2_000)
@pytest.mark.parametrize("size", [20, 2_000, 6_000])
def test_distinct_prompts_spread(plane: Plane, size: int) -> None:
    plane.pool(4)
    went = Counter(
        plane.chat([SYSTEM, {"role": "user", "content": "x" * size + str(number)}]).id
        for number in range(120)
    )
    assert len(went) == 4
    assert min(went.values()) >= 8


@behaviour("a key has 8 KiB at most", broken_by=faults.keys_without_end)
def test_long_conversations_keep_to_their_first_8_kib(plane: Plane) -> None:
    plane.pool(4)
    for number in range(8):
        long = [{"role": "user", "content": f"{number}" + "y" * 30_000}]
        went = {plane.chat(long, seed=seed).id for seed in (1, 22, 333)}
        went.add(plane.chat([{"role": "user", "content": long[0]["content"] + "z"}]).id)
        assert len(went) == 1


@behaviour("a prompt is a key", broken_by=faults.keys_no_prompt)
@pytest.mark.parametrize("prompt", ["text {}", ["text {}", "more"], [1, 2, "{}"]], ids=type)
def test_a_prompt_is_the_key_of_a_completion(plane: Plane, prompt: Any) -> None:
    plane.pool(4)
    everywhere = set()
    for number in range(30):
        text = (
            json.dumps(prompt)
            .replace("{}", str(number))
            .replace('"' + str(number) + '"', str(number))
        )
        went = {
            plane.ask(
                "POST", "/v1/completions", f'{{"seed": {seed}, "prompt": {text}}}'.encode()
            ).id
            for seed in (1, 22)
        }
        assert len(went) == 1
        everywhere |= went
    assert len(everywhere) == 4


@behaviour("who moves keeps its keys", broken_by=faults.places_by_address)
def test_a_replica_on_another_address_keeps_its_keys(plane: Plane) -> None:
    replicas = plane.pool(4)
    before = [plane.chat(conversation(n, 0)).id for n in range(40)]
    moved = plane.replica("b2")
    plane.members([*replicas[:2], moved, replicas[3]])
    assert [plane.chat(conversation(n, 0)).id for n in range(40)] == before
    assert moved.asked


@behaviour("a new replica takes its share only", broken_by=faults.shares_by_chance)
def test_a_new_replica_takes_its_share_and_moves_few_others(plane: Plane) -> None:
    replicas = plane.pool(3)
    before = [plane.chat(conversation(n, 0)).id for n in range(200)]
    plane.members([*replicas, plane.replica("b3")])
    after = [plane.chat(conversation(n, 0)).id for n in range(200)]
    to_new = after.count("b3")
    elsewhere = sum(was != now != "b3" for was, now in zip(before, after, strict=True))
    assert 20 <= to_new <= 90
    assert elsewhere <= 10


@behaviour("two balancers agree", broken_by=faults.places_at_random)
def test_two_balancers_agree(plane: Plane, make_plane: Any) -> None:
    replicas = plane.pool(4)
    other = make_plane()
    other.members(reversed(replicas))
    for number in range(40):
        assert plane.chat(conversation(number, 0)).id == other.chat(conversation(number, 1)).id


@behaviour("a hot prompt spills", broken_by=faults.never_spills)
def test_a_hot_prompt_spills(plane: Plane) -> None:
    replicas = plane.pool(3)
    release = asyncio.Event()

    async def slow(replica: Replica, exchange: Exchange) -> None:
        await release.wait()
        await friendly(replica, exchange)

    for replica in replicas:
        replica.answer = slow
    with ThreadPoolExecutor(60) as clients:
        replies = []
        # Envoy counts a request when it has a connection: of a burst on none, all see an idle
        # favourite.
        for wave in range(5, 61, 5):
            replies += [clients.submit(plane.chat, conversation(1, 0)) for _ in range(5)]
            until(lambda: sum(replica.active for replica in replicas) == wave, "all are asked")  # noqa: B023
        held = [replica.active for replica in replicas]
        plane.loop.call_soon_threadsafe(release.set)
        assert all(reply.result(60).status == 200 for reply in replies)
    # One and a half times the fair share of 20, rounded up, and the last five at once.
    assert max(held) <= 36


@behaviour("who has no key goes where least is under way", broken_by=faults.takes_turns)
def test_requests_without_a_key_go_where_least_is_under_way(plane: Plane) -> None:
    replicas = plane.pool(3)
    release = asyncio.Event()

    async def slow(replica: Replica, exchange: Exchange) -> None:
        await release.wait()
        await friendly(replica, exchange)

    replicas[0].answer = slow
    with ThreadPoolExecutor(4) as clients:
        for number in range(40):
            clients.submit(plane.ask, "POST", "/v1/embeddings", f'{{"input": "{number}"}}'.encode())
        try:
            until(lambda: sum(len(r.asked) for r in replicas) >= 40, "all but the slow answer")
            asked = [len(replica.asked) for replica in replicas]
        finally:
            plane.loop.call_soon_threadsafe(release.set)
    assert asked[0] <= 4
    assert min(asked[1:]) >= 10


@behaviour("a key is not passed on", broken_by=faults.shows_its_key)
def test_the_key_is_neither_forged_nor_passed_on(plane: Plane) -> None:
    (replica,) = plane.pool(1)
    plane.chat(conversation(1, 0), {"x-session-id": "mine"})
    plane.chat(conversation(1, 0))
    plane.ask("POST", "/v1/embeddings", b'{"input": "x"}')
    for asked in replica.asked:
        assert b"pool-key" not in asked.head
        assert b"pool-no-key" not in asked.head
    assert replica.asked[0].header("x-session-id") == "mine"
    for name in (b":pool-key", b":pool-no-key"):
        said = plane.raw(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n" + name + b": x\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
    assert len(replica.asked) == 3
