"""Fixtures of the sidecars' suites: the API server behind a proxy that can break things."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.fault_proxy import FaultProxy
from tandem import crds
from tandem_common.clock import Deadline
from tandem_common.kube import Client
from tandem_host.control_plane import ControlPlane


@pytest.fixture(scope="session")
def kinds(api_server: ControlPlane) -> None:
    """The custom kinds of the operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(api_server.kubeconfig))
        crds.apply(crds.sources("default"))


@pytest.fixture
def proxy(api_server: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy of this test's own."""
    with FaultProxy(api_server.kubeconfig) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy, namespace: str) -> Iterator[Client]:
    """The administrator, through the proxy."""
    with Client(proxy.config(namespace)) as running:
        yield running


@pytest.fixture
def token(api_server: ControlPlane, namespace: str) -> Callable[[str], str]:
    """Return a function that makes a service account and returns its token."""

    def make(name: str) -> str:
        root = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        api_server.api.call("POST", root, {"metadata": {"name": name}})
        answer = api_server.api.call(
            "POST", f"{root}/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )  # fmt: skip
        return str(answer["status"]["token"])

    return make


@pytest.fixture
def soon() -> Deadline:
    """A deadline for whatever should be there in a moment."""
    return Deadline(120)
