"""The rights of the component and of the platform's Role, with RBAC on: enough, and no more."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from endpoint_registry import EndpointRegistry
from endpoint_registry.records import object_name
from support.fault_proxy import FaultProxy
from tandem.paths import ROOT
from tandem.yamls import load_all
from tandem_common.clock import Deadline
from tandem_common.kube import (
    CONFIGMAPS,
    Client,
    Forbidden,
    NamespaceTerminating,
    Unauthorized,
)
from tandem_host.control_plane import ControlPlane

ROLE = ROOT / "kustomize" / "components" / "endpoint-registry" / "rayjob" / "role.yaml"
VALUES = ROOT / "charts" / "rl-platform" / "values.yaml"
GYM = "http://gym:9090"


@pytest.fixture
def account(
    api_server: ControlPlane, namespace: str, token: Callable[[str], str], proxy: FaultProxy
) -> Client:
    """A connection with the component's rights for run id `run`."""
    [role] = load_all(ROLE.read_text())
    [values] = load_all(VALUES.read_text())
    rules = [*role["rules"], *values["sharedRoles"]["endpoint-registry"]]
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api_server.api.call("POST", f"{root}/roles", {"metadata": {"name": "registry"}, "rules": rules})
    binding: dict[str, Any] = {
        "metadata": {"name": "registry"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "registry"},
        "subjects": [{"kind": "ServiceAccount", "name": "pod", "namespace": namespace}],
    }
    api_server.api.call("POST", f"{root}/rolebindings", binding)
    return Client(proxy.config(namespace, token=token("pod")))


def test_every_verb_of_the_registry_works(account: Client) -> None:
    with (
        account,
        EndpointRegistry("run", run_uid="former", writer="gym", client=account) as former,
        EndpointRegistry(
            "run",
            run_uid="run-1",
            writer="gym",
            client=account,
            run_started="9999-01-01T00:00:00Z",
        ) as registry,
    ):
        former.publish("gym_head_server", GYM)
        registry.create()
        registry.announce("gym_head_server", "starting")
        registry.publish("gym_head_server", GYM, lease_seconds=60)
        registry.renew("gym_head_server", GYM, lease_seconds=60)
        assert registry.get("gym_head_server") == GYM
        assert registry.wait("gym_head_server", timeout=60) == GYM
        assert registry.withdraw("gym_head_server")
        assert registry.error("the end")


def test_rights_that_go_with_the_namespace_are_no_fault_of_the_role(
    api_server: ControlPlane, account: Client, client: Client, namespace: str
) -> None:
    """The namespace controller deletes roles and accounts before, or after, the ConfigMap."""
    with account, EndpointRegistry("run", run_uid="run-1", writer="gym", client=account) as gym:
        gym.publish("gym_head_server", GYM, lease_seconds=60)
        held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
        client.create(CONFIGMAPS, held)
        binding = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
        try:
            api_server.api.call("DELETE", f"/api/v1/namespaces/{namespace}")
            until_gone(api_server, binding)
            with pytest.raises((Forbidden, Unauthorized, NamespaceTerminating)) as caught:
                renew_until_refused(gym)
        finally:
            client.merge_patch(CONFIGMAPS, "held", {"metadata": {"finalizers": None}})
    assert re.search(r"namespace is being deleted|being terminated", str(caught.value))
    assert "in the Role of this account" not in str(caught.value)


def until_gone(api_server: ControlPlane, path: str) -> None:
    """Return when a list is empty."""
    deadline, tick = Deadline(60), threading.Event()
    while api_server.api.call("GET", path)["items"]:
        assert not deadline.passed
        tick.wait(0.1)


def renew_until_refused(gym: EndpointRegistry) -> None:
    """The API server learns a little later that a binding is gone."""
    deadline, tick = Deadline(60), threading.Event()
    while not deadline.passed:
        gym.renew("gym_head_server", GYM, lease_seconds=60)
        tick.wait(0.1)


def test_another_runs_registry_can_neither_be_read_nor_changed(
    account: Client, client: Client
) -> None:
    with EndpointRegistry("other", run_uid="run-2", writer="gym", client=client) as other:
        other.publish("gym_head_server", GYM)
    name = object_name("other")
    with account, EndpointRegistry("other", run_uid="run-2", writer="x", client=account) as theirs:
        for deed in (
            lambda: theirs.get("gym_head_server"),
            lambda: theirs.publish("gym_head_server", "http://mine:1"),
            lambda: theirs.error("mine"),
            lambda: account.get(CONFIGMAPS, name),
            lambda: account.list(CONFIGMAPS),
            lambda: account.list(CONFIGMAPS, name=name),
            lambda: account.delete(CONFIGMAPS, name),
            lambda: account.merge_patch(CONFIGMAPS, name, {"data": {"k": "v"}}),
        ):
            with pytest.raises(Forbidden):
                deed()
    assert client.get(CONFIGMAPS, name)["data"] == {"gym_head_server": GYM}


@pytest.mark.parametrize(
    "right",
    [
        ("delete", "ray.io", "rayjobs"), ("patch", "ray.io", "rayjobs"),
        ("delete", "ray.io", "rayclusters"), ("get", "", "secrets"), ("list", "", "pods"),
        ("create", "", "pods"), ("create", "events.k8s.io", "events"),
    ],
)  # fmt: skip
def test_nothing_else_is_allowed(
    api_server: ControlPlane, account: Client, namespace: str, right: tuple[str, str, str]
) -> None:
    verb, group, resource = right
    review = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:pod",
            "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": group, "resource": resource,
                "name": "monolithic",
            },
        },
    }  # fmt: skip
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert api_server.api.call("POST", path, review)["status"]["allowed"] is False
    # The question itself is right: what the Role allows is allowed.
    review["spec"]["resourceAttributes"].update(  # type: ignore[index]
        {"verb": "get", "group": "ray.io", "resource": "rayjobs"}
    )
    assert api_server.api.call("POST", path, review)["status"]["allowed"] is True
    account.close()
