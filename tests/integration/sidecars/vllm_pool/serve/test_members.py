"""Who is a member, by the API and by a file; how they come and go under requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.pool_plane import SOON, Exchange, Replica, until
from support.pool_serve import Balancer, engine_of


def ids(balancer: Balancer, count: int = 20) -> set[str]:
    """Return which replicas answer requests that have no key."""
    return {balancer.ask("GET", "/v1/anything").id for _ in range(count)}


def test_a_replica_registers_and_serves(balancer: Balancer) -> None:
    replica = balancer.engine("judge-0")
    reply = balancer.register(replica, epoch=3, lease_seconds=30, weight_version="v0")
    assert reply.status == 200
    assert json.loads(reply.body)["state"] in ("joining", "ready")
    balancer.settled(judge_0="ready")
    assert ids(balancer) == {"judge-0"}
    row = balancer.row("judge-0")
    assert (row["epoch"], row["weight_version"], row["source"]) == (3, "v0", "api")


def test_before_anybody_is_there_requests_fail_at_once_and_the_pool_says_why(
    balancer: Balancer,
) -> None:
    assert balancer.ask("GET", "/v1/models").status == 503
    assert balancer.ask("GET", "/health").status == 503
    reply = balancer.ask("GET", "/ready")
    assert reply.status == 503
    assert json.loads(reply.body)["reasons"] == ["0 in rotation, 1 needed"]


def test_one_that_says_that_it_is_not_ready_is_not_asked(balancer: Balancer) -> None:
    balancer.engines(1)
    replica = balancer.engine("later")
    balancer.register(replica, ready=False)
    until(lambda: balancer.row("later")["reasons"] == ["not-ready"], "it is known as not ready")
    balancer.register(replica, ready=True)
    balancer.settled(later="ready")


def test_a_relaunch_elsewhere_replaces_the_launch_before(balancer: Balancer) -> None:
    old, new = balancer.engine("a"), balancer.engine("a")
    balancer.register(old, epoch=1)
    balancer.settled(a="ready")
    balancer.register(new, epoch=2)
    balancer.settled(a="ready")
    before = len(old.asked)
    assert ids(balancer) == {"a"}
    assert len([each for each in old.asked[before:] if each.target == "/v1/anything"]) == 0


def test_words_of_an_older_launch_are_refused_with_the_epoch_that_is_known(
    balancer: Balancer,
) -> None:
    replica, other = balancer.engine("a"), balancer.engine("a")
    balancer.register(replica, epoch=5)
    for fields in ({"epoch": 4}, {"epoch": 5}):
        reply = balancer.register(other, **fields)
        assert reply.status == 409
        assert json.loads(reply.body)["epoch"] == 5
    reply = balancer.ask("DELETE", "/pool/replicas/a?epoch=4")
    assert (reply.status, json.loads(reply.body)["epoch"]) == (409, 5)


def test_all_that_is_wrong_with_a_registration_is_told_at_once(balancer: Balancer) -> None:
    body = {
        "url": "ftp://x", "epoch": -1, "lease_seconds": 0, "ready": "yes", "weight_version": 3,
        "colour": "red",
    }  # fmt: skip
    reply = balancer.put("-", body)
    assert reply.status == 400
    reasons = json.loads(reply.body)["reasons"]
    for word in ("'-' is no id", "url:", "epoch:", "lease_seconds:", "ready:", "weight_version:",
                 "colour:"):  # fmt: skip
        assert any(word in reason for reason in reasons), word
    assert balancer.states() == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
def test_a_registration_that_is_no_object_is_refused(balancer: Balancer, body: bytes) -> None:
    assert balancer.ask("PUT", "/pool/replicas/a", body).status == 400


def test_a_replica_that_nobody_knows_is_not_found(balancer: Balancer) -> None:
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("POST", "/drain"), ("POST", "/undrain"),
    ):  # fmt: skip
        reply = balancer.ask(method, f"/pool/replicas/nobody{path}")
        assert reply.status == 404, (method, path)
        assert "nobody" in json.loads(reply.body)["error"]["message"]
    assert balancer.ask("GET", "/pool/nothing").status == 404
    assert balancer.ask("PATCH", "/pool/replicas/a").status in (404, 405)


def test_a_lease_that_is_not_renewed_takes_one_out(balancer: Balancer) -> None:
    balancer.engines(1)
    short = balancer.engine("short")
    balancer.register(short, lease_seconds=1.5)
    # The other's lease makes it plain that silence is the replica's, not everybody's.
    balancer.register(balancer.engine("long"), lease_seconds=60)
    balancer.settled(short="ready", long="ready")
    balancer.settled(short="lost")
    assert "short" not in ids(balancer)
    balancer.register(short, lease_seconds=60)
    balancer.settled(short="ready")


def test_a_drain_ends_when_what_is_under_way_has_ended(balancer: Balancer) -> None:
    release = threading.Event()

    async def long(_replica: Replica, exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.chunk(b"data: 1\n\n")
        await asyncio.to_thread(release.wait, SOON)
        await exchange.chunk(b"data: 2\n\n")
        await exchange.chunk(b"")

    stays, leaves = balancer.engines(2)
    engine_of(leaves).client = long
    engine_of(stays).client = long
    bodies: list[bytes] = []
    clients = [
        threading.Thread(target=lambda: bodies.append(balancer.ask("GET", "/v1/long").body))
        for _ in range(6)
    ]
    for client in clients:
        client.start()
    until(lambda: leaves.active >= 2, "requests are under way at the one that leaves")
    reply = balancer.ask("POST", f"/pool/replicas/{leaves.id}/drain")
    assert json.loads(reply.body)["state"] == "draining"
    until(lambda: balancer.row(leaves.id)["inflight"] == leaves.active, "it is counted")
    assert balancer.row(leaves.id)["state"] == "draining"
    release.set()
    for client in clients:
        client.join()
    assert bodies == [b"data: 1\n\ndata: 2\n\n"] * 6
    balancer.settled(**{leaves.id: "drained"})
    balancer.ask("POST", f"/pool/replicas/{leaves.id}/undrain")
    balancer.settled(**{leaves.id: "ready"})


def test_one_that_was_removed_is_gone(balancer: Balancer) -> None:
    one, other = balancer.engines(2)
    assert balancer.ask("DELETE", f"/pool/replicas/{one.id}").status == 200
    until(lambda: one.id not in balancer.states(), "it is gone")
    until(lambda: ids(balancer) == {other.id}, "only the other one is asked")


def test_members_come_from_a_file(make_balancer: Callable[..., Balancer], tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    balancer = make_balancer(MEMBERS_FILE=str(path))
    one, two = balancer.engine("one"), balancer.engine("two")

    def write(*replicas: Replica) -> None:
        rows = [{"id": r.id, "url": f"http://127.0.0.1:{r.port}"} for r in replicas]
        new = tmp_path / "new"
        new.write_text(json.dumps({"replicas": rows}))
        new.rename(path)

    write(one, two)
    balancer.settled(one="ready", two="ready")
    write(two)
    until(lambda: balancer.states() == {"two": "ready"}, "the file's list is the pool")
    path.unlink()
    until(lambda: balancer.events("members_unreadable"), "that the file is gone is told")
    assert balancer.states() == {"two": "ready"}
