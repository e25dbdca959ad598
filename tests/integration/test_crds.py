"""CRDs outlive every release: with a live RayCluster, sync, upgrade and destroy.

The real API server, helm and helmfile. Nothing runs pods here, so a thread says that pods
are ready in the kubelet's place: `helmfile sync` waits for its Deployments. JobSet is left
out (its webhooks would need a pod that answers); tests/e2e/test_platform.py has it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import crds
from tandem.bundle.layout import Layout
from tandem.paths import ROOT
from tandem.process import run, tool_env
from tandem.yamls import dump, load_all

pytestmark = pytest.mark.api_server

RELEASES = ("--selector", "name=kuberay-operator", "--selector", "name=rl-platform")
RUN = {"tandem.dev/run-id": "live"}
RAYCLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "live", "namespace": "tandem", "labels": RUN},
    "spec": {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {
                "metadata": {"labels": RUN},
                "spec": {"containers": [{"name": "ray-head", "image": "ray:v1"}]},
            },
        }
    },
}


def kubectl(*words: str, stdin: str | None = None) -> str:
    return run(["kubectl", *words], timeout=60, stdin=stdin)


def get(*words: str) -> Any:
    return json.loads(kubectl("get", *words, "-o", "json"))


def uid(*words: str) -> str:
    return str(get(*words)["metadata"]["uid"])


def helmfile(*words: str) -> str:
    """Run helmfile and return all it says; it tells of hooks on stderr."""
    done = subprocess.run(
        ["helmfile", *words], check=False, cwd=ROOT, env=tool_env(), timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def say_pods_are_ready(stop: threading.Event) -> None:
    status = json.dumps(
        {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    )
    while not stop.wait(0.5):
        listed = subprocess.run(
            ["kubectl", "get", "pods", "-A", "-o", "json"],
            check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
        )  # fmt: skip
        for pod in json.loads(listed.stdout or '{"items": []}')["items"]:
            if pod["status"].get("phase") == "Pending":
                meta = pod["metadata"]
                subprocess.run(
                    ["kubectl", "patch", "pod", meta["name"], "-n", meta["namespace"],
                     "--subresource=status", "--type=merge", "-p", status],
                    check=False, capture_output=True, env=tool_env(), timeout=30,
                )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def kubelet(kubeconfig: Path) -> Iterator[None]:
    assert kubeconfig.is_file()
    stop = threading.Event()
    thread = threading.Thread(target=say_pods_are_ready, args=[stop])
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def live(kubelet: None) -> str:
    """The platform with a live RayCluster on it; the RayCluster's uid."""
    assert kubelet is None
    helmfile(*RELEASES, "sync")
    kubectl("apply", "-f", "-", stdin=json.dumps(RAYCLUSTER))
    return uid("raycluster", "live", "-n", "tandem")


@pytest.fixture
def survives(live: str) -> Iterator[Callable[[], None]]:
    """Check that the RayCluster and every CRD are the ones that were there before."""
    before = {name: uid("crd", name) for name in crds.installed()}
    assert {"rayclusters.ray.io", "rayjobs.ray.io", "jobsets.jobset.x-k8s.io"} <= set(before)

    def check() -> None:
        assert uid("raycluster", "live", "-n", "tandem") == live
        assert {name: uid("crd", name) for name in crds.installed()} == before

    yield check
    check()


def operator() -> dict[str, Any]:
    found: dict[str, Any] = get("deployment", "kuberay-operator", "-n", "kuberay-operator")
    return found


def pods() -> set[str]:
    return {pod["metadata"]["uid"] for pod in get("pods", "-A")["items"]}


def test_a_second_sync_changes_nothing(survives: Callable[[], None]) -> None:
    deployment, running = operator(), pods()
    assert running
    said = helmfile(*RELEASES, "sync")
    assert "CRDs: 0 applied" in said
    survives()
    assert operator()["metadata"]["generation"] == deployment["metadata"]["generation"]
    assert pods() == running


def test_an_upgraded_chart_replaces_the_operator_only(
    survives: Callable[[], None], tmp_path: Path
) -> None:
    chart = tmp_path / "kuberay-operator"
    shutil.copytree(Layout().charts / "kuberay-operator", chart)
    described = load_all((chart / "Chart.yaml").read_text())[0]
    (chart / "Chart.yaml").write_text(dump(described | {"version": "9.9.9"}))
    values = load_all((chart / "values.yaml").read_text())[0]
    (chart / "values.yaml").write_text(dump(values | {"env": [{"name": "NEW", "value": "1"}]}))
    generation = operator()["metadata"]["generation"]
    helmfile(
        "--selector", "name=kuberay-operator",
        "--state-values-set", f"charts.kuberayOperator.chart={chart}", "sync",
    )  # fmt: skip
    assert operator()["metadata"]["generation"] == generation + 1
    survives()


def test_a_chart_that_brings_crds_gets_none_of_them(
    survives: Callable[[], None], tmp_path: Path
) -> None:
    chart = tmp_path / "kuberay-operator"
    shutil.copytree(Layout().charts / "kuberay-operator", chart)
    (chart / "crds").mkdir()
    stranger = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: strangers.example.test}
spec:
  group: example.test
  scope: Namespaced
  names: {plural: strangers, singular: stranger, kind: Stranger, listKind: StrangerList}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""
    (chart / "crds" / "stranger.yaml").write_text(stranger)
    # Helm installs a chart's CRDs with a release's first revision only.
    helmfile("--selector", "name=kuberay-operator", "destroy")
    helmfile(
        "--selector", "name=kuberay-operator",
        "--state-values-set", f"charts.kuberayOperator.chart={chart}", "sync",
    )  # fmt: skip
    assert "strangers.example.test" not in crds.installed()
    survives()


def test_a_change_by_somebody_else_is_undone_by_the_next_apply(
    survives: Callable[[], None],
) -> None:
    path = Layout().crds / "rayclusters.ray.io.yaml"
    assert crds.apply([path]) == 0
    column = "/spec/versions/0/additionalPrinterColumns/0"
    before = get("crd", path.stem)["spec"]
    kubectl("patch", "crd", path.stem, "--type=json",
            "-p", json.dumps([{"op": "remove", "path": column}]))  # fmt: skip
    assert get("crd", path.stem)["spec"] != before
    assert crds.apply([path]) == 1
    assert get("crd", path.stem)["spec"] == before
    assert crds.apply([path]) == 0
    survives()


def test_the_local_environment_refuses_a_cluster_of_others(
    survives: Callable[[], None],
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-7"}}
    kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        before = operator()["metadata"]["resourceVersion"]
        done = subprocess.run(
            ["helmfile", *RELEASES, "sync"], check=False, cwd=ROOT, env=tool_env(), timeout=60,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode != 0
        assert "gpu-7" in done.stderr
        assert "-e prod" in done.stderr
        assert operator()["metadata"]["resourceVersion"] == before
    finally:
        kubectl("delete", "node", "gpu-7")
    survives()


def test_deleting_crds_needs_a_yes(survives: Callable[[], None]) -> None:
    done = subprocess.run(
        [".venv/bin/python", "-m", "tandem.crds", "delete"],
        check=False, capture_output=True, text=True, cwd=ROOT, env=tool_env(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--yes" in done.stderr
    survives()


def test_destroy_takes_the_operator_and_nothing_of_the_users(
    survives: Callable[[], None],
) -> None:
    helmfile(*RELEASES, "destroy")
    assert get("deployments", "-A")["items"] == []
    assert "tandem" in {ns["metadata"]["name"] for ns in get("namespaces")["items"]}
    survives()
    # and the platform comes back around it
    helmfile(*RELEASES, "sync")
    survives()
