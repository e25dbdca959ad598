"""Status, stop and clean of runs, at the real API server; no node and no operator."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import object_name
from peer_watcher.convert import RUN_ID_LABEL, VERDICT_ANNOTATION
from peer_watcher.facts import Outcome, Verdict
from support.cli import runs_program
from support.run_state import left_of
from tandem import crds
from tandem.errors import ExitCode, UserError
from tandem.process import run, tool_env
from tandem.render import kustomize
from tandem.run import remove as removing
from tandem.run import stop as stopping
from tandem.run.identity import drop_overlay, write_overlay
from tandem.run.kube import get, kubectl
from tandem.run.remove import remove_all, remove_leftovers, things_of
from tandem.run.shapes import ROLE_LABEL, Run
from tandem.run.start import _claim, make_room
from tandem.run.status import top_in
from tandem_common.kube.resources import JOBSETS

pytestmark = pytest.mark.api_server

WATCHER = {"app.kubernetes.io/name": "peer-watcher"}


@pytest.fixture(scope="module", autouse=True)
def platform(kubeconfig: Path) -> None:
    assert kubeconfig.is_file()
    crds.apply(crds.sources("default"))


def apply(namespace: str, *objects: dict[str, Any]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    run(["kubectl", "apply", "-n", namespace, "-f", "-"], timeout=60, stdin=json.dumps(listed))


def labelled(run_id: str, role: str = "", **more: str) -> dict[str, str]:
    return {RUN_ID_LABEL: run_id, **({ROLE_LABEL: role} if role else {}), **more}


def pod_of(labels: dict[str, str]) -> dict[str, Any]:
    container = {"name": "driver", "image": "x"}
    return {"metadata": {"labels": labels},
            "spec": {"containers": [container], "restartPolicy": "Never"}}  # fmt: skip


def raycluster(name: str, run_id: str, role: str) -> dict[str, Any]:
    labels = labelled(run_id, role)
    head = {"rayStartParams": {}, "template": pod_of(labels)}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata,
            "spec": {"headGroupSpec": head}}  # fmt: skip


def job(name: str, labels: dict[str, str]) -> dict[str, Any]:
    spec = {"backoffLimit": 0, "template": pod_of(labels)}
    return {"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "labels": labels}, "spec": spec}  # fmt: skip


def configmap(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
            "data": {"gym_head_server": "http://198.18.0.9:9090"}}  # fmt: skip


def start_run(namespace: str, run_id: str) -> None:
    """A run as it is while it goes on; its registry is as NeMo RL's own client makes it."""
    apply(
        namespace,
        raycluster(f"rl-{run_id}", run_id, "rl"),
        raycluster(f"gym-{run_id}", run_id, "gym"),
        job(f"driver-{run_id}", labelled(run_id, "driver")),
        job(f"peer-watcher-{run_id}", labelled(run_id, **WATCHER)),
        configmap(f"gym-config-{run_id}", **labelled(run_id, "gym")),
        configmap(object_name(run_id)),
    )


def status(namespace: str, run_id: str) -> tuple[int, dict[str, Any]]:
    done = runs_program("--namespace", namespace, "status", run_id, "--output", "json", timeout=60)
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, told


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stopping, "ARTIFACTS", tmp_path)
    return tmp_path


def test_a_run_is_stopped_and_another_one_is_not(namespace: str, kept: Path) -> None:
    for run_id in ("a7", "a7-b"):
        start_run(namespace, run_id)
    code, told = status(namespace, "a7")
    assert (code, told["state"]) == (0, "pending")
    assert told["endpoints"] == {"gym_head_server": "http://198.18.0.9:9090"}
    assert {role["role"] for role in told["roles"]} >= {"rl", "gym", "driver"}

    other = left_of(namespace, "a7-b")
    assert stopping.stop(namespace, "a7")
    assert left_of(namespace, "a7") == []
    assert left_of(namespace, "a7-b") == other
    summary = json.loads((kept / "a7" / "summary.json").read_text())
    assert (summary["succeeded"], summary["reason"]) == (False, "RunStopped")
    assert "driver-a7" in (kept / "a7" / "logs" / "run.yaml").read_text()
    code, told = status(namespace, "a7")
    assert (code, told["state"]) == (1, "stopped")

    with pytest.raises(UserError, match="there is no run a7") as refused:
        stopping.stop(namespace, "a7")
    assert refused.value.code == ExitCode.PRECONDITION


def test_only_ended_runs_are_cleaned(namespace: str, kept: Path) -> None:
    assert kept.is_dir()
    start_run(namespace, "going")
    start_run(namespace, "ended")
    said = Verdict("head-lost", Outcome.FAILED, "RayCluster/gym-ended lost its head").to_json()
    kubectl("annotate", "job", "driver-ended", "-n", namespace, f"{VERDICT_ANNOTATION}={said}")
    listed = runs_program("--namespace", namespace, "status", timeout=60)
    assert listed.returncode == 0
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert "pending" in rows["going"]
    assert "failed" in rows["ended"]
    assert "head-lost" in rows["ended"]
    assert status(namespace, "ended")[0] == 1

    with pytest.raises(UserError, match="run going is still going"):
        stopping.clean(namespace, "going")
    assert stopping.clean(namespace) == ["ended"]
    assert left_of(namespace, "ended") == []
    assert left_of(namespace, "going") != []
    # Once more does no harm.
    assert stopping.clean(namespace) == []
    remove_all(namespace, "ended")


def let_go(namespace: str, *names: str) -> None:
    for name in names:
        kubectl(
            "patch", "raycluster", name, "-n", namespace, "--type=json", "-p",
            '[{"op": "remove", "path": "/metadata/finalizers"}]',
        )  # fmt: skip


def test_a_second_start_is_refused_and_an_ended_run_makes_room(namespace: str) -> None:
    start_run(namespace, "a7")
    with pytest.raises(UserError, match="run a7 is still going: ") as refused:
        make_room(namespace, "a7")
    assert "make stop RUN_ID=a7" in refused.value.problems[0].fix
    assert left_of(namespace, "a7") != []
    found = top_in(things_of(namespace, "a7"))
    assert found is not None
    assert (found["kind"], found["metadata"]["name"]) == ("Job", "driver-a7")
    # Its driver is gone, its sides are going: nothing comes of it any more.
    kubectl("delete", "job", "driver-a7", "-n", namespace)
    for side in ("rl", "gym"):
        patch = '{"metadata": {"finalizers": ["tandem.dev/test"]}}'
        kubectl("patch", "raycluster", f"{side}-a7", "-n", namespace, "--type=merge", "-p", patch)
    kubectl("delete", "raycluster", "--all", "-n", namespace, "--wait=false")
    # It is still terminating when the next one is started, which waits for its end.
    later = threading.Timer(3, let_go, (namespace, "rl-a7", "gym-a7"))
    later.start()
    began = time.monotonic()
    make_room(namespace, "a7")
    assert time.monotonic() - began > 2
    later.join()
    assert left_of(namespace, "a7") == []


def test_what_a_broken_start_has_left_is_told_of_and_cleaned(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(namespace, configmap("gym-config-cut", **labelled("cut", "gym")))
    with pytest.raises(UserError, match="run cut is being started by somebody else") as refused:
        make_room(namespace, "cut")
    assert "make clean RUN_ID=cut" in refused.value.problems[0].fix
    assert stopping.clean(namespace) == [], "somebody may be about to go on with it"
    monkeypatch.setattr(removing, "_CLAIM_SECONDS", 0)
    make_room(namespace, "cut")
    assert left_of(namespace, "cut") == []
    apply(namespace, configmap("gym-config-cut", **labelled("cut", "gym")))
    assert stopping.clean(namespace) == ["cut"]
    assert left_of(namespace, "cut") == []


def test_the_watchers_go_before_what_they_watch(namespace: str) -> None:
    start_run(namespace, "a7")
    hold = '{"metadata": {"finalizers": ["tandem.dev/test"]}}'
    watcher = ("job", "peer-watcher-a7")
    kubectl("patch", *watcher, "-n", namespace, "--type=merge", "-p", hold)
    removal = threading.Thread(target=remove_all, args=(namespace, "a7"))
    removal.start()
    wait = ("--for=jsonpath={.metadata.deletionTimestamp}", "--timeout=30s")
    kubectl("wait", "job/peer-watcher-a7", "-n", namespace, *wait, timeout=40)
    # A person's end is no failure: nobody is there to see the sides go and to call it one.
    time.sleep(2)
    for side in ("rl", "gym"):
        found = get("rayclusters.ray.io", namespace, name=f"{side}-a7")
        assert found is not None
        assert "deletionTimestamp" not in found["metadata"]
    free = '[{"op": "remove", "path": "/metadata/finalizers"}]'
    kubectl("patch", *watcher, "-n", namespace, "--type=json", "-p", free)
    removal.join(120)
    assert not removal.is_alive()
    assert left_of(namespace, "a7") == []


def test_logs_are_followed_to_the_runs_end(namespace: str) -> None:
    start_run(namespace, "a7")
    kubectl(
        "wait", "job/driver-a7", "-n", namespace, "--for=jsonpath={.status.active}=1",
        "--timeout=60s", timeout=70,
    )  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "tandem.runs", "--namespace", namespace, "logs", "a7", "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tool_env(),
    ) as following:  # fmt: skip
        try:
            # Its pods wait to be placed, and may come up at any time.
            with pytest.raises(subprocess.TimeoutExpired):
                following.wait(timeout=8)
            pods = get("pods", namespace, selector=f"{RUN_ID_LABEL}=a7") or {"items": []}
            for each in pods["items"]:
                kubectl(
                    "patch", "pod", each["metadata"]["name"], "-n", namespace,
                    "--subresource=status", "--type=merge", "-p",
                    '{"status": {"phase": "Succeeded"}}',
                )  # fmt: skip
            assert following.wait(timeout=60) == 0
        finally:
            if following.poll() is None:
                following.kill()


def test_of_two_starts_at_once_one_is_refused(namespace: str) -> None:
    folder = write_overlay("disagg-rayclusters", "twice")
    try:
        objects = kustomize(folder)
    finally:
        drop_overlay(folder)
    for obj in objects:
        obj["metadata"]["namespace"] = namespace
    _claim(objects, "twice")
    before = kubectl("get", "all,sa,cm", "-n", namespace, "-o", "name")
    with pytest.raises(UserError, match="is being started by somebody else"):
        _claim(objects, "twice")
    assert kubectl("get", "all,sa,cm", "-n", namespace, "-o", "name") == before
    assert get("jobs.batch", namespace, name="driver-twice") is None


def test_a_wrong_id_is_usage_and_an_unknown_one_a_precondition(namespace: str) -> None:
    for words, code in (
        (("status", "No_Label"), 2), (("start", "--variant", "nope"), 2), (("logs",), 2),
        (("status", "none"), 3), (("logs", "none"), 3), (("logs", "none", "--follow"), 3),
        (("stop", "none"), 3),
    ):  # fmt: skip
        done = runs_program("--namespace", namespace, *words, timeout=60)
        assert done.returncode == code, (words, done.stderr)
        assert "  fix: " in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
    named = runs_program("--namespace", namespace, "stop", timeout=60)
    assert "make stop RUN_ID=<id>" in named.stderr


def test_an_ended_jobset_keeps_its_verdict_and_neither_service_nor_registry(namespace: str) -> None:
    pod = {"containers": [{"name": "driver", "image": "x"}], "restartPolicy": "Never"}
    jobs = [{"name": "driver", "replicas": 1, "template": {"spec": {"template": {"spec": pod}}}}]
    apply(
        namespace,
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
         "metadata": {"name": "run-a7", "labels": labelled("a7")},
         "spec": {"replicatedJobs": jobs}},
        configmap(object_name("a7")),
    )  # fmt: skip
    made = get("jobset", namespace, name="run-a7")
    assert made is not None
    uid = made["metadata"]["uid"]
    owner = {"apiVersion": made["apiVersion"], "kind": "JobSet", "name": "run-a7", "uid": uid}
    for name, owners in (("run-a7", [owner]), ("of-another", [])):
        apply(namespace, {
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "ownerReferences": owners},
            "spec": {"clusterIP": "None", "selector": {"a": "b"}},
        })  # fmt: skip
    remove_leftovers(Run(namespace, "a7", JOBSETS, "run-a7", uid))
    assert left_of(namespace, "a7") == ["jobset.jobset.x-k8s.io/run-a7"]
    services = (get("services", namespace, selector="") or {"items": []})["items"]
    assert [each["metadata"]["name"] for each in services] == ["of-another"]
