"""The small HTTP server of every sidecar."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from tandem_common.errors import UserError
from tandem_common.serve import Health, HealthServer


class Checks:
    """What the two probes answer; a test changes it."""

    def __init__(self) -> None:
        self.live = Health()
        self.ready = Health()
        self.registry = CollectorRegistry()


@pytest.fixture
def checks() -> Checks:
    return Checks()


@pytest.fixture
def server(checks: Checks) -> Iterator[HealthServer]:
    with HealthServer(
        "127.0.0.1", 0, live=lambda: checks.live, ready=lambda: checks.ready,
        registry=checks.registry,
    ) as running:  # fmt: skip
        yield running


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_readiness_and_liveness_are_asked_at_each_request(
    server: HealthServer, checks: Checks
) -> None:
    assert get(server, "/readyz") == (200, '{"ok": true, "reasons": []}\n')
    checks.ready = Health(("no list yet", "token refused"))
    status, body = get(server, "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"] == ["no list yet", "token refused"]
    assert get(server, "/healthz")[0] == 200


def test_a_check_that_raises_is_not_healthy_and_says_why(checks: Checks) -> None:
    def broken() -> Health:
        raise RuntimeError("no such thing")

    with HealthServer("127.0.0.1", 0, live=broken, registry=checks.registry) as server:
        status, body = get(server, "/healthz")
    assert status == 503
    assert "RuntimeError: no such thing" in body


def test_metrics_are_the_registrys(server: HealthServer, checks: Checks) -> None:
    Counter("pings_total", "Pings", registry=checks.registry).inc(3)
    status, body = get(server, "/metrics")
    assert status == 200
    assert "pings_total 3.0" in body


def test_another_path_is_answered_with_those_there_are(server: HealthServer) -> None:
    status, body = get(server, "/")
    assert status == 404
    assert "/healthz, /readyz, /metrics" in body


def test_a_port_that_is_taken_is_named(server: HealthServer) -> None:
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        HealthServer("127.0.0.1", server.port).start()


def test_after_close_nothing_answers_and_the_port_is_free(checks: Checks) -> None:
    server = HealthServer("127.0.0.1", 0, registry=checks.registry).start()
    port = server.port
    server.close()
    again = HealthServer("127.0.0.1", port, registry=checks.registry).start()
    again.close()
    again.close()
