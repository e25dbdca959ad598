"""A pool of judges on the real cluster: two real vLLM servers behind two balancers.

Everything of the variant but its two sides, which need most of a small machine: their place is
taken by RayCluster `rl` with `suspend`, which the operator makes no pods for, and which is the
run's top object all the same.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import object_name
from peer_watcher.convert import RUN_ID_LABEL
from support.on_cluster import apply, get, items, until
from support.run_state import left_of
from tandem.policy import pods_of
from tandem.render import kustomize
from tandem.run.identity import drop_overlay, write_overlay
from tandem.run.kube import kubectl
from tandem.run.remove import remove_all

pytestmark = [pytest.mark.cluster, pytest.mark.full]

NAMESPACE, RUN_ID, VARIANT = "tandem", "e2e-judge", "disagg-rayclusters-judge"
OF_RUN = f"--selector={RUN_ID_LABEL}={RUN_ID}"
#: Two engines start side by side on two cores that others use too.
READY_SECONDS = 420.0
#: Asks the judge from a few threads until it is told to end, and says how each request went.
CLIENT = """
import json, os, threading, time, urllib.request
url, token = os.environ["URL"], open("/run/secrets/vllm-pool/token").read()
end, lock = time.monotonic() + 300, threading.Lock()
def ask(number):
    turn = 0
    while time.monotonic() < end:
        turn += 1
        body = {"model": "judge", "prompt": f"client {number} turn {turn}", "max_tokens": 16}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(url + "/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                said = json.load(answer)["choices"][0]["finish_reason"]
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        with lock:
            print("ok" if said in ("length", "stop") else f"failed {said}", flush=True)
for number in range(4):
    threading.Thread(target=ask, args=(number,)).start()
"""


def client(url: str, image: str) -> dict[str, Any]:
    """A pod that asks, as an environment's server would: by the address in the registry."""
    restricted = {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"client-{RUN_ID}", "namespace": NAMESPACE,
                     "labels": {RUN_ID_LABEL: RUN_ID}},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001,
                                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "client", "image": image, "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-c", CLIENT], "env": [{"name": "URL", "value": url}],
                "securityContext": restricted,
                "volumeMounts": [{"name": "token", "mountPath": "/run/secrets/vllm-pool"}],
            }],
            "volumes": [{"name": "token", "secret": {"secretName": f"judge-token-{RUN_ID}"}}],
        },
    }  # fmt: skip


@pytest.fixture
def objects(platform: Path) -> Iterator[list[dict[str, Any]]]:
    """The pool of a run that has no sides; nothing is left of it afterwards."""
    assert platform.is_file()
    folder = write_overlay(VARIANT, RUN_ID)
    try:
        every = kustomize(folder)
    finally:
        drop_overlay(folder)
    pool = [each for each in every if each["metadata"]["name"].startswith("judge")]
    [top] = [each for each in every if each["metadata"]["name"] == f"rl-{RUN_ID}"]
    top["spec"]["suspend"] = True
    try:
        apply({"apiVersion": "v1", "kind": "List", "items": [*pool, top]})
        yield pool
    finally:
        remove_all(NAMESPACE, RUN_ID)
        assert left_of(NAMESPACE, RUN_ID) == []


def replicas() -> list[dict[str, Any]]:
    return items("pods", "-n", NAMESPACE, f"{OF_RUN},tandem.dev/part=replicas")


def said(name: str) -> list[str]:
    return kubectl("logs", "-n", NAMESPACE, name).splitlines()


def test_a_judge_is_found_by_name_loses_nothing_and_goes_with_its_run(
    objects: list[dict[str, Any]],
) -> None:
    config = ("configmap", object_name(RUN_ID), "-n", NAMESPACE, "--ignore-not-found")
    url = until(
        lambda: kubectl("get", *config, "-o", "jsonpath={.data.judge_base_url}"),
        "the judge is in the registry", READY_SECONDS,
    )  # fmt: skip
    assert url == f"http://judge-{RUN_ID}.{NAMESPACE}.svc:8000/v1"
    # Both replicas, at both balancers.
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Ready", "pods",
        f"{OF_RUN},tandem.dev/role=pool", f"--timeout={READY_SECONDS:.0f}s",
        timeout=READY_SECONDS + 10,
    )  # fmt: skip
    for kind, name in (("secret", "judge-token"), ("deployment", "judge-replicas")):
        found = get(kind, f"{name}-{RUN_ID}", "-n", NAMESPACE)
        if kind == "secret":
            assert len(b64decode(found["data"]["token"])) == 64
        else:
            [owner] = found["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"]) == ("RayCluster", f"rl-{RUN_ID}")

    [image] = {
        each["image"]
        for obj in objects
        for pod in pods_of(obj)
        for each in pod.containers
        if each["name"] == "balancer"
    }
    apply(client(url, image))
    asked = f"client-{RUN_ID}"
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Ready", f"pod/{asked}", "--timeout=60s",
        timeout=70,
    )  # fmt: skip
    until(lambda: said(asked).count("ok") >= 12, "the judge answers")
    victim = replicas()[0]["metadata"]["name"]
    before = len(said(asked))
    kubectl("delete", "pod", victim, "-n", NAMESPACE, "--grace-period=0", "--force", timeout=60)
    until(lambda: len(said(asked)) >= before + 30, "the other replica answers")
    lines = said(asked)
    assert set(lines) == {"ok"}, [line for line in lines if line != "ok"]
    kubectl("delete", "pod", asked, "-n", NAMESPACE, timeout=60)

    # The run's end, as the watchers bring it about: nothing but its top object is deleted.
    kubectl("delete", "raycluster", f"rl-{RUN_ID}", "-n", NAMESPACE, timeout=120)
    until(
        lambda: not items("deployments,pods", "-n", NAMESPACE, OF_RUN), "the pool went with its run"
    )
