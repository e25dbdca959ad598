"""A token that ends while a waiter waits and a sidecar renews; the kubelet puts in a new one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from endpoint_registry import EndpointRegistry
from endpoint_registry.records import object_name
from support.fault_proxy import FaultProxy, Reset, Seen
from tandem_common.clock import Deadline
from tandem_common.kube import CONFIGMAPS, Client, Unauthorized
from tandem_host.control_plane import ControlPlane

JOB = "job"
GYM = "http://gym:9090"


@pytest.fixture
def rights(api_server: ControlPlane, namespace: str) -> None:
    """Every account of the namespace may do everything with its ConfigMaps."""
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]
    api_server.api.call("POST", f"{root}/roles", {"metadata": {"name": "all"}, "rules": rules})
    group = "rbac.authorization.k8s.io"
    subject = {"apiGroup": group, "kind": "Group", "name": f"system:serviceaccounts:{namespace}"}
    binding: dict[str, Any] = {
        "metadata": {"name": "all"}, "subjects": [subject],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "all"},
    }  # fmt: skip
    api_server.api.call("POST", f"{root}/rolebindings", binding)


@pytest.fixture
def end_token(
    api_server: ControlPlane, namespace: str, proxy: FaultProxy
) -> Callable[[str, str], None]:
    """Return a function that ends an account's token for good, and waits until it has."""

    def end(name: str, token: str) -> None:
        api_server.api.call("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
        until(lambda: refused(token))

    def refused(token: str) -> bool:
        with Client(proxy.config(namespace, token=token)) as old:
            try:
                old.list(CONFIGMAPS)
            except Unauthorized:
                return True
        return False

    return end


@pytest.fixture
def registry(client: Client) -> Iterator[EndpointRegistry]:
    with EndpointRegistry(JOB, run_uid="run-1", writer="test", client=client) as running:
        yield running


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of something that answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def until(happened: Callable[[], Any]) -> None:
    deadline, tick = Deadline(90), threading.Event()
    while not happened():
        assert not deadline.passed
        tick.wait(0.1)


@pytest.mark.usefixtures("rights")
def test_a_waiter_outlives_the_end_of_its_token(
    proxy: FaultProxy, namespace: str, token: Callable[[str], str], tmp_path: Path, *,
    end_token: Callable[[str, str], None], registry: EndpointRegistry,
) -> None:  # fmt: skip
    first, fresh, file = token("first"), token("fresh"), tmp_path / "token"
    file.write_text(first)
    with (
        Client(proxy.config(namespace, token_file=file)) as mine,
        EndpointRegistry(JOB, run_uid="run-1", client=mine) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        value = pool.submit(reader.wait, "gym_head_server", timeout=120)
        until(lambda: proxy.count("watch"))
        end_token("first", first)

        def renew(_seen: Seen) -> bool:
            """The request has the old token: it is refused, and only then the file is read."""
            file.write_text(fresh)
            return False

        proxy.inject(Reset(), verb="watch", where=renew, count=None)
        proxy.cut()
        until(lambda: file.read_text() == fresh)
        registry.publish("gym_head_server", GYM)
        assert value.result(timeout=60) == GYM


@pytest.mark.usefixtures("rights")
def test_a_sidecar_renews_on_when_its_token_has_been_renewed(
    proxy: FaultProxy, namespace: str, token: Callable[[str], str], tmp_path: Path, *,
    end_token: Callable[[str, str], None], registry: EndpointRegistry, endpoint: str,
) -> None:  # fmt: skip
    first, fresh, file = token("first"), token("fresh"), tmp_path / "token"
    file.write_text(first)
    config = proxy.kubeconfig(tmp_path, namespace)
    content = yaml.safe_load(config.read_text())
    content["users"][0]["user"] = {"tokenFile": str(file)}
    config.write_text(yaml.safe_dump(content))
    settings = {
        "JOB_ID": JOB, "RUN_UID": "run-1", "WRITER": "gym", "KEY": "gym_head_server",
        "URLS": endpoint, "PROBE_SECONDS": "0.1", "PROBE_TIMEOUT_SECONDS": "1",
        "LEASE_SECONDS": "3", "HTTP_HOST": "127.0.0.1", "HTTP_PORT": "0",
    }  # fmt: skip
    environment = {f"ENDPOINT_REGISTRY_{key}": value for key, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "endpoint_registry", "sidecar"], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "KUBECONFIG": str(config), **environment},
    )  # fmt: skip
    try:
        until(lambda: registry.get("gym_head_server") == endpoint)
        uid = registry_uid(registry, namespace, proxy)
        end_token("first", first)
        until(lambda: registry.get("gym_head_server") is None)
        assert process.poll() is None, "it waits for the new token"
        file.write_text(fresh)
        until(lambda: registry.get("gym_head_server") == endpoint)
        assert process.poll() is None
        assert registry_uid(registry, namespace, proxy) == uid
    finally:
        process.kill()
        process.wait()


def registry_uid(registry: EndpointRegistry, namespace: str, proxy: FaultProxy) -> str:
    with Client(proxy.direct(namespace)) as admin:
        return str(admin.get(CONFIGMAPS, object_name(registry.job_id))["metadata"]["uid"])
