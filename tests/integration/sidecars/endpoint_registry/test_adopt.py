"""`endpoint-registry adopt`: what goes with a run, against a real API server and its collector."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fault_proxy import FaultProxy
from tandem.render import render_variant
from tandem_common.clock import Deadline
from tandem_common.kube import DEPLOYMENTS, RAYCLUSTERS, Client, NotFound, Resource
from tandem_host.control_plane import ControlPlane

pytestmark = [pytest.mark.api_server, pytest.mark.usefixtures("kinds")]

REPLICAS, BALANCER = "judge-replicas", "judge-balancer"
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
LABELS = {"app": "judge"}
POD = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
Adopt = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def adopt(proxy: FaultProxy, namespace: str, tmp_path: Path) -> Adopt:
    """Return a function that starts the command, as an administrator or with a token."""

    def begin(*things: str, token: str = "", run: str = "RayCluster/rl") -> subprocess.Popen[str]:
        made = proxy.kubeconfig(tmp_path, namespace, **({"token": token} if token else {}))
        return subprocess.Popen(
            [sys.executable, "-m", "endpoint_registry", "adopt", *things], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={
                **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
                "KUBECONFIG": str(made), "ENDPOINT_REGISTRY_JOB_ID": "job",
                "ENDPOINT_REGISTRY_TIMEOUT_SECONDS": "60",
                **({"ENDPOINT_REGISTRY_RUN_OBJECT": run} if run else
                   {"ENDPOINT_REGISTRY_RUN_UID": "run-1"}),
            },
        )  # fmt: skip

    return begin


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=90)
    return process.returncode, err


def deployment(client: Client, name: str, *owners: dict[str, Any]) -> None:
    client.create(DEPLOYMENTS, {
        "metadata": {"name": name, "ownerReferences": list(owners)},
        "spec": {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": POD},
    })  # fmt: skip


def ray_cluster(client: Client, name: str = "rl") -> str:
    made = client.create(RAYCLUSTERS, {
        "metadata": {"name": name},
        "spec": {"headGroupSpec": {"rayStartParams": {}, "template": POD}},
    })  # fmt: skip
    return str(made["metadata"]["uid"])


def owners_of(client: Client, name: str) -> list[str]:
    found = client.get(DEPLOYMENTS, name)["metadata"].get("ownerReferences") or []
    return [each["uid"] for each in found]


def gone(client: Client, name: str, limit: Deadline) -> bool:
    while not limit.passed:
        try:
            client.get(DEPLOYMENTS, name)
        except NotFound:
            return True
    return False


def test_what_is_adopted_goes_with_the_run_and_nothing_else(
    client: Client, adopt: Adopt, soon: Deadline
) -> None:
    deployment(client, REPLICAS)
    deployment(client, "of-nobody")
    process = adopt(f"Deployment/{REPLICAS}")
    # All of a run is applied together: neither the run nor the second one is there yet.
    assert process.stderr is not None
    assert "waiting for RayCluster/rl" in process.stderr.readline()
    uid = ray_cluster(client)
    assert ended(process)[0] == 0
    assert owners_of(client, REPLICAS) == [uid]
    assert ended(adopt(f"Deployment/{REPLICAS}"))[0] == 0
    assert owners_of(client, REPLICAS) == [uid], "it was so already"
    client.delete(RAYCLUSTERS, "rl")
    assert gone(client, REPLICAS, soon)
    assert owners_of(client, "of-nobody") == []


def test_an_owner_that_lives_stays_and_one_of_a_former_run_does_no_harm(
    client: Client, adopt: Adopt, soon: Deadline
) -> None:
    other = ray_cluster(client, "other")
    reference = {"apiVersion": RAYCLUSTERS.api_version, "kind": RAYCLUSTERS.kind}
    uid = ray_cluster(client)
    deployment(
        client, REPLICAS, {**reference, "name": "other", "uid": other},
        {**reference, "name": "rl", "uid": "00000000-0000-0000-0000-000000000007"},
    )  # fmt: skip
    assert ended(adopt(f"Deployment/{REPLICAS}"))[0] == 0
    # The collector takes out what is gone.
    while len(owners := owners_of(client, REPLICAS)) > 2 and not soon.passed:
        pass
    assert owners == [other, uid]


def test_the_keepers_rights_are_enough_and_name_what_they_are_for(
    client: Client,
    adopt: Adopt,
    token: Callable[[str], str],
    namespace: str,
    api_server: ControlPlane,
) -> None:
    del api_server
    [role] = [
        each
        for each in render_variant("disagg-rayclusters-judge")
        if (each["kind"], each["metadata"]["name"]) == ("Role", "judge-keeper")
    ]
    client.create(ROLES, {"metadata": {"name": "keeper"}, "rules": role["rules"]})
    account = {"kind": "ServiceAccount", "name": "keeper", "namespace": namespace}
    client.create(BINDINGS, {
        "metadata": {"name": "keeper"}, "subjects": [account],
        "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": "keeper"},
    })  # fmt: skip
    uid, bearer = ray_cluster(client), token("keeper")
    for name in (REPLICAS, BALANCER, "another"):
        deployment(client, name)
    code, err = ended(adopt(f"Deployment/{REPLICAS}", f"Deployment/{BALANCER}", token=bearer))
    assert code == 0, err
    assert owners_of(client, REPLICAS) == owners_of(client, BALANCER) == [uid]
    code, err = ended(adopt("Deployment/another", token=bearer))
    assert code == 3
    assert "deployments" in err
    assert owners_of(client, "another") == []


@pytest.mark.parametrize(
    ("thing", "run", "said"),
    [
        ("Pod/a", "RayCluster/rl", "names no object"),
        ("Deployment/", "RayCluster/rl", "names no object"),
        (f"Deployment/{REPLICAS}", "", "RUN_OBJECT is missing"),
    ],
)
def test_what_cannot_be_adopted_is_a_usage_error(
    client: Client, adopt: Adopt, thing: str, run: str, said: str
) -> None:
    if run:
        ray_cluster(client)
    code, err = ended(adopt(thing, run=run))
    assert code == 2
    assert said in err
