"""The control plane of the tests is the real thing, can be had twice, and goes without a trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.paths import BIN
from tandem_host import processes
from tandem_host.control_plane import ControlPlane
from tandem_host.probes import Api, ApiError

pytestmark = pytest.mark.api_server

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def test_rbac_is_on_and_accounts_are_made(api_server: ControlPlane) -> None:
    found = api_server.api.get("/api/v1/namespaces/default/serviceaccounts/default")
    assert found["metadata"]["name"] == "default"
    account = api_server.api.call(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    review = api_server.api.call(
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"kind": "TokenReview", "spec": {"token": account["status"]["token"]}},
    )
    assert review["status"]["user"]["username"] == "system:serviceaccount:default:default"
    access = api_server.api.call(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "system:serviceaccount:default:default",
                "resourceAttributes": {"verb": "delete", "resource": "pods", "namespace": "x"},
            },
        },
    )
    assert access["status"]["allowed"] is False


def test_watches_merges_and_applies_reach_the_server(api_server: ControlPlane) -> None:
    api = api_server.api
    path = f"{CONFIG_MAPS}/watched"
    api.apply(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}})
    api.merge(path, {"data": {"a": "1"}})
    events = api.watch(f"{CONFIG_MAPS}?fieldSelector=metadata.name%3Dwatched", 1)
    assert [event["object"]["data"] for event in events] == [{"a": "1"}]
    assert api.get(f"{CONFIG_MAPS}/never") is None
    with pytest.raises(ApiError) as caught:
        api.call("POST", CONFIG_MAPS, {"kind": "ConfigMap", "metadata": {"name": "NOT VALID"}})
    assert caught.value.status == 422


def test_two_run_side_by_side_and_end_without_a_trace(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    with ControlPlane(tmp_path, scheduler=True) as second:
        assert second.server != api_server.server
        marked = processes.of_cluster(tmp_path, processes.TEST_MARK)
        assert {p.program for p in marked} == {
            "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
        }  # fmt: skip
        second.api.call(
            "POST", CONFIG_MAPS, {"kind": "ConfigMap", "metadata": {"name": "only-here"}}
        )
        assert api_server.api.get(f"{CONFIG_MAPS}/only-here") is None
        # Whoever ends a host cluster must not take these for a part of it.
        assert processes.of_cluster(tmp_path) == []
    assert processes.of_cluster(tmp_path, processes.TEST_MARK) == []
    with pytest.raises(OSError, match="refused"):
        Api(second.settings).get("/version")


def test_missing_binaries_are_named(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "state", bin_folder=tmp_path)
    with pytest.raises(UserError) as caught:
        plane.start()
    assert "etcd, kube-apiserver, kube-controller-manager" in str(caught.value)
    assert caught.value.code == ExitCode.PRECONDITION
    assert not (tmp_path / "state").exists()


def test_a_process_that_ends_is_reported_with_its_words_and_nothing_stays(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "bin"
    shutil.copytree(BIN, folder, symlinks=True, copy_function=os.symlink)
    (folder / "kube-apiserver").unlink()
    (folder / "kube-apiserver").write_text("#!/bin/sh\necho no port for me\nexit 7\n")
    (folder / "kube-apiserver").chmod(0o755)
    plane = ControlPlane(tmp_path / "state", bin_folder=folder)
    with pytest.raises(UserError) as caught:
        plane.start()
    assert "kube-apiserver ended with code 7" in str(caught.value)
    assert "no port for me" in str(caught.value)
    assert processes.of_cluster(tmp_path / "state", processes.TEST_MARK) == []
