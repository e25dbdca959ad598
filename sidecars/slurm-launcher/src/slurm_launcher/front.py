"""The variables of NeMo RL's own tool as a configuration of ours.

Its users register pools by shell functions, which leave variables behind (`JUDGE_MODEL`,
`JUDGE_REPLICAS`, …). `scripts/slurm/pool_config.sh` has the same functions; here the variables
become what a `pools.yaml` says, and are checked as that is.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from tandem_common.errors import ExitCode, Problem, UserError

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
#: A field of a pool, and the ending of its variable.
_FIELDS: Final = {
    "model": "MODEL",
    "container": "CONTAINER",
    "python": "VLLM_PYTHON",
    "replicas": "REPLICAS",
    "tensor_parallel_size": "TENSOR_PARALLEL_SIZE",
    "pipeline_parallel_size": "PIPELINE_PARALLEL_SIZE",
    "data_parallel_size": "DATA_PARALLEL_SIZE",
    "spares": "SPARES",
    "min_ready": "MIN_READY",
    "port": "LB_PORT",
    "placeholder": "URL_PLACEHOLDER",
    "served_model_name": "SERVED_MODEL_NAME",
    "vllm_port": "VLLM_PORT",
    "startup_seconds": "STARTUP_TIMEOUT",
    "max_restarts": "MAX_RESTARTS",
}
_REQUIRED: Final = (
    "model", "container", "python", "replicas", "tensor_parallel_size", "port", "placeholder",
)  # fmt: skip
#: Characters for which a command needs a shell.
_SHELL: Final = re.compile(r"[;&|<>()`$\n*?\[\]~#]")
_DEFAULT_ROOT: Final = "/lustre"


def configuration(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what the variables say, in the form of a `pools.yaml`.

    Raises:
        UserError: Variables are missing or name what is not there; with every problem.
    """
    problems: list[Problem] = []

    def needed(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            problems.append(Problem(f"{name} is not set", "set it before the submission"))
        return value

    pools = [_pool(name, environment, problems) for name in needed("EXTERNAL_VLLM_POOLS").split()]
    gpus = environment.get("GPUS_PER_NODE", "4")
    said: dict[str, Any] = {
        "version": 1,
        "name": environment.get("JOB_NAME", "nemo-rl"),
        "shared_root": environment.get("EXTERNAL_VLLM_SHARED_ROOT", _DEFAULT_ROOT),
        "log_dir": needed("BASE_LOG_DIR"),
        "training": {
            "nodes": needed("NUM_ACTOR_NODES"),
            "gpus_per_node": gpus,
            "command": _command(needed("COMMAND")),
            "dedicated_ray_head": environment.get("DEDICATED_RAY_HEAD", "0") == "1",
        },
        "components": [{"name": "pools", "gpus_per_node": gpus}],
        "pools": pools,
    }
    for field, name in (("container", "CONTAINER"), ("mounts", "MOUNTS")):
        if value := environment.get(name):
            said["training"][field] = value.split(",") if field == "mounts" else value
    if nodes := environment.get("NUM_EXTERNAL_SERVICE_NODES"):
        said["components"][0]["nodes"] = nodes
    slurm = {
        field: environment[name]
        for field, name in (
            ("partition", "PARTITION"), ("account", "ACCOUNT"), ("time", "TIME"), ("qos", "QOS"),
        )
        if environment.get(name)
    }  # fmt: skip
    if slurm:
        said["slurm"] = slurm
    if problems:
        raise UserError(problems, ExitCode.USAGE)
    return said


def _pool(name: str, environment: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        problems.append(
            Problem(f"EXTERNAL_VLLM_POOLS names {name!r}", "A-Z first, then A-Z, 0-9 and '_'")
        )
        return {}
    pool: dict[str, Any] = {"name": name}
    for field, ending in _FIELDS.items():
        value = environment.get(f"{name}_{ending}", "")
        if value:
            pool[field] = value
        elif field in _REQUIRED:
            problems.append(
                Problem(f"{name}_{ending} is not set", f"register the pool {name} with it")
            )
    pool["shared_paths"] = _lines(environment.get(f"{name}_SHARED_PATHS", ""))
    pool["args"] = _lines(environment.get(f"{name}_VLLM_ARGS", ""))
    pool["env"] = {}
    for line in _lines(environment.get(f"{name}_ENV_VARS", "")):
        key, separator, value = line.partition("=")
        if not separator:
            problems.append(Problem(f"{name}_ENV_VARS: {line!r} has no '='", "write NAME=VALUE"))
        pool["env"][key] = value
    return pool


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _command(text: str) -> list[str]:
    """Return a command as arguments: of a shell only where it is written for one."""
    if not text:
        return []
    if _SHELL.search(text):
        return ["bash", "-c", text]
    try:
        return shlex.split(text)
    except ValueError:
        return ["bash", "-c", text]
