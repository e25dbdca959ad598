"""The registry's image as init container and sidecar of a real run, and a watcher beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import object_name
from peer_watcher.convert import RUN_ID_LABEL
from support.cli import runs_program
from support.run_state import left_of
from tandem.run import identity
from tandem.run.kube import get, kubectl
from tandem.run.remove import remove_all
from tandem.yamls import dump

pytestmark = pytest.mark.cluster

NAMESPACE, RUN_ID = "tandem", "e2e-registry"
COMPONENTS = ("endpoint-registry/rayjob", "peer-watcher/rayjob", "images/development")
ROLES = ("endpoint-registry-rayjob", "peer-watcher-rayjob")


def in_registry(role: str) -> dict[str, Any]:
    """The patch that puts the run's registry, each Role's first rule, into it."""
    op = {"op": "replace", "path": "/rules/0/resourceNames/0", "value": object_name(RUN_ID)}
    return {"target": {"kind": "Role", "name": role}, "patch": dump([op])}


@pytest.fixture
def run(platform: Path) -> Iterator[None]:
    """A RayJob with both components that waits to be told its end."""
    assert platform.is_file()
    folder = identity.RUNS / RUN_ID
    folder.mkdir(parents=True, exist_ok=True)
    made = identity.overlay("monolithic-rayjob", RUN_ID, [])
    made["components"] += [f"../../kustomize/components/{name}" for name in COMPONENTS]
    wait = [{"op": "replace", "path": "/spec/entrypoint", "value": "sleep 800"}]
    made["patches"] = [
        *(in_registry(role) for role in ROLES), {"target": {"kind": "RayJob"}, "patch": dump(wait)}
    ]  # fmt: skip
    # For what the components bring along, too.
    made["namespace"] = NAMESPACE
    (folder / "kustomization.yaml").write_text(dump(made), encoding="utf-8")
    try:
        kubectl("apply", "-k", folder, timeout=60)
        yield
    finally:
        remove_all(NAMESPACE, RUN_ID)
        identity.forget(RUN_ID)


def pod(node_type: str) -> dict[str, Any]:
    found = get("pods", NAMESPACE, selector=f"{RUN_ID_LABEL}={RUN_ID},ray.io/node-type={node_type}")
    [one] = (found or {"items": []})["items"]
    return dict(one)


def test_a_worker_waits_for_its_head_and_an_error_ends_the_run(run: None) -> None:
    assert run is None
    registry = f"configmap/{object_name(RUN_ID)}"
    kubectl("wait", "-n", NAMESPACE, "--for=create", registry, "--timeout=300s", timeout=310)
    kubectl(
        "wait", "-n", NAMESPACE, registry, "--for=jsonpath={.data.ray_dashboard}",
        "--timeout=300s", timeout=310,
    )  # fmt: skip
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Ready", "pods", "--timeout=300s",
        f"--selector={RUN_ID_LABEL}={RUN_ID}", timeout=310,
    )  # fmt: skip
    head, worker = pod("head"), pod("worker")
    data = (get("configmaps", NAMESPACE, name=object_name(RUN_ID)) or {})["data"]
    assert data["ray_dashboard"] == f"http://{head['status']['podIP']}:8265"
    waited = {s["name"]: s["state"] for s in worker["status"]["initContainerStatuses"]}
    assert waited["wait-for-head"]["terminated"]["exitCode"] == 0
    said = kubectl("logs", "-n", NAMESPACE, worker["metadata"]["name"], "-c", "wait-for-head")
    assert data["ray_dashboard"] in said

    # A program of the run says that it cannot go on; the watcher ends all of it.
    kubectl(
        "exec", "-n", NAMESPACE, head["metadata"]["name"], "-c", "endpoint-registry", "--",
        "python", "-m", "endpoint_registry", "error", "the judge speaks another language",
    )  # fmt: skip
    kubectl(
        "wait", "-n", NAMESPACE, "--for=delete", "rayjob", f"monolithic-{RUN_ID}",
        "--timeout=120s", timeout=130,
    )  # fmt: skip
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Complete", "job",
        f"peer-watcher-rayjob-{RUN_ID}", "--timeout=120s", timeout=130,
    )  # fmt: skip
    left = {name.partition("/")[0] for name in left_of(NAMESPACE, RUN_ID)}
    assert not left & {"raycluster.ray.io", "rayjob.ray.io"}
    assert get("configmaps", NAMESPACE, name=object_name(RUN_ID)) is None
    status = runs_program("status", RUN_ID, "--output", "json", timeout=60)
    assert status.returncode == 1
    verdict = json.loads(status.stdout)["verdict"]
    assert "registry-error" in verdict["message"]
    assert "the judge speaks another language" in verdict["message"]
