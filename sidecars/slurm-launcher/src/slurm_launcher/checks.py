"""What is wrong with a configuration as a whole: all of it at once, before anything starts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml
from pydantic import ValidationError

from slurm_launcher import placement, ports
from slurm_launcher.config import Component, Config, Pool
from tandem_common.errors import ExitCode, Problem, UserError

#: Name of the component that pools get when none is named.
DEFAULT_COMPONENT: Final = "pools"
#: Arguments of vLLM that the launcher gives itself; a second one would win silently.
MANAGED: Final = (
    "--host", "--port", "--model", "--served-model-name", "--tensor-parallel-size", "-tp",
    "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
    "--distributed-executor-backend", "--api-key", "--root-path", "--uds",
)  # fmt: skip
#: Variables that the launcher, Slurm or Ray set for a replica.
MANAGED_ENV: Final = re.compile(r"(SLURM_|RAY_|VLLM_POOL_|TANDEM_|PYXIS_)\w*|CUDA_VISIBLE_DEVICES")
#: Arguments of sbatch that are the launcher's own.
MANAGED_SBATCH: Final = (
    "--nodes", "-N", "--ntasks", "-n", "--ntasks-per-node", "--no-kill", "-k", "--signal",
    "--requeue", "--no-requeue", "--job-name", "-J", "--output", "-o", "--error", "-e",
    "--export", "--wrap", "--array", "-a", "--gres", "--gpus", "-G", "--gpus-per-node",
    "--time", "-t", "--partition", "-p", "--account", "-A", "--qos", "-q", "--het-group",
)  # fmt: skip
#: What an address or a path may be made of, and what stands for itself all the same.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._:/-]*")
_MARKED: Final = re.compile(r"__[A-Za-z0-9_]+__")


def load(text: str, *, resolve: Callable[[str], str] = os.path.realpath) -> Config:
    """Return the configuration in a text of YAML.

    Args:
        text: The file's content.
        resolve: What a path really is, symbolic links followed.

    Raises:
        UserError: With every problem there is; exit code 2.
    """
    try:
        said = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(Problem(f"no YAML: {error}", "mend it"), ExitCode.USAGE) from None
    if not isinstance(said, dict):
        raise UserError(
            Problem("the file holds no mapping", "see `slurm-launcher example`"), ExitCode.USAGE
        )
    try:
        config = Config.model_validate(said)
    except ValidationError as error:
        problems = [_field(each) for each in error.errors()]
        # What can be told of the rest is told too.
        problems += _of_the_rest(said, error)
        raise UserError(_unique(problems), ExitCode.USAGE) from None
    if problems := list(check(config, resolve)):
        raise UserError(_unique(problems), ExitCode.USAGE)
    return config


def _unique(problems: Sequence[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _field(error: Any) -> Problem:
    where = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return Problem(f"{where} is missing", "set it")
    if error["type"] == "extra_forbidden":
        return Problem(f"{where}: there is no such field", "remove it, or mend its name")
    shown = repr(error["input"])
    shown = shown if len(shown) <= 80 else f"{shown[:77]}…"  # noqa: PLR2004 - a line
    return Problem(f"{where}={shown}: {message}", "mend the value")


def _of_the_rest(said: Mapping[str, Any], error: ValidationError) -> list[Problem]:
    """Return the problems among the pools that are right by themselves."""
    bad = {each["loc"][1] for each in error.errors() if each["loc"][:1] == ("pools",)
           and len(each["loc"]) > 1}  # fmt: skip
    rows = said.get("pools")
    pools = []
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        if number not in bad:
            try:
                pools.append(Pool.model_validate(row))
            except ValidationError:
                continue
    return [*_names(pools), *_ports(pools), *_placeholders(pools)]


def check(config: Config, resolve: Callable[[str], str]) -> Iterator[Problem]:
    """Yield all that is wrong between fields that are right by themselves."""
    yield from _names(config.pools)
    yield from _ports(config.pools)
    yield from _placeholders(config.pools)
    yield from _command(config)
    yield from _training(config)
    yield from _components(config)
    yield from _paths(config, resolve)
    for pool in config.pools:
        yield from _pool(pool)
    yield from _slurm(config)


def components(config: Config) -> tuple[Component, ...]:
    """Return the components of the pools; one for all when none is named."""
    if config.components:
        return config.components
    return (Component(name=DEFAULT_COMPONENT, gpus_per_node=config.training.gpus_per_node),)


def pools_of(config: Config, component: Component) -> list[Pool]:
    """Return the pools of a component, in the order of the file."""
    first = components(config)[0].name
    return [pool for pool in config.pools if (pool.component or first) == component.name]


def _twice(values: Sequence[str]) -> list[str]:
    return sorted(value for value, count in Counter(values).items() if count > 1)


def _names(pools: Sequence[Pool]) -> Iterator[Problem]:
    for name in _twice([pool.name for pool in pools]):
        yield Problem(f"pool {name} is there twice", "give each pool a name of its own")


def _ports(pools: Sequence[Pool]) -> Iterator[Problem]:
    taken: dict[int, str] = {}
    for pool in pools:
        uses = {
            pool.port: f"port of {pool.name}",
            pool.port + ports.METRICS_OFFSET: f"metrics port of {pool.name} (port + 500)",
        }
        for port, what in uses.items():
            for band in ports.reserved(port):
                yield Problem(
                    f"{what}: {port} lies in {band}", "choose one outside, such as 9213 or 12013"
                )
            if port in taken:
                yield Problem(f"{what}: {port} is the {taken[port]} too", "choose another one")
            taken[port] = what
        for band in ports.reserved(pool.vllm_port):
            yield Problem(
                f"vllm_port of {pool.name}: {pool.vllm_port} lies in {band}",
                "choose one outside, such as 8000",
            )


def _placeholders(pools: Sequence[Pool]) -> Iterator[Problem]:
    texts = [pool.placeholder for pool in pools]
    for text in _twice(texts):
        yield Problem(f"placeholder {text!r} is of two pools", "give each its own")
    for one in sorted(set(texts)):
        if _ADDRESS.fullmatch(one) and not _MARKED.fullmatch(one):
            yield Problem(
                f"placeholder {one!r} could be a part of an address or a path",
                "put something into it that no address has, such as __JUDGE_URL__ or {judge}",
            )
        for other in sorted(set(texts)):
            if one != other and one in other:
                yield Problem(
                    f"placeholder {one!r} is a part of {other!r}",
                    "choose two of which none is in the other",
                )


def _command(config: Config) -> Iterator[Problem]:
    words = config.training.command
    for pool in config.pools:
        if not any(pool.placeholder in word for word in words):
            yield Problem(
                f"training.command has no {pool.placeholder!r}, so nobody asks pool {pool.name}",
                "put it where the address belongs, or remove the pool",
            )


def _training(config: Config) -> Iterator[Problem]:
    training = config.training
    if config.no_kill and training.nodes < 2:  # noqa: PLR2004 - see the message
        yield Problem(
            "training.nodes=1: with one node Slurm ends the whole job when any node is lost, "
            "whatever --no-kill says",
            "take at least 2 nodes, or set no_kill: false",
        )
    workers = training.nodes - training.dedicated_ray_head
    if workers < 1:
        yield Problem(
            f"training.nodes={training.nodes}: with dedicated_ray_head no node is left to work",
            "take one more",
        )
    elif training.worker_nodes is not None and training.worker_nodes != workers:
        head = " and one is Ray's head" if training.dedicated_ray_head else ""
        yield Problem(
            f"training.worker_nodes={training.worker_nodes}: of {training.nodes} nodes"
            f"{head}, so {workers} work",
            f"set training.nodes to {training.worker_nodes + training.dedicated_ray_head}",
        )


def _components(config: Config) -> Iterator[Problem]:
    every = components(config)
    names = [each.name for each in every]
    for name in _twice(names):
        yield Problem(f"component {name} is there twice", "give each a name of its own")
    for pool in config.pools:
        if pool.component is not None and pool.component not in names:
            yield Problem(
                f"pool {pool.name} wants component {pool.component!r}",
                f"one of: {', '.join(names)}; or add it to `components`",
            )
    for component in every:
        yield from _nodes(component, pools_of(config, component))
    yield from _vllm_ports(config, every)


def _nodes(component: Component, pools: Sequence[Pool]) -> Iterator[Problem]:
    """Yield what is wrong with how pools lie on the nodes of a component."""
    if not pools:
        yield Problem(f"component {component.name} has no pool", "remove it, or give it one")
    fit = True
    for pool in pools:
        how = placement.shape(pool, component.gpus_per_node)
        if how is None:
            fit = False
            yield Problem(
                f"pool {pool.name}: {pool.gpus} GPUs a replica (TP {pool.tensor_parallel_size}"
                f" x PP {pool.pipeline_parallel_size} x DP {pool.data_parallel_size}) on nodes"
                f" of {component.gpus_per_node} leave GPUs that nobody can use",
                "take a multiple or a divisor of the node's GPUs",
            )
        elif how.per_node > ports.MOST_PLACES:
            fit = False
            yield Problem(
                f"pool {pool.name}: {how.per_node} replicas on a node",
                f"at most {ports.MOST_PLACES}",
            )
    if fit and component.nodes is not None:
        need = placement.nodes_of(placement.place(pools, component.gpus_per_node, 1))
        if need != component.nodes:
            yield Problem(
                f"component {component.name}: nodes={component.nodes}, its pools take {need}",
                f"set it to {need}, or leave it out",
            )


def _vllm_ports(config: Config, every: Sequence[Component]) -> Iterator[Problem]:
    """Yield where a node's replicas would run into reserved ports, or into an agent's."""
    for component in every:
        for pool in pools_of(config, component):
            how = placement.shape(pool, component.gpus_per_node)
            if how is None:
                continue
            last = pool.vllm_port + how.per_node - 1
            for port in (last, last + ports.AGENT_OFFSET):
                for band in ports.reserved(port):
                    yield Problem(
                        f"pool {pool.name}: its replicas on a node have ports "
                        f"{pool.vllm_port}-{last} and their agents those {ports.AGENT_OFFSET} "
                        f"higher, and {port} lies in {band}",
                        "choose another vllm_port",
                    )


def _paths(config: Config, resolve: Callable[[str], str]) -> Iterator[Problem]:
    root = config.shared_root
    real_root = PurePosixPath(resolve(root))
    wanted = [("log_dir", config.log_dir)]
    for pool in config.pools:
        if pool.model.startswith("/"):
            wanted.append((f"model of {pool.name}", pool.model))
        wanted += [(f"shared path of {pool.name}", path) for path in pool.shared_paths]
    for what, path in wanted:
        real = PurePosixPath(resolve(path))
        if real != real_root and real_root not in real.parents:
            really = "" if str(real) == path else f" (really {real})"
            yield Problem(
                f"{what}: {path}{really} is not under {root}, which all nodes see",
                "put it there, or set shared_root",
            )


def _pool(pool: Pool) -> Iterator[Problem]:
    if pool.min_ready is not None and pool.min_ready > pool.replicas:
        yield Problem(
            f"pool {pool.name}: min_ready={pool.min_ready} of {pool.replicas} replicas",
            f"at most {pool.replicas}",
        )
    for word in pool.args:
        flag = word.split("=", 1)[0].replace("_", "-")
        if flag in MANAGED:
            yield Problem(
                f"pool {pool.name}: {flag} in args is the launcher's own",
                "set the pool's field instead",
            )
    for name in pool.env:
        if MANAGED_ENV.fullmatch(name):
            yield Problem(f"pool {pool.name}: {name} in env is set by the launcher", "remove it")


def _slurm(config: Config) -> Iterator[Problem]:
    every = [("slurm", config.slurm.extra)]
    every += [(f"component {each.name}", each.extra) for each in config.components]
    for where, words in every:
        for word in words:
            flag = word.split("=", 1)[0]
            if flag in MANAGED_SBATCH:
                yield Problem(
                    f"{where}: {flag} in extra is the launcher's own", "set the field instead"
                )


def read(path: Path) -> Config:
    """Return the configuration in a file.

    Raises:
        UserError: It cannot be read, or with every problem there is.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            Problem(f"{path}: {error}", "name a file that can be read"), ExitCode.USAGE
        ) from None
    return load(text)
