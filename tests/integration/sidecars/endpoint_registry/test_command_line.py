"""The command line and the sidecar, as processes, against a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry import EndpointRegistry
from endpoint_registry.records import object_name
from support.fault_proxy import Answer, FaultProxy
from tandem_common.clock import Deadline
from tandem_common.kube import CONFIGMAPS, Client

GYM = "http://gym:9090"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment(proxy: FaultProxy, namespace: str, tmp_path: Path) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
        "KUBECONFIG": str(proxy.kubeconfig(tmp_path, namespace)),
        "ENDPOINT_REGISTRY_JOB_ID": "job",
        "ENDPOINT_REGISTRY_RUN_UID": "run-1",
        "ENDPOINT_REGISTRY_WRITER": "gym",
        "ENDPOINT_REGISTRY_TIMEOUT_SECONDS": "60",
    }


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Return a function that starts `endpoint-registry`; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "endpoint_registry", *words], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**environment, **more},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def call(start: Start) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str, **more: str) -> tuple[int, str, str]:
        process = start(*words, **more)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    return run


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def registry(client: Client) -> Iterator[EndpointRegistry]:
    with EndpointRegistry("job", run_uid="run-1", writer="test", client=client) as running:
        yield running


def test_the_verbs_of_a_run(call: Call, namespace: str) -> None:
    code, out, _ = call("create", "--output", "json")
    assert code == 0
    name = object_name("job")
    assert json.loads(out) == {"namespace": namespace, "name": name, "run": "run-1"}
    assert call("publish", "gym_head_server", GYM, "--lease-seconds", "60")[0] == 0
    assert call("publish", "vllm_base_urls", "http://a:1/v1", "http://b:1/v1")[0] == 0
    assert call("get", "gym_head_server") == (0, f"{GYM}\n", "")
    code, out, _ = call("wait", "gym_head_server", "vllm_base_urls", "--output", "json")
    assert code == 0
    assert json.loads(json.loads(out)["vllm_base_urls"]) == ["http://a:1/v1", "http://b:1/v1"]


def test_wait_tells_on_stderr_how_it_stands_and_the_value_on_stdout(
    start: Start, registry: EndpointRegistry
) -> None:
    waiter = start("wait", "gym_head_server")
    assert waiter.stderr is not None
    line = waiter.stderr.readline()
    assert "waiting for gym_head_server" in line
    assert "no such ConfigMap" in line or "cannot be seen" in line
    registry.publish("gym_head_server", GYM)
    assert waiter.communicate(timeout=60)[0] == f"{GYM}\n"
    assert waiter.returncode == 0


def test_a_key_that_is_not_there_is_a_failure(call: Call) -> None:
    code, out, err = call("get", "gym_head_server")
    assert (code, out) == (1, "")
    assert "gym_head_server is not in ConfigMap" in err


def test_a_timeout_ends_with_4_and_names_who_is_missing(call: Call) -> None:
    code, out, err = call("wait", "gym_head_server", "--timeout", "0.5")
    assert (code, out) == (4, "")
    assert "the Gym side (role gym)" in err


def test_an_error_ends_a_wait_with_1_and_its_message(start: Start, call: Call) -> None:
    waiter = start("wait", "gym_head_server")
    assert call("error", "no GPU in sight")[0] == 0
    assert call("error", "a consequence")[1] == "the run had failed before; that error is kept\n"
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1
    assert "no GPU in sight" in err
    assert "Traceback" not in err


def test_what_is_not_allowed_ends_with_3_and_the_rule(
    call: Call, proxy: FaultProxy, namespace: str, token: Callable[[str], str], tmp_path: Path
) -> None:
    config = proxy.kubeconfig(tmp_path, namespace, token=token("nobody"))
    for words in (["wait", "gym_head_server"], ["publish", "gym_head_server", GYM]):
        code, _, err = call(*words, KUBECONFIG=str(config))
        assert code == 3
        assert 'resources: ["configmaps"]' in err
        assert "Traceback" not in err


def test_an_outage_ends_with_4(call: Call, proxy: FaultProxy) -> None:
    proxy.inject(Answer(503), count=None)
    code, _, err = call("publish", "gym_head_server", GYM, "--timeout", "1")
    assert code == 4
    assert "Traceback" not in err


def test_a_top_object_that_is_not_there_ends_with_3(call: Call) -> None:
    code, _, err = call(
        "create", "--run-object", "RayJob/none", ENDPOINT_REGISTRY_RUN_UID=""
    )  # fmt: skip
    assert code == 3
    assert "rayjobs none" in err


def test_bad_config_is_told_all_at_once_and_nothing_is_sent(
    call: Call, proxy: FaultProxy, tmp_path: Path
) -> None:
    config = proxy.kubeconfig(tmp_path, "")
    code, out, err = call(
        "publish", "no/key", "value", "--timeout", "-1", "--lease-seconds", "-1",
        KUBECONFIG=str(config),
        ENDPOINT_REGISTRY_JOB_ID="Not_A_Label", ENDPOINT_REGISTRY_ATTEMPTS="0",
        ENDPOINT_REGISTRY_RUN_UID="",
    )  # fmt: skip
    assert (code, out) == (2, "")
    for part in (
        "'no/key'", "--timeout='-1'", "--lease-seconds='-1'",
        "ENDPOINT_REGISTRY_JOB_ID='Not_A_Label'",
        "ENDPOINT_REGISTRY_ATTEMPTS='0'", "ENDPOINT_REGISTRY_NAMESPACE is missing",
        "ENDPOINT_REGISTRY_RUN_OBJECT and ENDPOINT_REGISTRY_RUN_UID are both missing",
    ):  # fmt: skip
        assert part in err
    assert err.count("fix:") == 7
    assert proxy.count() == 0


def test_watch_prints_a_line_at_each_change(start: Start, registry: EndpointRegistry) -> None:
    watcher = start("watch", "--output", "json")
    assert watcher.stdout is not None
    assert json.loads(watcher.stdout.readline())["exists"] is False
    registry.publish("gym_head_server", GYM)
    while True:
        entries = json.loads(watcher.stdout.readline())["entries"]
        if entries.get("gym_head_server", {}).get("value") == GYM:
            break
    assert entries["gym_head_server"]["writer"] == "test"


@pytest.mark.parametrize("verb", ["create", "publish", "wait", "get", "error", "watch"])
def test_help_has_examples_and_exit_codes(call: Call, verb: str) -> None:
    code, out, _ = call(verb, "--help")
    assert code == 0
    assert "examples:" in out
    assert "exit codes:" in out


# --- the sidecar -------------------------------------------------------------------------


class Endpoint:
    """A real HTTP server that answers or does not."""

    def __init__(self) -> None:
        self.status = 503
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(endpoint.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    running = Endpoint()
    yield running
    running.close()


@pytest.fixture
def sidecar(start: Start, endpoint: Endpoint) -> Callable[..., subprocess.Popen[str]]:
    def begin(**more: str) -> subprocess.Popen[str]:
        quick = {
            "KEY": "gym_head_server", "URLS": endpoint.url, "PROBE_SECONDS": "0.1",
            "PROBE_TIMEOUT_SECONDS": "1", "LEASE_SECONDS": "3", "HTTP_HOST": "127.0.0.1",
            "HTTP_PORT": "0",
        }  # fmt: skip
        return start(
            "sidecar",
            **{f"ENDPOINT_REGISTRY_{key}": value for key, value in {**quick, **more}.items()},
        )

    return begin


def until(happened: Callable[[], Any]) -> Any:
    deadline, tick = Deadline(60), threading.Event()
    while not (found := happened()):
        assert not deadline.passed
        tick.wait(0.05)
    return found


def test_an_address_is_published_once_it_answers_and_not_before(
    sidecar: Callable[..., object], endpoint: Endpoint, registry: EndpointRegistry
) -> None:
    sidecar()
    until(lambda: "gym_head_server" in registry.read().entries)
    entry = registry.read().entries["gym_head_server"]
    assert entry.value is None
    assert "answered 503" in entry.sign_of_life()
    endpoint.status = 404  # an answer all the same: this server has no root page
    assert registry.wait("gym_head_server", timeout=60) == endpoint.url


def test_a_lease_lives_with_its_sidecar_and_dies_without(
    sidecar: Callable[..., subprocess.Popen[str]], endpoint: Endpoint, registry: EndpointRegistry
) -> None:
    endpoint.status = 200
    process = sidecar()
    registry.wait("gym_head_server", timeout=60)
    first = registry.read().entries["gym_head_server"].record
    assert first is not None
    until(lambda: registry.read().entries["gym_head_server"].record.beat > first.beat + 2)  # type: ignore[union-attr]
    process.kill()
    until(lambda: registry.get("gym_head_server") is None)
    assert registry.read().entries["gym_head_server"].expired


def test_sigterm_withdraws_and_ends_well(
    sidecar: Callable[..., subprocess.Popen[str]], endpoint: Endpoint, registry: EndpointRegistry
) -> None:
    endpoint.status = 200
    process = sidecar()
    registry.wait("gym_head_server", timeout=60)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    entry = registry.read().entries["gym_head_server"]
    assert (entry.value, entry.expired) == (None, False)
    assert "the pod ends" in entry.sign_of_life()


def test_an_address_that_stops_to_answer_is_withdrawn_and_comes_back(
    sidecar: Callable[..., object], endpoint: Endpoint, registry: EndpointRegistry
) -> None:
    endpoint.status = 200
    sidecar()
    registry.wait("gym_head_server", timeout=60)
    endpoint.status = 500
    until(lambda: registry.get("gym_head_server") is None)
    endpoint.status = 200
    assert registry.wait("gym_head_server", timeout=60) == endpoint.url


def test_a_configmap_deleted_by_a_person_comes_back_with_the_sidecar(
    sidecar: Callable[..., object], endpoint: Endpoint, registry: EndpointRegistry, client: Client
) -> None:
    endpoint.status = 200
    sidecar()
    registry.wait("gym_head_server", timeout=60)
    client.delete(CONFIGMAPS, object_name("job"))
    until(lambda: registry.get("gym_head_server") == endpoint.url)


def test_an_address_that_never_answers_fails_the_run(
    sidecar: Callable[..., subprocess.Popen[str]], registry: EndpointRegistry
) -> None:
    process = sidecar(TIMEOUT_SECONDS="0.5")
    process.communicate(timeout=60)
    assert process.returncode == 1
    error = registry.read().error
    assert error is not None
    assert "gym: gym_head_server did not answer within 0.5 s" in error


def test_an_address_that_stops_to_answer_for_good_fails_the_run(
    sidecar: Callable[..., subprocess.Popen[str]], endpoint: Endpoint, registry: EndpointRegistry
) -> None:
    endpoint.status = 200
    process = sidecar(TIMEOUT_SECONDS="3")
    registry.wait("gym_head_server", timeout=60)
    endpoint.status = 500
    process.communicate(timeout=60)
    assert process.returncode == 1
    error = registry.read().error
    assert error is not None
    assert "gym_head_server was withdrawn and has not answered again for 3 s" in error
    assert "answered 500" in error


def test_the_sidecar_outlives_an_outage(
    sidecar: Callable[..., subprocess.Popen[str]], endpoint: Endpoint, registry: EndpointRegistry,
    proxy: FaultProxy,
) -> None:  # fmt: skip
    endpoint.status = 200
    process = sidecar()
    registry.wait("gym_head_server", timeout=60)
    with proxy.outage(Answer(503)):
        proxy.forget()
        until(lambda: proxy.count("patch") >= 5)
    until(lambda: registry.get("gym_head_server") == endpoint.url)
    assert process.poll() is None


def test_probes_and_metrics_tell_how_the_sidecar_stands(
    sidecar: Callable[..., subprocess.Popen[str]], endpoint: Endpoint, registry: EndpointRegistry,
    unused_port: int,
) -> None:  # fmt: skip
    sidecar(HTTP_PORT=str(unused_port))

    def get(path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{unused_port}{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    until(lambda: "answered 503" in get("/readyz")[1])
    assert get("/readyz")[0] == 503
    assert get("/healthz")[0] == 200
    endpoint.status = 200
    until(lambda: get("/readyz")[0] == 200)
    assert registry.get("gym_head_server") == endpoint.url
    metrics = get("/metrics")[1]
    assert "endpoint_registry_published 1.0" in metrics
    assert 'endpoint_registry_probes_total{result="failed"}' in metrics
    assert "endpoint_registry_kube_requests_total" in metrics


@pytest.fixture
def unused_port() -> int:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


def test_a_sidecar_with_bad_settings_says_all_and_ends_with_2(
    start: Start, proxy: FaultProxy
) -> None:
    process = start(
        "sidecar", ENDPOINT_REGISTRY_LEASE_SECONDS="0", ENDPOINT_REGISTRY_PROBE_FAILURES="0",
        ENDPOINT_REGISTRY_PROBE_URL="gym:1",
    )  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    for part in (
        "LEASE_SECONDS",
        "PROBE_FAILURES",
        "PROBE_URL",
        "KEY is missing",
        "URLS is missing",
    ):
        assert part in err
    assert proxy.count() == 0


def test_a_sidecar_whose_words_and_times_are_wrong_says_all_and_sends_nothing(
    start: Start, proxy: FaultProxy
) -> None:
    process = start(
        "sidecar", ENDPOINT_REGISTRY_KEY="gym_head_server", ENDPOINT_REGISTRY_URLS="gym:1",
        ENDPOINT_REGISTRY_PROBE_TIMEOUT_SECONDS="60", ENDPOINT_REGISTRY_JOB_ID="Not_A_Label",
    )  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    for part in ("gym_head_server='gym:1'", "PROBE_TIMEOUT_SECONDS=60", "JOB_ID='Not_A_Label'"):
        assert part in err
    assert err.count("fix:") == 3
    assert proxy.count() == 0
