"""The commands for people, against a balancer that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from support.pool_plane import Exchange, Replica, until
from support.pool_serve import Balancer, engine_of, environment


def run(balancer: Balancer, *argv: str, code: int = 0) -> str:
    """Run a command; return what it says."""
    ran = subprocess.run(
        [sys.executable, "-m", "vllm_pool", *argv], capture_output=True, text=True, timeout=60,
        env=environment(URL=f"http://127.0.0.1:{balancer.port}"), check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def as_json(balancer: Balancer, *argv: str, code: int = 0) -> Any:
    """Run a command and read its JSON."""
    return json.loads(run(balancer, *argv, "--output", "json", code=code))


def test_a_replica_is_added_shown_drained_and_removed(balancer: Balancer) -> None:
    replica = balancer.engine("judge-0")
    url = f"http://127.0.0.1:{replica.port}"
    assert as_json(balancer, "status", code=1)["status"] == "unhealthy"
    assert "judge-0: ready" in run(balancer, "add", "judge-0", url, "--wait", "20")
    text = run(balancer, "status")
    assert "healthy: 1 of 1 in rotation" in text
    assert url in text
    assert "\x1b" not in text
    assert as_json(balancer, "canary")["replicas"]["judge-0"]["ok"] is True
    assert "drained, 0 in flight" in run(balancer, "drain", "judge-0", "--wait", "20")
    assert "judge-0" in run(balancer, "undrain", "judge-0")
    assert "gone" in run(balancer, "remove", "judge-0")
    assert as_json(balancer, "status", code=1)["backends"] == []


def test_a_drain_that_is_not_over_in_time_says_what_is_left(balancer: Balancer) -> None:
    (replica,) = balancer.engines(1)

    async def never(_replica: Replica, exchange: Exchange) -> None:
        await exchange.gone()

    engine_of(replica).client = never
    with balancer.connect() as connection:
        connection.sendall(b"GET /v1/x HTTP/1.1\r\nhost: pool\r\n\r\n")
        until(lambda: any(a.target == "/v1/x" for a in replica.asked), "it is under way")
        text = run(balancer, "drain", replica.id, "--wait", "1.5", code=4)
    assert "1 in flight" in text


def test_a_canary_that_fails_is_an_exit_code(balancer: Balancer) -> None:
    (replica,) = balancer.engines(1)
    engine_of(replica).hung = True
    said = as_json(balancer, "canary", replica.id, code=1)
    assert said["replicas"][replica.id]["result"] == "late"


def test_the_balancer_itself_is_drained_and_back(balancer: Balancer) -> None:
    balancer.engines(1)
    run(balancer, "drain", "--all")
    assert balancer.ask("GET", "/ready").status == 503
    assert balancer.ask("GET", "/v1/x").status == 200
    run(balancer, "undrain", "--all")
    assert balancer.ask("GET", "/ready").status == 200


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (("remove", "nobody"), 3, "no replica 'nobody'"),
        (("add", "a", "ftp://x"), 3, "the scheme must be http"),
        (("drain",), 2, "--all"),
        (("drain", "a", "--all"), 2, "not both"),
        (("status", "--url", "nowhere"), 2, "--url='nowhere'"),
        (("status", "--url", "http://127.0.0.1:1"), 3, "no balancer answers"),
        (("nothing",), 2, "no command 'nothing'"),
        ((), 2, "no command was given"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(
    balancer: Balancer, argv: tuple[str, ...], code: int, part: str
) -> None:
    text = run(balancer, *argv, code=code)
    assert part in text
    assert "fix: " in text


@pytest.mark.parametrize(
    "command", ["serve", "replica", "status", "drain", "undrain", "add", "remove", "canary"]
)
def test_every_command_has_help_with_an_example(balancer: Balancer, command: str) -> None:
    text = run(balancer, command, "--help")
    assert f"vllm-pool {command}" in text
    assert "example" in text
    assert "exit codes" in text
