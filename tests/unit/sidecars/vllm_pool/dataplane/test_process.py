"""How Envoy is started, and what is refused before it is."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tandem_common.errors import ExitCode, UserError
from vllm_pool.dataplane import config, files, process
from vllm_pool.dataplane.config import PlaneSettings

TOKEN = "a-secret"  # noqa: S105 - of a test


def test_the_command_names_the_bootstrap_and_no_secret(tmp_path: Path) -> None:
    command = process.command(tmp_path, PlaneSettings(run_dir=tmp_path, token=TOKEN, threads=3))
    assert str(tmp_path / config.BOOTSTRAP_FILE) in command
    assert command[command.index("--concurrency") + 1] == "3"
    assert not any(TOKEN in word for word in command)


def test_what_we_write_envoy_accepts(tmp_path: Path) -> None:
    files.write_plane(PlaneSettings(run_dir=tmp_path, token=TOKEN))
    process.validate(tmp_path)


@pytest.mark.parametrize("wrong", ["bootstrap", "routes"])
def test_what_envoy_refuses_is_said_in_its_words(tmp_path: Path, wrong: str) -> None:
    files.write_plane(PlaneSettings(run_dir=tmp_path, token=TOKEN))
    path = tmp_path / f"{wrong}.json"
    document = json.loads(path.read_text())
    if wrong == "bootstrap":
        document["static_resources"]["clusters"][0]["lb_policy"] = "BEST"
    else:
        routes = document["resources"][0]["virtual_hosts"][0]["routes"]
        routes[-1]["route"]["cluster"] = "BEST"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="BEST") as refused:
        process.validate(tmp_path)
    assert refused.value.code == ExitCode.USAGE
    assert TOKEN not in str(refused.value)


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    files.write_plane(PlaneSettings(run_dir=tmp_path))
    before = sorted(tmp_path.iterdir())
    process.validate(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_port_that_somebody_listens_on_is_refused(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = PlaneSettings(run_dir=tmp_path, listen_port=other.getsockname()[1])
        with pytest.raises(UserError, match="is taken") as refused:
            process.check_port(taken)
        assert refused.value.code == ExitCode.PRECONDITION
    process.check_port(taken)


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    elsewhere = PlaneSettings(run_dir=tmp_path, listen_host="192.0.2.1")
    with pytest.raises(UserError, match=r"192\.0\.2\.1:8000 is not an address of this machine"):
        process.check_port(elsewhere)
