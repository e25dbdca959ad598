"""The endpoint registry as a component of a variant with a RayJob."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import pytest

from endpoint_registry.settings import RegistrySettings, SidecarSettings
from tandem.golden import FOLDER as GOLDEN
from tandem.paths import ROOT
from tandem.policy import cluster_of, faults_of, pods_of
from tandem.render import OVERLAYS, kustomize, render_variant
from tandem.yamls import dump, load_all

Object = dict[str, Any]
S = TypeVar("S", bound=RegistrySettings)

#: What the kubelet puts in, which a rendering cannot know.
KUBELET = {"status.podIP": "10.0.0.7", "metadata.uid": "pod-uid"}


def render(folder: Path, variant: str, suffix: str = "") -> list[Object]:
    """Return a variant with the component, renamed by a suffix."""
    components = ROOT / "kustomize" / "components"
    names = ("crd-schema", "endpoint-registry/rayjob", "images/development")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "namespace": "tandem",
        "resources": [os.path.relpath(OVERLAYS / variant, folder.resolve())],
        "components": [os.path.relpath(components / name, folder.resolve()) for name in names],
        **({"nameSuffix": suffix} if suffix else {}),
    }  # fmt: skip
    (folder / "kustomization.yaml").write_text(dump(overlay))
    return kustomize(folder)


def one(objects: list[Object], kind: str) -> Object:
    [found] = [obj for obj in objects if obj["kind"] == kind]
    return found


def environment(metadata: Object, container: Object) -> dict[str, str]:
    """Return what a container sees."""
    seen: dict[str, str] = {}
    for env in container["env"]:
        if "value" in env:
            value = str(env["value"])
            for name, known in seen.items():
                value = value.replace(f"$({name})", known)
        else:
            path = env["valueFrom"]["fieldRef"]["fieldPath"]
            what, _, key = path.removeprefix("metadata.").partition("[")
            if path in KUBELET:
                value = KUBELET[path]
            else:
                value = metadata[what][key.strip("[]'")] if key else metadata[what]
        seen[env["name"]] = value
    return seen


def settings(kind: type[S], job: Object, pod: int, monkeypatch: pytest.MonkeyPatch) -> S:
    """Return the program's own reading of one rendered container."""
    found = pods_of(job)[pod]
    metadata = {**found.metadata, "namespace": job["metadata"]["namespace"]}
    for name in list(os.environ):
        if name.startswith("ENDPOINT_REGISTRY_"):
            monkeypatch.delenv(name)
    for name, value in environment(metadata, found.spec["initContainers"][0]).items():
        monkeypatch.setenv(name, value)
    return kind.load()


@pytest.mark.parametrize("variant", ["monolithic-rayjob", "prod-monolithic-rayjob"])
@pytest.mark.parametrize("suffix", ["", "-x2"])
def test_head_and_workers_meet_in_the_registry_of_their_run(
    variant: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = one(render(tmp_path, variant, suffix), "RayJob")
    head = settings(SidecarSettings, job, 0, monkeypatch)
    worker = settings(RegistrySettings, job, 1, monkeypatch)
    assert head.run_object == worker.run_object == f"RayJob/monolithic{suffix}"
    assert head.job_id == worker.job_id == job["metadata"]["labels"]["tandem.dev/run-id"]
    assert head.namespace == worker.namespace == "tandem"
    assert (head.key, head.urls) == ("ray_dashboard", ("http://10.0.0.7:8265",))
    waiting = pods_of(job)[1].spec["initContainers"][0]
    assert waiting["command"][-2:] == ["wait", head.key]
    assert "restartPolicy" not in waiting


def test_ray_stays_the_first_container_and_has_no_token(tmp_path: Path) -> None:
    for pod in pods_of(one(render(tmp_path, "monolithic-rayjob"), "RayJob")):
        [ray] = pod.spec["containers"]
        assert ray["name"].startswith("ray-"), "KubeRay takes the first one for Ray"
        assert "registry-token" not in {mount["name"] for mount in ray["volumeMounts"]}
        assert pod.spec["automountServiceAccountToken"] is False
        [ours] = pod.spec["initContainers"]
        assert ours["volumeMounts"][0]["name"] == "registry-token"
        assert ours["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_head_is_no_less_ready_for_the_registry(tmp_path: Path) -> None:
    head = pods_of(one(render(tmp_path, "monolithic-rayjob"), "RayJob"))[0]
    assert "readinessProbe" not in head.spec["initContainers"][0]
    assert "livenessProbe" in head.spec["initContainers"][0]


@pytest.mark.parametrize("suffix", ["", "-x2"])
def test_the_account_may_use_this_runs_registry_and_nothing_else(
    suffix: str, tmp_path: Path
) -> None:
    objects = render(tmp_path, "monolithic-rayjob", suffix)
    account = one(objects, "ServiceAccount")["metadata"]["name"]
    assert {pod.spec["serviceAccountName"] for pod in pods_of(one(objects, "RayJob"))} == {account}
    rules = {rule["resources"][0]: rule for rule in one(objects, "Role")["rules"]}
    assert rules["configmaps"]["resourceNames"] == ["nemo-rl-endpoints-monolithic"]
    assert set(rules["configmaps"]["verbs"]) == {"get", "list", "watch", "patch", "delete"}
    assert rules["rayjobs"]["resourceNames"] == [f"monolithic{suffix}"]
    assert rules["rayjobs"]["verbs"] == ["get"]
    roles = set()
    for binding in (obj for obj in objects if obj["kind"] == "RoleBinding"):
        assert [subject["name"] for subject in binding["subjects"]] == [account]
        roles.add(binding["roleRef"]["name"])
    # The second one is the platform's: what is created has no name yet.
    assert roles == {one(objects, "Role")["metadata"]["name"], "endpoint-registry"}


def test_it_keeps_the_house_rules(tmp_path: Path) -> None:
    cluster = cluster_of(load_all((GOLDEN / "rl-platform" / "prod.yaml").read_text()))
    objects = render(tmp_path, "monolithic-rayjob")
    assert [str(fault) for fault in faults_of(objects, cluster)] == []


def test_without_it_a_variant_is_as_it_was(tmp_path: Path) -> None:
    before = one(render_variant("monolithic-rayjob"), "RayJob")
    after = one(render(tmp_path, "monolithic-rayjob"), "RayJob")
    for pod in (*pods_of(before), *pods_of(after)):
        for field in ("initContainers", "serviceAccountName", "volumes"):
            pod.spec.pop(field, None)
        pod.metadata.pop("annotations", None)
    assert after == before
