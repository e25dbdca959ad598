"""The balancer's processes: what it refuses, what survives which death, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from support.pool_plane import SOON, Exchange, Replica, until
from support.pool_serve import Balancer, alive, engine_of, environment


def test_the_manager_killed_the_pool_goes_on_and_its_successor_resets_nothing(
    make_balancer: Callable[..., Balancer],
) -> None:
    balancer = make_balancer()
    leased, _, drained = balancer.engines(3, lease_seconds=60)
    balancer.ask("POST", f"/pool/replicas/{drained.id}/drain")
    balancer.settled(**{drained.id: "drained"})
    before = (balancer.run_dir / "eds.json").read_bytes()
    version = balancer.row(leased.id)["epoch"]
    pid = balancer.child("manager")
    os.kill(pid, signal.SIGSTOP)
    # Without any manager, requests are served.
    assert {balancer.ask("GET", "/v1/x").status for _ in range(5)} == {200}
    os.kill(pid, signal.SIGKILL)
    assert {balancer.ask("GET", "/v1/x").status for _ in range(20)} == {200}
    until(lambda: balancer.child("manager") != pid, "another manager was started")
    # Who asks the manager meanwhile waits for the new one.
    until(lambda: balancer.ask("GET", "/health").status == 200, "the new manager answers")
    balancer.settled(**{drained.id: "drained", leased.id: "ready"})
    assert (balancer.run_dir / "eds.json").read_bytes() == before
    assert balancer.row(leased.id)["epoch"] == version
    assert [each["child"] for each in balancer.events("child_ended")] == ["manager"]


def test_envoy_killed_another_serves_the_same_members(
    make_balancer: Callable[..., Balancer],
) -> None:
    balancer = make_balancer()
    balancer.engines(2)
    pid = balancer.child("envoy")
    os.kill(pid, signal.SIGKILL)

    def served() -> bool:
        try:
            return balancer.ask("GET", "/v1/x").status == 200
        except (OSError, http.client.HTTPException):
            return False

    until(served, "requests are served again")
    assert balancer.child("envoy") != pid
    assert set(balancer.states().values()) == {"ready"}


def test_the_supervisor_killed_both_children_end(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer()
    children = [balancer.child("envoy"), balancer.child("manager")]
    assert all(map(alive, children))
    balancer.stop()
    assert not any(map(alive, children))


def test_at_the_end_what_is_under_way_is_finished(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer(DRAIN_SECONDS="60")
    (replica,) = balancer.engines(1)
    release = threading.Event()

    async def long(_replica: Replica, exchange: Exchange) -> None:
        await asyncio.to_thread(release.wait, SOON)
        await exchange.answer(200, b"whole")

    engine_of(replica).client = long
    bodies: list[bytes] = []
    client = threading.Thread(target=lambda: bodies.append(balancer.ask("GET", "/v1/x").body))
    client.start()
    until(lambda: replica.active >= 1 and any(a.target == "/v1/x" for a in replica.asked), "begun")
    assert balancer.process is not None
    balancer.process.send_signal(signal.SIGTERM)
    until(lambda: balancer.ask("GET", "/ready").status == 503, "it is not ready any more")
    assert "balancer-draining" in json.loads(balancer.ask("GET", "/ready").body)["reasons"]
    release.set()
    client.join(SOON)
    assert bodies == [b"whole"]
    assert balancer.process.wait(SOON) == 0
    assert [each["active"] for each in balancer.events("drained")] == [0]


def test_asked_twice_it_ends_at_once(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer(DRAIN_SECONDS="600")
    (replica,) = balancer.engines(1)

    async def never(_replica: Replica, exchange: Exchange) -> None:
        await exchange.gone()

    engine_of(replica).client = never
    with balancer.connect() as connection:
        connection.sendall(b"GET /v1/x HTTP/1.1\r\nhost: pool\r\n\r\n")
        until(lambda: any(a.target == "/v1/x" for a in replica.asked), "it is under way")
        assert balancer.process is not None
        balancer.process.send_signal(signal.SIGTERM)
        until(lambda: balancer.events("end_asked"), "the end was asked for")
        assert balancer.end(signal.SIGTERM) == 0
    assert balancer.events("drain_cut_short")


def test_a_new_one_in_the_same_folder_begins_with_the_members_and_without_the_drain(
    make_balancer: Callable[..., Balancer],
) -> None:
    balancer = make_balancer()
    balancer.engines(2)
    assert balancer.end() == 0
    (balancer.run_dir / "serve.log").unlink()
    balancer.start()
    assert set(balancer.states().values()) == {"ready"}
    assert balancer.health()["draining"] is False


def test_all_but_health_and_ready_need_the_token(
    make_balancer: Callable[..., Balancer], tmp_path: Path
) -> None:
    path, token = tmp_path / "token", "secret-word"
    path.write_text(f"{token}\n")
    balancer = make_balancer(TOKEN_FILE=str(path))
    assert balancer.ask("GET", "/health").status == 503
    for method, target in (
        ("GET", "/pool/replicas"), ("PUT", "/pool/replicas/a"), ("POST", "/pause"),
        ("POST", "/pool/drain"), ("GET", "/v1/models"),
    ):  # fmt: skip
        assert balancer.ask(method, target).status == 401, target
    bearer = {"authorization": f"Bearer {token}"}
    assert balancer.ask("GET", "/pool/replicas", headers=bearer).status == 200
    assert token not in balancer.log()
    for pid in (balancer.child("envoy"), balancer.child("manager")):
        assert token not in Path(f"/proc/{pid}/cmdline").read_text()
        assert token not in Path(f"/proc/{pid}/environ").read_text()


def serve(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run a balancer that is expected to refuse."""
    return subprocess.run(
        [sys.executable, "-m", "vllm_pool", "serve"], capture_output=True, text=True, timeout=60,
        env=environment(**variables), check=False,
    )  # fmt: skip


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = serve(LISTEN_HOST="127.0.0.1", LISTEN_PORT=port, RUN_DIR=str(tmp_path / "run"))
    assert ran.returncode == 3
    assert f"127.0.0.1:{port} is taken" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_metrics_port_that_is_taken_ends_it_with_the_reason(
    make_balancer: Callable[..., Balancer],
) -> None:
    balancer = make_balancer(enter=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        balancer.metrics_port = int(taken.getsockname()[1])
        balancer.port = balancer.free_port()
        balancer.launch()
        assert balancer.process is not None
        assert balancer.process.wait(60) == 3
    assert f"cannot listen on 127.0.0.1:{balancer.metrics_port}" in balancer.log()


def test_a_folder_of_another_balancer_is_refused(make_balancer: Callable[..., Balancer]) -> None:
    balancer = make_balancer()
    ran = serve(
        LISTEN_HOST="127.0.0.1", LISTEN_PORT=str(balancer.free_port()),
        RUN_DIR=str(balancer.run_dir),
    )  # fmt: skip
    assert ran.returncode == 3
    assert "a balancer that runs" in ran.stderr
    assert balancer.ask("GET", "/health").status == 503


def test_wrong_settings_are_told_all_at_once() -> None:
    ran = serve(LISTEN_PORT="x", MIN_READY="-1", NO_SUCH="1")
    assert ran.returncode == 2
    for part in ("VLLM_POOL_LISTEN_PORT='x'", "VLLM_POOL_MIN_READY='-1'", "VLLM_POOL_NO_SUCH"):
        assert part in ran.stderr
