"""Starting, following and ending a run, at the real API server; no node and no operator.

The API server's fixture has no scheduler either, which is one of the cases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml

from peer_watcher.convert import RUN_ID_LABEL
from tandem import cluster, crds
from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import ROOT
from tandem.process import run
from tandem.run import demo, follow, preflight, verdict
from tandem.run.end import end_lingering
from tandem.run.kube import CannotTell, asker, get, kubectl
from tandem.run.needs import lacks, needs_of
from tandem.run.shapes import Run
from tandem.run.start import make_room, start
from tandem_common.kube.resources import RAYJOBS
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

PROD = "prod-monolithic-rayjob"
CLUSTER = "run-x"


@pytest.fixture(scope="module", autouse=True)
def platform(kubeconfig: Path) -> None:
    assert kubeconfig.is_file()
    crds.apply(crds.sources("default"))
    run(["helmfile", "--selector", "name=rl-platform", "sync"], timeout=120, cwd=ROOT)


def create(obj: dict[str, Any]) -> dict[str, Any]:
    said = run(["kubectl", "create", "-o", "json", "-f", "-"], timeout=30, stdin=json.dumps(obj))
    made: dict[str, Any] = json.loads(said)
    return made


def set_status(kind: str, namespace: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl(
        "patch", kind, name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch
    )


def pod(namespace: str, **spec: Any) -> dict[str, Any]:
    labels = {"ray.io/cluster": CLUSTER, "ray.io/node-type": "head", RUN_ID_LABEL: "run"}
    containers = [{"name": "ray-head", "image": "localhost/tandem/no-such-image:dev"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "head", "namespace": namespace, "labels": labels},
        "spec": {"containers": containers, **spec},
    }


def rayjob(namespace: str) -> Run:
    """A RayJob of which the operator (there is none here) has made a cluster."""
    template = {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}}
    made = create(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": "run", "namespace": namespace, "labels": {RUN_ID_LABEL: "run"}},
            "spec": {
                "entrypoint": "true",
                "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": template}},
            },
        }
    )
    set_status(
        "rayjob", namespace, "run",
        {"jobDeploymentStatus": "Initializing", "rayClusterName": CLUSTER},
    )  # fmt: skip
    return Run(namespace, "run", RAYJOBS, "run", made["metadata"]["uid"])


def test_a_variant_that_the_cluster_cannot_place_is_refused_and_not_applied() -> None:
    with pytest.raises(UserError) as refused:
        start(PROD)
    assert refused.value.code == ExitCode.PRECONDITION
    said = {problem.what for problem in refused.value.problems}
    assert {
        "scheduler kai-scheduler is missing",
        "queue low-prio is missing",
        "image pull Secret nvcr-secret is missing in namespace tandem",
    } <= said
    # The platform is there: what it brings is not called missing.
    assert not [what for what in said if "ServiceAccount" in what or "serves no kind" in what]
    assert get("rayjobs.ray.io", "tandem", name="monolithic") is None


def test_what_is_there_is_found_and_what_is_not_is_none() -> None:
    ask = asker()
    assert (ask("/api/v1/namespaces/tandem") or {})["kind"] == "Namespace"
    assert ask("/api/v1/namespaces/no-such-namespace") is None


def test_who_may_not_look_is_not_refused(
    api_server: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    token = kubectl("create", "token", "default", "-n", namespace).strip()
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(CannotTell):
        asker(str(path))("/apis/scheduling.k8s.io/v1/priorityclasses/none")
    obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": namespace},
        "spec": {"template": {"spec": pod(namespace, serviceAccountName="none")["spec"]}},
    }
    assert lacks(needs_of([obj]), asker(str(path))) == []
    assert [problem.what for problem in lacks(needs_of([obj]), asker())] == [
        f"ServiceAccount none is missing in namespace {namespace}"
    ]


def test_an_api_server_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(CannotTell):
        asker(str(tmp_path / "missing"))("/version")


def wait_for_image(namespace: str) -> None:
    # No kubelet would end it.
    create(pod(namespace, nodeName="gone", terminationGracePeriodSeconds=0))
    waiting = {"reason": "ImagePullBackOff", "message": "connection refused"}
    container = {
        "name": "ray-head", "image": "localhost/tandem/no-such-image:dev", "imageID": "",
        "ready": False, "restartCount": 0, "state": {"waiting": waiting},
    }  # fmt: skip
    set_status("pod", namespace, "head", {"phase": "Pending", "containerStatuses": [container]})


def test_a_wrong_image_is_the_verdict_and_the_run_is_ended(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = rayjob(namespace)
    wait_for_image(namespace)
    found = follow.follow(followed, timeout=60)
    assert found.reason == "ImagePullBackOff"
    assert get("rayjobs.ray.io", namespace, name="run") is not None, "following ends nothing"

    assert end_lingering(followed, found)
    assert get("rayjobs.ray.io", namespace, name="run") is None
    lines = [line for line in capsys.readouterr().err.splitlines() if "ended run" in line]
    assert len(lines) == 1
    # The way is free; there is nothing to end twice, and a newer run of that name is left alone.
    assert not end_lingering(followed, found)
    newer = rayjob(namespace)
    assert not end_lingering(followed, found)
    assert (get("rayjobs.ray.io", namespace, name="run") or {})["metadata"]["uid"] == newer.uid


def test_a_former_run_makes_room_only_when_it_cannot_succeed(namespace: str) -> None:
    rayjob(namespace)
    with pytest.raises(UserError, match="still going"):
        make_room(namespace, "run")
    wait_for_image(namespace)
    make_room(namespace, "run")
    assert get("rayjobs.ray.io", namespace, name="run") is None


def test_a_run_that_the_operator_has_ended_is_left_to_it(namespace: str) -> None:
    followed = rayjob(namespace)
    set_status(
        "rayjob", namespace, "run",
        {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "exit code 7"},
    )  # fmt: skip
    found = follow.follow(followed, timeout=60)
    assert found.exit_code == 7
    assert not end_lingering(followed, found)
    assert get("rayjobs.ray.io", namespace, name="run") is not None


def test_the_time_that_a_run_is_suspended_does_not_count(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = rayjob(namespace)
    suspend = json.dumps({"spec": {"suspend": True}})
    kubectl("patch", "rayjob", "run", "-n", namespace, "--type=merge", "-p", suspend)
    failed = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": "exit code 7"}

    @contextmanager
    def failing_later() -> Iterator[None]:
        # After twice the time that a run that is not suspended would be followed.
        later = Timer(12, set_status, ("rayjob", namespace, "run", failed))
        later.start()
        yield
        later.join()

    with failing_later():
        assert follow.follow(followed, timeout=6).exit_code == 7
    # Not for ever, though.
    again = dict.fromkeys(failed)
    set_status("rayjob", namespace, "run", {**again, "jobDeploymentStatus": "Suspended"})
    monkeypatch.setattr(follow, "_QUEUED_SECONDS", 0.0)
    with failing_later(), pytest.raises(UserError, match="no verdict after"):
        follow.follow(followed, timeout=6)


def test_a_pod_without_a_scheduler_is_told_of_and_given_up(
    namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "UNSEEN_SECONDS", 0.5)
    monkeypatch.setattr(verdict, "UNSEEN_PATIENCE_SECONDS", 2.0)
    followed = rayjob(namespace)
    create(pod(namespace, schedulerName="kai-scheduler"))
    found = follow.follow(followed, timeout=60)
    assert found.reason == "NoScheduler"
    assert "kai-scheduler" in found.message
    assert "no scheduler has taken it" in capsys.readouterr().err


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler, and without any node."""
    before = os.environ["KUBECONFIG"]
    with ControlPlane(tmp_path, scheduler=True) as plane:
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        crds.apply(crds.sources("default"))
        yield plane
    os.environ["KUBECONFIG"] = before


def test_the_real_schedulers_words_are_told(
    scheduled: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scheduled.kubeconfig.is_file()
    monkeypatch.setattr(follow, "PENDING_SECONDS", 0.0)
    monkeypatch.setattr(verdict, "UNSEEN_PATIENCE_SECONDS", 3.0)
    followed = rayjob("default")
    create(pod("default"))
    # Told of, but no reason to give the run up: there may be room later.
    with pytest.raises(UserError, match="no verdict after"):
        follow.follow(followed, timeout=8)
    told = [line for line in capsys.readouterr().err.splitlines() if "pending: head:" in line]
    assert len(told) == 1
    assert "no nodes available" in told[0]


@pytest.mark.parametrize("failing", ["cluster", "sync"])
def test_events_and_pods_are_kept_when_a_phase_fails(
    failing: str,
    api_server: ControlPlane,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(pod(namespace))

    def fake_phase(name: str, *_: object, **__: object) -> None:
        if name.endswith(failing):
            raise UserError(Problem(f"{name} failed", "read the log"), ExitCode.FAILURE)

    monkeypatch.setattr(demo, "ARTIFACTS", tmp_path)
    monkeypatch.setattr(demo, "KUBECONFIG", api_server.kubeconfig)
    monkeypatch.setattr(demo, "stream", fake_phase)
    monkeypatch.setattr("tandem.platform.sync", lambda *_, **__: fake_phase("sync"))
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    # A cluster of the user's that the demo does not use.
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setattr("sys.argv", ["demo"])
    with pytest.raises(UserError) as failed:
        demo.main()
    assert failed.value.code == ExitCode.FAILURE
    [logs] = tmp_path.glob("*/logs")
    assert namespace in (logs / "pods.txt").read_text()
    assert "no-such-image" in (logs / "pods-described.txt").read_text()
    assert "could not be collected" not in (logs / "events.txt").read_text()
    assert "logs/events.txt" in failed.value.problems[-1].fix


def test_a_cluster_that_is_not_local_is_refused_before_the_build(
    api_server: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}}
    create(node)
    try:
        monkeypatch.setattr(preflight, "_makers", list)
        # This machine may have a host cluster up, which is another reason.
        monkeypatch.setattr(cluster.Existing, "foresee", lambda _: [])
        config = str(api_server.kubeconfig)
        _, lacking = preflight.look("monolithic-rayjob", "existing", config)
        assert ["node theirs without label" in problem.what for problem in lacking] == [True]
    finally:
        kubectl("delete", "node", "theirs")
