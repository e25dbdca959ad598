"""The tools that the load is made with: what they must see, and what they must not make up."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from support.pool_fleet import Fleet, loads
from support.pool_plane import until

PATH = "/v1/chat/completions"


def ask(port: int, path: str, body: object = None) -> tuple[int, str]:
    """Ask a replica itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body)
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metric(port: int, name: str) -> float:
    """Return one of a replica's metrics."""
    _, text = ask(port, "/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
    return float(line.rpartition(" ")[2])


def driven(port: int, *words: str) -> Mapping[str, Any]:
    """Let four clients ask for a moment."""
    with loads(port, clients=4, seconds=0.3, words=words) as load:
        return load.result()


def test_a_token_counts_when_it_is_generated(fleet: Fleet) -> None:
    port = fleet.ports["r0"]
    fleet.behave("r0", first_ms=1, token_ms=20)
    chat = {"messages": [], "max_tokens": 100_000}

    def client() -> None:
        with pytest.raises(ConnectionError):
            ask(port, PATH, chat)

    asking = threading.Thread(target=client)
    asking.start()
    until(lambda: metric(port, "num_requests_running") == 1, "it runs")
    early = metric(port, "generation_tokens_total")
    assert early < 1000
    until(lambda: metric(port, "generation_tokens_total") > early + 2, "tokens are generated")
    fleet.behave("r0", hang=True)
    # One may be on its way already.
    threading.Event().wait(0.1)
    last = metric(port, "generation_tokens_total")
    threading.Event().wait(0.2)
    assert metric(port, "generation_tokens_total") == last
    assert ask(port, "/health")[0] == 200
    fleet.kill("r0")
    asking.join(20)


def test_a_client_that_goes_is_seen(fleet: Fleet) -> None:
    fleet.behave("r0", hang=True)
    connection = http.client.HTTPConnection("127.0.0.1", fleet.ports["r0"], timeout=20)
    connection.request("POST", PATH, json.dumps({"messages": []}))
    until(lambda: fleet.seen("r0")["requests"]["in_flight"] == 1, "it is asked")
    connection.close()
    until(lambda: fleet.seen("r0")["requests"]["cancelled"], "it sees it")


def test_a_dead_replica_refuses_and_comes_back_elsewhere(fleet: Fleet) -> None:
    before = fleet.ports["r0"]
    fleet.behave("r0", status=500)
    fleet.kill("r0")
    with pytest.raises(ConnectionRefusedError):
        ask(before, "/health")
    assert ask(fleet.relaunch("r0").port, PATH, {"messages": []})[0] == 200


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_answers_that_are_whole_are_no_errors(fleet: Fleet, *, stream: bool) -> None:
    words = ["--stream", "--tokens", "7"] if stream else []
    said = driven(fleet.ports["r0"], *words)
    assert said["errors"] == {}
    asked = fleet.seen("r0")["requests"]
    assert asked["cancelled"] == []
    # One more may have been answered after the time.
    assert 0 < said["requests"] <= asked["count"] <= said["requests"] + 4
    events = said["events_per_second"] * said["seconds"]
    assert events == (pytest.approx(said["requests"] * 8, abs=64) if stream else 0)


@pytest.mark.parametrize(
    ("how", "words", "kind"),
    [
        ({"status": 503}, [], "status 503"),
        ({"everywhere": 503}, [], "status 503"),
        ({"poison": "lorem"}, [], "status 500"),
        ({"reset": True}, [], "before the answer: connection reset by peer"),
        ({"cut_after": 1}, [], "cut in the body: connection reset by peer"),
        ({"cut_after": 3}, ["--stream"], "cut in the body: connection reset by peer"),
        ({"cut_after": 3, "cut_by_fin": True}, ["--stream"], "cut in the body: closed"),
        ({"hang": True}, ["--timeout", "0.2"], "timeout"),
    ],
)
def test_every_kind_of_failure_is_counted(
    fleet: Fleet, how: Mapping[str, Any], words: list[str], kind: str
) -> None:
    fleet.behave("r0", **how)
    # Whether a client waits in vain is looked at once a second.
    seconds = 1.5 if kind == "timeout" else 0.3
    words = ["--tokens", "5", *words]
    with loads(fleet.ports["r0"], clients=4, seconds=seconds, words=words) as load:
        said = load.result()
    assert said["requests"] == 0
    assert set(said["errors"]) == {kind}


def test_a_body_has_the_size_that_was_asked_for(fleet: Fleet) -> None:
    for size in (1000, 32_000, 2_000_000):
        fleet.behave("r0", remember=True)
        assert driven(fleet.ports["r0"], "--bytes", str(size))["errors"] == {}
        assert fleet.seen("r0")["requests"]["last_bytes"] == size


def test_a_pause_holds_what_comes_and_a_refit_is_noted(fleet: Fleet) -> None:
    port = fleet.ports["r0"]
    assert json.loads(ask(port, "/pause?mode=wait", {})[1])["is_paused"] is True
    assert driven(port, "--timeout", "0.1")["requests"] == 0
    assert ask(port, "/resume", {})[0] == 200
    assert driven(port)["errors"] == {}
    assert fleet.seen("r0")["requests"]["refit"] == ["/pause?mode=wait", "/resume"]
    fleet.behave("r0", refit_status=500)
    assert ask(port, "/update_weights_from_disk", {})[0] == 500
