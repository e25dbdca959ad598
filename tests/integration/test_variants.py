"""Variants at the real API server: schemas, defaults and admission, without a node.

Every pod template is sent as a pod (server-side dry run): Pod Security `restricted`, the
ServiceAccount and the PriorityClass are then checked by the API server itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kai_crds import FAKE_PODGROUPS, served
from tandem import crds
from tandem.paths import ROOT
from tandem.policy import Pod, pods_of
from tandem.process import run, tool_env
from tandem.render import OVERLAYS, render_variant, variants

pytestmark = pytest.mark.api_server


@pytest.fixture(scope="module", autouse=True)
def platform(kubeconfig: Path) -> Iterator[None]:
    assert kubeconfig.is_file()
    crds.apply(crds.sources("default"))
    # The production variant's priorities and accounts are the same chart's.
    run(["helmfile", "--selector", "name=rl-platform", "sync"], timeout=120, cwd=ROOT)
    with served(FAKE_PODGROUPS):
        yield


def dry_run(obj: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["kubectl", "create", "--dry-run=server", "-f", "-"],
        check=False, input=json.dumps(obj), capture_output=True, text=True,
        env=tool_env(), timeout=60,
    )  # fmt: skip


def as_pod(pod: Pod) -> dict[str, Any]:
    metadata = {**pod.metadata, "name": "dry-run", "namespace": "tandem"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod.spec}


@pytest.mark.parametrize("variant", variants())
def test_the_api_server_takes_a_variant(variant: str) -> None:
    said = run(
        ["kubectl", "apply", "--dry-run=server", "--validate=strict", "-k", OVERLAYS / variant],
        timeout=60,
    )
    assert "server dry run" in said


@pytest.mark.parametrize("variant", variants())
def test_its_pods_are_admitted(variant: str) -> None:
    objects = render_variant(variant)
    for obj in objects:
        if obj["kind"] == "ServiceAccount":
            # One that the variant brings along.
            run(["kubectl", "apply", "-f", "-"], timeout=60, stdin=json.dumps(obj))
    pods = [pod for obj in objects for pod in pods_of(obj)]
    assert len(pods) >= 2
    for pod in pods:
        done = dry_run(as_pod(pod))
        assert done.returncode == 0, done.stderr
        # `restricted` would only warn where it does not enforce.
        assert "would violate" not in done.stderr


def test_a_pod_that_may_become_root_is_refused() -> None:
    [obj] = render_variant("monolithic-rayjob")
    pod = pods_of(obj)[0]
    pod.spec["securityContext"]["runAsNonRoot"] = False
    done = dry_run(as_pod(pod))
    assert done.returncode != 0
    assert "restricted" in done.stderr


def test_a_priority_that_the_platform_does_not_have_is_refused() -> None:
    [obj] = render_variant("prod-monolithic-rayjob")
    pod = pods_of(obj)[0]
    pod.spec["priorityClassName"] = "no-such-class"
    assert "no-such-class" in dry_run(as_pod(pod)).stderr
