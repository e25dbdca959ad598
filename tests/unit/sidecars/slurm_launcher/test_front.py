"""Pools by shell functions, under the names of NeMo RL's own tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.paths import ROOT

FRONT = ROOT / "scripts" / "slurm" / "pool_config.sh"
REGISTER = """
register_external_vllm_pool JUDGE --model /lustre/m --container /lustre/c.sqsh --python python3 \
  --replicas 2 --tensor-parallel-size 8 --lb-port 9213 --url-placeholder __JUDGE_URL__"""
SETTINGS = {
    "BASE_LOG_DIR": "/lustre/logs", "NUM_ACTOR_NODES": "2", "GPUS_PER_NODE": "8",
    "COMMAND": "python run.py url=__JUDGE_URL__",
}  # fmt: skip


def shell(script: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run lines of a shell that has sourced the front."""
    return subprocess.run(
        ["bash", "-u", "-c", f'source "$0"\n{script}', str(FRONT)], capture_output=True, text=True,
        check=False, timeout=60,
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path),
            "SLURM_LAUNCHER_PYTHON": sys.executable, **SETTINGS, **changes,
        },
    )  # fmt: skip


def plan(script: str, **changes: str) -> Any:
    """Return the plan of what a shell has registered."""
    ran = shell(
        f'{script}\n"$SLURM_LAUNCHER_PYTHON" -m slurm_launcher plan --from-environment '
        "--output json", **changes,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_pools_that_are_registered_are_planned() -> None:
    said = plan(
        REGISTER
        + "\nexternal_vllm_pool_env JUDGE HF_HOME=/lustre/hf 'ODD=a,b $(x) *'"
        + '\nexternal_vllm_pool_args JUDGE --max-model-len 32768 --json \'{"a": "b c"}\''
    )
    (pool,) = said["pools"]
    assert pool["replicas"][0]["command"][-4:] == [
        "--max-model-len", "32768", "--json", '{"a": "b c"}'
    ]  # fmt: skip
    assert said["components"][1]["nodes"] == 2
    assert said["command"] == ["python", "run.py", "url=http://<first node of training>:9213"]


def test_a_command_that_is_written_for_a_shell_is_given_to_one() -> None:
    said = plan(REGISTER, COMMAND="cd /x && python run.py url=__JUDGE_URL__")
    assert said["command"][:2] == ["bash", "-c"]


def test_validation_is_quiet_when_all_is_right() -> None:
    ran = shell(f"{REGISTER}\nvalidate_external_vllm_submission")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ("register_external_vllm_pool judge --model x", "not 'judge'"),
        ("register_external_vllm_pool", "not ''"),
        (f"{REGISTER}\n{REGISTER.strip()}", "registered already"),
        ("register_external_vllm_pool A --model", "--model needs a value"),
        ("register_external_vllm_pool A --model ''", "--model needs a value"),
        ("register_external_vllm_pool A --modle x", "no option --modle"),
        ("external_vllm_pool_env A X=1", "no pool A is registered"),
        (f"{REGISTER}\nexternal_vllm_pool_env JUDGE 'NOT VALID=1'", "is no NAME=VALUE"),
        (f"{REGISTER}\nexternal_vllm_pool_args JUDGE $'a\\nb'", "line's end"),
    ],
)
def test_a_wrong_call_returns_2_with_a_message_and_does_not_end_the_shell(
    script: str, part: str
) -> None:
    ran = shell(f"{script}\necho code=$?")
    assert "code=2" in ran.stdout
    assert part in ran.stderr


@pytest.mark.parametrize(
    ("changes", "register", "parts"),
    [
        ({}, "--replicas 08", ["without zeros in front"]),
        ({}, "--lb-port 09213", ["without zeros in front"]),
        ({}, "--vllm-port 1200", ["lies in"]),
        ({"COMMAND": "", "BASE_LOG_DIR": ""}, "", ["COMMAND is not set", "BASE_LOG_DIR is not"]),
        ({"NUM_EXTERNAL_SERVICE_NODES": "5"}, "", ["nodes=5, its pools take 2"]),
        ({"GPUS_PER_NODE": "3"}, "", ["leave GPUs that nobody can use"]),
    ],
)
def test_what_the_original_lets_pass_is_refused(
    changes: dict[str, str], register: str, parts: list[str]
) -> None:
    ran = shell(f"{REGISTER} {register}\nvalidate_external_vllm_submission", **changes)
    assert ran.returncode == 2
    for part in parts:
        assert part in ran.stderr


def test_nothing_of_an_earlier_registration_is_left() -> None:
    said = plan(REGISTER, JUDGE_VLLM_ARGS="--stale", JUDGE_SHARED_PATHS="/home")
    assert "--stale" not in said["pools"][0]["replicas"][0]["command"]


def test_the_front_is_one_file_to_source() -> None:
    assert FRONT.read_text().startswith("# shellcheck shell=bash")
    assert Path(FRONT).stat().st_mode & 0o111 == 0
