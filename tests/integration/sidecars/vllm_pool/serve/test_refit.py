"""New weights for all replicas with one call."""

from __future__ import annotations

import json

from support.pool_plane import until
from support.pool_serve import Balancer, engine_of


def test_a_call_goes_to_all_as_it_is_and_gives_one_answer(balancer: Balancer) -> None:
    replicas = balancer.engines(3)
    for number, replica in enumerate(replicas):
        engine_of(replica).refits["collective_rpc"] = (200, {"rank": number})
    body = b'{"method":  "x", "odd": [1.0e3]}'
    reply = balancer.ask("POST", "/collective_rpc?a=1&b=%2F", body, {"content-type": "a/b"})
    assert reply.status == 200
    said = json.loads(reply.body)
    assert said["ok"] is True
    assert {name: each["body"]["rank"] for name, each in said["replicas"].items()} == {
        "b0": 0, "b1": 1, "b2": 2,
    }  # fmt: skip
    for replica in replicas:
        (asked,) = [each for each in replica.asked if each.target.startswith("/collective_rpc")]
        assert asked.target == "/collective_rpc?a=1&b=%2F"
        assert (asked.body, asked.header("content-type")) == (body, "a/b")
        assert asked.header("authorization") is None


def test_one_that_failed_is_out_until_a_refit_succeeds_on_it(balancer: Balancer) -> None:
    fails, well = balancer.engines(2)
    engine_of(fails).refits["update_weights"] = (500, {"error": "no memory"})
    body = json.dumps({"weight_version": "v1"}).encode()
    reply = balancer.ask("POST", "/update_weights", body)
    assert reply.status == 502
    said = json.loads(reply.body)
    assert said["ok"] is False
    assert said["replicas"][fails.id]["body"] == {"error": "no memory"}
    balancer.settled(**{fails.id: "unhealthy", well.id: "ready"})
    assert balancer.row(fails.id)["reasons"] == ["refit-failed"]
    versions = {each["id"]: each["weight_version"] for each in balancer.health()["backends"]}
    assert versions == {fails.id: None, well.id: "v1"}
    assert {balancer.ask("GET", "/v1/x").id for _ in range(10)} == {well.id}
    engine_of(fails).refits.clear()
    assert balancer.ask("POST", "/update_weights", body).status == 200
    balancer.settled(**{fails.id: "ready"})
    assert balancer.row(fails.id)["weight_version"] == "v1"


def test_a_refusal_by_all_changes_nothing(balancer: Balancer) -> None:
    replicas = balancer.engines(2)
    for replica in replicas:
        engine_of(replica).refits["update_weights"] = (400, {"error": "no such tensor"})
    assert balancer.ask("POST", "/update_weights", b"{}").status == 502
    assert balancer.states() == {"b0": "ready", "b1": "ready"}


def test_one_launched_after_a_refit_waits_unless_it_has_the_weights(balancer: Balancer) -> None:
    balancer.engines(1)
    balancer.ask("POST", "/update_weights", b'{"weight_version": "v5"}')
    behind, equal = balancer.engine("behind"), balancer.engine("equal")
    balancer.register(behind)
    balancer.register(equal, weight_version="v5")
    balancer.settled(equal="ready", behind="unhealthy")
    until(lambda: balancer.row("behind")["reasons"] == ["weights-behind"], "it is told why")
    balancer.ask("POST", "/update_weights", b'{"weight_version": "v6"}')
    balancer.settled(behind="ready", equal="ready")


def test_who_was_paused_is_not_taken_for_hung(balancer: Balancer) -> None:
    paused, other = balancer.engines(2)
    assert balancer.ask("POST", "/pause", b"").status == 200
    for replica in (paused, other):
        engine_of(replica).hung = True
    before = engine_of(paused).canaries
    looks = len([each for each in paused.asked if each.target == "/health"])
    until(
        lambda: len([a for a in paused.asked if a.target == "/health"]) > looks + 12,
        "some time has passed",
    )
    assert set(balancer.states().values()) == {"ready"}
    assert balancer.row(paused.id)["halted"] == ["pause"]
    # One may have been on its way when the pause came.
    assert engine_of(paused).canaries <= before + 1
    for replica in (paused, other):
        engine_of(replica).hung = False
    balancer.ask("POST", "/resume", b"")
    until(lambda: engine_of(paused).canaries > before + 2, "canaries are sent again")
    assert set(balancer.states().values()) == {"ready"}


def test_each_gets_its_own_place_in_a_group(balancer: Balancer) -> None:
    replicas = balancer.engines(2)
    body = {"world_size": 3, "rank_offset": {"b0": 1, "b1": 2}}
    reply = balancer.ask("POST", "/init_weights_update_group", json.dumps(body).encode())
    assert reply.status == 200
    for number, replica in enumerate(replicas):
        (asked,) = [a for a in replica.asked if a.target == "/init_weights_update_group"]
        assert json.loads(asked.body) == {"world_size": 3, "rank_offset": number + 1}
    reply = balancer.ask("POST", "/init_weights_update_group", b'{"rank_offset": {"b0": 1}}')
    assert reply.status == 400
    assert "b1" in json.loads(reply.body)["error"]


def test_without_anybody_a_refit_fails(balancer: Balancer) -> None:
    reply = balancer.ask("POST", "/update_weights", b"{}")
    assert reply.status == 503
    assert json.loads(reply.body)["error"] == "no replica to ask"
