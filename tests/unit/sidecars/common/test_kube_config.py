"""Where the API server is, and who we are."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_common.errors import UserError
from tandem_common.kube.config import (
    ClusterConfig,
    TokenSource,
    from_kubeconfig,
    in_cluster,
    load_config,
)


def account(folder: Path) -> Path:
    for name, text in (("token", "t-1\n"), ("ca.crt", "CA"), ("namespace", "runs\n")):
        (folder / name).write_text(text)
    return folder


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_is_known_by_its_account(tmp_path: Path) -> None:
    config = in_cluster(POD, account(tmp_path))
    assert config.server == "https://10.0.0.1:443"
    assert config.namespace == "runs"
    assert TokenSource(config).get() == "t-1"


def test_an_address_of_ipv6_gets_its_brackets(tmp_path: Path) -> None:
    found = in_cluster({**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account(tmp_path))
    assert found.server == "https://[fd00::1]:443"


def test_all_that_a_pod_lacks_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        in_cluster({}, tmp_path)
    assert len(caught.value.problems) == 3


def test_a_token_that_the_kubelet_renews_is_read_again(tmp_path: Path) -> None:
    # The kubelet swaps a link to a folder, so the file is another one.
    for number in (1, 2):
        (tmp_path / f"data-{number}").mkdir()
        (tmp_path / f"data-{number}" / "token").write_text(f"t-{number}")
    link = tmp_path / "..data"
    link.symlink_to("data-1")
    source = TokenSource(ClusterConfig("http://x", token_file=tmp_path / "..data" / "token"))
    assert source.get() == "t-1"
    fresh = tmp_path / "..new"
    fresh.symlink_to("data-2")
    fresh.rename(link)
    assert source.get() == "t-2"


def test_a_token_changed_in_place_with_the_same_time_is_found_when_forced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t-1")
    seen = file.stat()
    source = TokenSource(ClusterConfig("http://x", token_file=file))
    assert source.get() == "t-1"
    file.write_text("t-2")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert source.get() == "t-1"
    assert source.get(force=True) == "t-2"


def test_a_token_file_that_vanishes_leaves_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t-1")
    source = TokenSource(ClusterConfig("http://x", token_file=file))
    source.get()
    file.unlink()
    assert source.get() == "t-1"


def kubeconfig(folder: Path, user: dict[str, Any], namespace: str = "runs") -> Path:
    context = {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": context}],
                "clusters": [{"name": "c", "cluster": {
                    "server": "https://api:6443/",
                    "certificate-authority-data": base64.b64encode(b"CA").decode()}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )  # fmt: skip
    return path


def test_a_kubeconfig_gives_server_authority_certificate_and_namespace(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(b"KEY")
    data = base64.b64encode(b"CERT").decode()
    path = kubeconfig(tmp_path, {"client-certificate-data": data, "client-key": "key.pem"})
    found = from_kubeconfig(path)
    assert (found.server, found.namespace) == ("https://api:6443", "runs")
    assert (found.ca_data, found.client_cert, found.client_key) == (b"CA", b"CERT", b"KEY")


def test_secrets_are_not_in_what_is_printed() -> None:
    text = repr(ClusterConfig("https://api", token="s3cret", client_key=b"s3cret"))  # noqa: S106
    assert "s3cret" not in text


def test_a_kubeconfig_without_a_namespace_means_none_and_not_default(tmp_path: Path) -> None:
    assert from_kubeconfig(kubeconfig(tmp_path, {}, namespace="")).namespace == ""


def test_a_login_by_a_helper_program_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)logs in by exec.*kubectl create token"):
        from_kubeconfig(kubeconfig(tmp_path, {"exec": {"command": "aws"}}))


@pytest.mark.parametrize("text", ["", "[]", "a: [", "current-context: y"])
def test_what_is_no_kubeconfig_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UserError, match=str(path)):
        from_kubeconfig(path)


def test_kubeconfig_wins_over_the_pod_and_home(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {})
    assert load_config({**POD, "KUBECONFIG": str(path)}).server == "https://api:6443"


def test_without_any_cluster_every_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"KUBECONFIG.*pod.*\.kube/config"):
        load_config({"HOME": str(tmp_path)})
