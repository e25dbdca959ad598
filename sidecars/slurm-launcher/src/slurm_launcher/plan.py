"""All that a submission is going to be, as plain values: what `plan` prints and `submit` does."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from slurm_launcher import checks, placement, ports
from slurm_launcher.config import Component, Config, Pool
from slurm_launcher.placement import Place

#: Variables that every program needs, whoever submits; all others have to be named.
BASIC_ENV: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH",
    "PYTHONPATH",
)  # fmt: skip
#: Stands in a plan for the node that only the allocation knows.
BALANCER_HOST: Final = "<first node of training>"


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """One component of the heterogeneous job.

    Attributes:
        index: Its number (`--het-group`).
        sbatch: Its arguments of sbatch.
    """

    index: int
    name: str
    nodes: int
    gpus_per_node: int
    sbatch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One place of a pool, with all that is started there.

    Attributes:
        id: Id of the replica at the balancer; the place's for spares.
        spare: Whether nothing runs there at first.
        port: Port of the server.
        agent_port: Port of the agent's metrics and health.
        ray_ports: First and last port of its private Ray; None for one node.
        command: Command line of the server, without its container.
    """

    id: str
    spare: bool
    place: Place
    port: int
    agent_port: int
    ray_ports: tuple[int, int] | None
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool."""

    name: str
    component: int
    served_model_name: str
    min_ready: int
    port: int
    metrics_port: int
    url: str
    placeholder: str
    replicas: tuple[ReplicaPlan, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole submission."""

    name: str
    components: tuple[ComponentPlan, ...]
    pools: tuple[PoolPlan, ...]
    #: The training's command with addresses in the place of placeholders.
    command: tuple[str, ...]
    #: Names of the variables that reach the job.
    exported: tuple[str, ...]
    files: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return asdict(self)


def build(config: Config) -> Plan:
    """Return the plan of a configuration that `checks` has found right."""
    pools: list[PoolPlan] = []
    parts = [_training(config)]
    for number, component in enumerate(checks.components(config), start=1):
        mine = checks.pools_of(config, component)
        places = placement.place(mine, component.gpus_per_node, number)
        parts.append(_component(config, component, number, placement.nodes_of(places)))
        pools += [_pool(pool, [each for each in places if each.pool == pool.name]) for pool in mine]
    order = {pool.name: number for number, pool in enumerate(config.pools)}
    pools.sort(key=lambda pool: order[pool.name])
    urls = {pool.placeholder: pool.url for pool in pools}
    return Plan(
        name=config.name,
        components=tuple(parts),
        pools=tuple(pools),
        command=injected(config.training.command, urls),
        exported=exported(config),
        files=files(config.log_dir, "<job>"),
    )


def injected(command: tuple[str, ...], urls: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with addresses in the place of placeholders, argument by argument.

    The arguments reach the program as they are: no shell reads them, whatever is in them.
    """
    found = []
    for word in command:
        for placeholder, url in urls.items():
            word = word.replace(placeholder, url)  # noqa: PLW2901 - one after the other
        found.append(word)
    return tuple(found)


def exported(config: Config) -> tuple[str, ...]:
    """Return the names of the variables that reach the job: a token of somebody else does not."""
    named = [*config.training.pass_env]
    for pool in config.pools:
        named += pool.pass_env
    return tuple(dict.fromkeys([*BASIC_ENV, *named]))


def files(log_dir: str, job: str) -> dict[str, str]:
    """Return the files of a job by what they are."""
    folder = PurePosixPath(log_dir) / f"{job}-logs"
    return {
        "folder": str(folder),
        "state": str(folder / "state.json"),
        "reason": str(folder / "reason.json"),
    }


def _training(config: Config) -> ComponentPlan:
    words = [
        f"--job-name={config.name}",
        *_asked(config, config.slurm.partition, config.training.nodes),
        f"--gres=gpu:{config.training.gpus_per_node}",
        f"--output={PurePosixPath(config.log_dir) / '%x-%j.out'}",
        f"--signal=B:USR1@{config.slurm.signal_seconds}",
        "--requeue" if config.slurm.requeue else "--no-requeue",
        # Names only: sbatch cuts values at commas.
        f"--export={','.join(exported(config))}",
        *config.slurm.extra,
    ]
    return ComponentPlan(
        0, "training", config.training.nodes, config.training.gpus_per_node, tuple(words)
    )


def _component(config: Config, component: Component, number: int, nodes: int) -> ComponentPlan:
    words = [
        *_asked(config, component.partition or config.slurm.partition, nodes),
        f"--gres=gpu:{component.gpus_per_node}",
        *component.extra,
    ]
    return ComponentPlan(number, component.name, nodes, component.gpus_per_node, tuple(words))


def _asked(config: Config, partition: str | None, nodes: int) -> list[str]:
    slurm = config.slurm
    words = [f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive"]
    # Of all components or of none: an option of a later one would hold for the first one too.
    words += ["--no-kill"] if config.no_kill else []
    named = {"partition": partition, "account": slurm.account, "qos": slurm.qos, "time": slurm.time}
    return words + [f"--{name}={value}" for name, value in named.items() if value is not None]


def _pool(pool: Pool, places: list[Place]) -> PoolPlan:
    url = f"http://{BALANCER_HOST}:{pool.port}"
    return PoolPlan(
        name=pool.name,
        component=places[0].component,
        served_model_name=pool.served,
        min_ready=pool.replicas if pool.min_ready is None else pool.min_ready,
        port=pool.port,
        metrics_port=pool.port + ports.METRICS_OFFSET,
        url=url,
        placeholder=pool.placeholder,
        replicas=tuple(_replica(pool, place) for place in places),
    )


def _replica(pool: Pool, place: Place) -> ReplicaPlan:
    port = pool.vllm_port + place.slot
    many = place.nodes > 1
    band = ports.private_ray(place.slot)
    spare = place.index >= pool.replicas
    number = place.index - pool.replicas if spare else place.index
    return ReplicaPlan(
        id=f"{pool.name.lower()}-{'spare-' if spare else ''}{number}",
        spare=spare,
        place=place,
        port=port,
        agent_port=port + ports.AGENT_OFFSET,
        ray_ports=(band.first, band.last) if many else None,
        command=server(pool, port, many=many),
    )


def server(pool: Pool, port: int, *, many: bool) -> tuple[str, ...]:
    """Return the command line of a replica's server.

    Args:
        pool: The pool.
        port: Port of the server.
        many: Whether it has several nodes, and so a private Ray.
    """
    sizes = {
        "tensor": pool.tensor_parallel_size,
        "pipeline": pool.pipeline_parallel_size,
        "data": pool.data_parallel_size,
    }
    words = [
        pool.python, "-m", "vllm.entrypoints.openai.api_server", "--model", pool.model,
        "--served-model-name", pool.served, "--host", "0.0.0.0", "--port", str(port),  # noqa: S104
    ]  # fmt: skip
    for name, size in sizes.items():
        if size > 1:
            words += [f"--{name}-parallel-size", str(size)]
    if many:
        words += ["--distributed-executor-backend", "ray"]
    return (*words, *pool.args)


def sbatch(plan: Plan, script: str) -> list[str]:
    """Return the command line that submits a plan's script."""
    words = ["sbatch", "--parsable"]
    for number, part in enumerate(plan.components):
        words += [*([":"] if number else []), *part.sbatch]
    return [*words, script]


def script(config_file: str, python: str = sys.executable) -> str:
    """Return the batch script: it starts the launcher, and has no value of the configuration."""
    argv = [python, "-m", "slurm_launcher", "run-in-allocation", "--config", config_file]
    words = " ".join(map(shlex.quote, argv))
    return "\n".join(
        [
            "#!/bin/bash",
            "# The configuration is in a file: nothing of it is read by this shell.",
            f"exec {words}",
            "",
        ]
    )


def text(plan: Plan) -> str:
    """Return a plan for people."""
    lines = [f"job {plan.name}: {len(plan.components)} components"]
    for part in plan.components:
        lines.append(f"  {part.index} {part.name}: {part.nodes} nodes of {part.gpus_per_node} GPUs")
        lines.append(f"      sbatch {' '.join(part.sbatch)}")
    for pool in plan.pools:
        running = [each for each in pool.replicas if not each.spare]
        lines.append(
            f"pool {pool.name}: {len(running)} replicas"
            f" + {len(pool.replicas) - len(running)} spares, ready from {pool.min_ready} on, "
            f"{pool.url} in the place of {pool.placeholder}"
        )
        lines += [f"  {_place(each)}" for each in pool.replicas]
        lines.append(f"      {json.dumps(list(running[0].command))}")
    lines.append(f"training: {json.dumps(list(plan.command))}")
    lines.append(f"environment: {', '.join(plan.exported)}; no other variable reaches the job")
    lines += [f"{what}: {path}" for what, path in plan.files.items()]
    return "\n".join(lines)


def _place(each: ReplicaPlan) -> str:
    place = each.place
    last = place.first_node + place.nodes - 1
    nodes = f"node {place.first_node}" if place.nodes == 1 else f"nodes {place.first_node}-{last}"
    gpus = f", GPUs {place.slot * place.gpus_per_node}" if place.nodes == 1 else ", all GPUs"
    if place.nodes == 1:
        gpus += f"-{place.slot * place.gpus_per_node + place.gpus_per_node - 1}"
    ray = f", Ray {each.ray_ports[0]}-{each.ray_ports[1]}" if each.ray_ports else ""
    return (
        f"{each.id}: component {place.component} {nodes}{gpus}, port {each.port}, "
        f"agent {each.agent_port}{ray}"
    )
