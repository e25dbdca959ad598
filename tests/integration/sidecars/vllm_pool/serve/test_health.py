"""Which replicas are in rotation: /health, the canary, and what clients get meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from support.pool_plane import Exchange, Replica, failing, until
from support.pool_serve import Balancer, engine_of


def test_a_hung_engine_is_taken_out_although_its_health_is_well(balancer: Balancer) -> None:
    hung, well = balancer.engines(2)
    engine_of(hung).hung = True
    balancer.settled(**{hung.id: "unhealthy", well.id: "ready"})
    assert "canary-late" in balancer.row(hung.id)["reasons"][0]
    assert {balancer.ask("GET", "/v1/x").id for _ in range(10)} == {well.id}
    engine_of(hung).hung = False
    balancer.settled(**{hung.id: "ready"})


def test_a_burst_that_slows_a_working_one_does_not_take_it_out(balancer: Balancer) -> None:
    busy, _ = balancer.engines(2)
    engine = engine_of(busy)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.01):
            engine.tokens += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        # Canaries have to wait much longer than they may.
        engine.slow = 3.0
        began = engine.canaries
        until(lambda: engine.canaries >= began + 4, "four canaries were sent")
        assert balancer.row(busy.id)["state"] == "ready"
        until(lambda: balancer.events("late_but_working"), "that it works is told")
    finally:
        stop.set()
        worker.join()
    balancer.settled(**{busy.id: "unhealthy"})


def test_one_whose_health_fails_is_taken_out_and_comes_back(balancer: Balancer) -> None:
    sick, well = balancer.engines(2)
    engine_of(sick).healthy = False
    balancer.settled(**{sick.id: "unhealthy", well.id: "ready"})
    assert balancer.health()["status"] == "degraded"
    engine_of(sick).healthy = True
    balancer.settled(**{sick.id: "ready"})
    assert balancer.health()["status"] == "healthy"


def test_one_that_is_killed_is_out_and_nobody_notices(balancer: Balancer) -> None:
    dead, well = balancer.engines(2)
    balancer.wait(dead.close())
    for _ in range(20):
        assert balancer.ask("GET", "/v1/x").id == well.id
    balancer.settled(**{dead.id: "unhealthy"})


def test_answers_of_5xx_to_clients_take_nobody_out(balancer: Balancer) -> None:
    replicas = balancer.engines(3)
    for replica in replicas:
        engine_of(replica).client = failing(500)
    for _ in range(15):
        assert balancer.ask("POST", "/v1/chat/completions", b'{"poison": true}').status == 500
    before = [engine_of(replica).canaries for replica in replicas]
    until(
        lambda: all(
            engine_of(replica).canaries > count + 3
            for replica, count in zip(replicas, before, strict=True)
        ),
        "canaries were sent after it",
    )
    assert set(balancer.states().values()) == {"ready"}


def test_one_that_came_back_gets_its_share_in_steps(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer(SLOW_START_SECONDS="600")
    sick, _ = balancer.engines(2)
    engine_of(sick).healthy = False
    balancer.settled(**{sick.id: "unhealthy"})
    engine_of(sick).healthy = True
    until(lambda: balancer.states()[sick.id] == "slow-start", "it starts slowly")
    row = balancer.row(sick.id)
    assert (row["weight"], row["reasons"]) == (10, ["recovered"])


def test_a_pool_below_its_quorum_serves_and_says_that_it_is_not_ready(
    make_balancer: Callable[..., Balancer],
) -> None:
    balancer = make_balancer(MIN_READY="2")
    one, two = balancer.engines(2)
    assert balancer.ask("GET", "/ready").status == 200
    engine_of(one).healthy = False
    balancer.settled(**{one.id: "unhealthy"})
    assert balancer.ask("GET", "/ready").status == 503
    assert balancer.ask("GET", "/health").status == 200
    assert balancer.ask("GET", "/v1/x").id == two.id


def test_without_canaries_health_alone_decides(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer(CANARY="false")
    (replica,) = balancer.engines(1)
    assert engine_of(replica).canaries == 0


async def _never(_replica: Replica, exchange: Exchange) -> None:
    await exchange.gone()
    await asyncio.sleep(0)


def test_a_client_that_leaves_is_counted_as_a_cancellation(balancer: Balancer) -> None:
    (replica,) = balancer.engines(1)
    engine_of(replica).client = _never
    before = balancer.metric("vllm_pool_cancellations_total")
    connection = balancer.connect()
    connection.sendall(b"GET /v1/x HTTP/1.1\r\nhost: pool\r\n\r\n")
    until(lambda: any(asked.target == "/v1/x" for asked in replica.asked), "it is under way")
    connection.close()
    until(lambda: balancer.metric("vllm_pool_cancellations_total") == before + 1, "it is counted")
