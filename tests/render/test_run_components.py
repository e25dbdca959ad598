"""Components that a variant takes on: the watchers, and the accounts of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from peer_watcher.settings import WatcherSettings
from support.fake_disagg import COMPONENTS, render, render_renamed
from tandem.golden import FOLDER as GOLDEN
from tandem.policy import cluster_of, faults_of, pods_of
from tandem.render import OVERLAYS, kustomize
from tandem.yamls import dump, load_all

Object = dict[str, Any]

WATCHERS = ["peer-watcher/rayclusters", "run-accounts", "images/development"]


def one(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def environment(job: Object) -> dict[str, str]:
    """Return what the container sees, fields of its pod put in as a kubelet would."""
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "namespace": job["metadata"]["namespace"]}
    seen: dict[str, str] = {}
    for env in template["spec"]["containers"][0]["env"]:
        if "value" in env:
            value = str(env["value"])
            for name, known in seen.items():
                value = value.replace(f"$({name})", known)
            seen[env["name"]] = value
            continue
        path = env["valueFrom"]["fieldRef"]["fieldPath"]
        what, _, key = path.removeprefix("metadata.").partition("[")
        seen[env["name"]] = metadata[what][key.strip("[]'")] if key else metadata[what]
    return seen


def settings(job: Object, monkeypatch: pytest.MonkeyPatch) -> WatcherSettings:
    """Return the program's own reading of a rendered Job."""
    for name in list(os.environ):
        if name.startswith("PEER_WATCHER_"):
            monkeypatch.delenv(name)
    for name, value in environment(job).items():
        if name.startswith("PEER_WATCHER_"):
            monkeypatch.setenv(name, value)
    return WatcherSettings.load()


def test_each_side_has_a_watcher_that_its_program_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(tmp_path, WATCHERS)
    for side, peer in (("rl", "gym"), ("gym", "rl")):
        found = settings(one(objects, "Job", f"peer-watcher-{side}"), monkeypatch)
        members = [str(ref) for ref in found.members.all]
        assert members == [f"RayCluster/{side}", f"RayCluster/{peer}", "Job/driver"]
        assert found.members.registry == "nemo-rl-endpoints-run-7"
        assert found.namespace == "tandem"


def test_a_renamed_run_keeps_its_watchers_and_rights_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render_renamed(tmp_path, WATCHERS, "-x2")
    found = settings(one(objects, "Job", "peer-watcher-rl-x2"), monkeypatch)
    assert [str(ref) for ref in found.members.all] == [
        "RayCluster/rl-x2", "RayCluster/gym-x2", "Job/driver-x2",
    ]  # fmt: skip
    role = one(objects, "Role", "peer-watcher-rayclusters-x2")
    names = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"]}
    assert names["rayclusters"] == ["rl-x2", "gym-x2"]
    assert names["jobs"] == ["driver-x2"]
    head = one(objects, "RayCluster", "rl-x2")["spec"]["headGroupSpec"]
    assert head["template"]["spec"]["serviceAccountName"] == "run-rl-x2"
    binding = one(objects, "RoleBinding", "peer-watcher-rayclusters-x2")
    assert binding["roleRef"]["name"] == "peer-watcher-rayclusters-x2"
    assert binding["subjects"][0]["name"] == "peer-watcher-rayclusters-x2"
    # That one is the platform's, and keeps its name.
    platform = one(objects, "RoleBinding", "peer-watcher-rayclusters-platform-x2")
    assert platform["roleRef"]["name"] == "peer-watcher"


def test_no_right_of_a_run_goes_beyond_its_names(tmp_path: Path) -> None:
    roles = [obj for obj in render(tmp_path, WATCHERS) if obj["kind"] == "Role"]
    assert len(roles) == 2
    for role in roles:
        assert role["rules"]
        for rule in role["rules"]:
            assert rule["resourceNames"]
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
            assert "create" not in rule["verbs"], "a name says nothing about what is created"


def test_training_code_and_watcher_have_accounts_of_their_own(tmp_path: Path) -> None:
    objects = render(tmp_path, WATCHERS)
    accounts = {
        pod.where: pod.spec["serviceAccountName"] for obj in objects for pod in pods_of(obj)
    }
    assert accounts == {
        "RayCluster/rl head": "run-rl", "RayCluster/rl workers": "run-rl",
        "RayCluster/gym head": "run-gym",
        "Job/driver pod": "run-driver",
        "Job/peer-watcher-rl pod": "peer-watcher-rayclusters",
        "Job/peer-watcher-gym pod": "peer-watcher-rayclusters",
    }  # fmt: skip
    there = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    assert set(accounts.values()) <= there


def test_watchers_keep_the_house_rules(tmp_path: Path) -> None:
    cluster = cluster_of(load_all((GOLDEN / "rl-platform" / "prod.yaml").read_text()))
    watchers = [
        obj for obj in render(tmp_path, WATCHERS)
        if obj["kind"] == "ServiceAccount" or "watcher" in obj["metadata"]["name"]
    ]  # fmt: skip
    assert len([obj for obj in watchers if obj["kind"] == "Job"]) == 2
    assert [str(fault) for fault in faults_of(watchers, cluster)] == []


@pytest.mark.parametrize("variant", ["monolithic-rayjob"])
def test_a_variant_with_a_rayjob_takes_its_watcher_on(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "namespace": "tandem",
        "resources": [os.path.relpath(OVERLAYS / variant, tmp_path.resolve())],
        "components": [
            os.path.relpath(COMPONENTS / name, tmp_path.resolve())
            for name in ("peer-watcher/rayjob", "images/development")
        ],
    }  # fmt: skip
    (tmp_path / "kustomization.yaml").write_text(dump(overlay))
    objects = kustomize(tmp_path)
    found = settings(one(objects, "Job", "peer-watcher-rayjob"), monkeypatch)
    assert [str(ref) for ref in found.members.all] == ["RayJob/monolithic"]
    assert found.job_id == "monolithic"
    # Written by whoever is there: component endpoint-registry/rayjob, or nobody.
    assert found.members.registry == "nemo-rl-endpoints-monolithic"
    [role] = [obj for obj in objects if obj["kind"] == "Role"]
    names = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"]}
    assert names == {
        "configmaps": ["nemo-rl-endpoints-monolithic"], "rayjobs": ["monolithic"],
    }  # fmt: skip
