"""The typed configuration, `pools.yaml`: its fields and what each may be.

Only what a field can be by itself is said here; what fields mean together is in `checks`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_POOL: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DIGITS: Final = re.compile(r"0|[1-9][0-9]*")
_TIME: Final = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+(:\d{2}){0,2}|UNLIMITED|infinite")
_LONGEST_TEXT: Final = 100_000


def _integer(value: Any) -> Any:
    """Take integers, and texts that are written as one: no sign, no zeros in front.

    A shell reads 010 as 8 and 08 as an error; neither is meant by whoever writes it.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not a whole number")  # noqa: TRY004 - pydantic collects ValueError
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise ValueError("not a whole number without sign and without zeros in front")
        return int(value[:20])
    return value


def _pool(value: str) -> str:
    if not _POOL.fullmatch(value) or len(value) > 40:  # noqa: PLR2004 - a part of variables' names
        raise ValueError("not a pool's name (A-Z first, then A-Z, 0-9 and '_', at most 40 long)")
    return value


def _job(value: str) -> str:
    if not _JOB.fullmatch(value):
        raise ValueError("not a name (letters, digits, '-', '_' and '.', at most 63 long)")
    return value


def _absolute(value: str) -> str:
    if not PurePosixPath(value).is_absolute():
        raise ValueError("not an absolute path")
    if "\n" in value or "\0" in value:
        raise ValueError("a path with a line's end or a NUL in it")
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    wrong = [name for name in value if not _VARIABLE.fullmatch(name)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no name of an environment variable")
    nul = [name for name, text in value.items() if "\0" in text]
    if nul:
        raise ValueError(f"{', '.join(nul)}: a NUL cannot be in an environment variable")
    return value


def _variable_names(value: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [name for name in value if not _VARIABLE.fullmatch(name)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no name of an environment variable")
    return value


def _words(value: tuple[str, ...]) -> tuple[str, ...]:
    if any("\0" in word for word in value):
        raise ValueError("a NUL cannot be in an argument")
    return value


def _time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise ValueError("not a time limit of Slurm's (minutes, H:MM:SS or D-H:MM:SS)")
    return value


def _text(value: Any) -> Any:
    # YAML reads 1.0, yes and 08 as something else than the text that stands there.
    if not isinstance(value, str):
        raise ValueError("not a text: put it in quotes")  # noqa: TRY004 - as above
    return value


Text = Annotated[str, BeforeValidator(_text), Field(min_length=1, max_length=_LONGEST_TEXT)]
Count = Annotated[int, BeforeValidator(_integer), Field(ge=1, le=4096)]
CountOrNone = Annotated[int, BeforeValidator(_integer), Field(ge=0, le=4096)]
Port = Annotated[int, BeforeValidator(_integer), Field(ge=1024, le=65535)]
Seconds = Annotated[int, BeforeValidator(_integer), Field(ge=1, le=604800)]
AbsolutePath = Annotated[str, BeforeValidator(_text), AfterValidator(_absolute)]
Words = Annotated[tuple[Text, ...], AfterValidator(_words)]
Variables = Annotated[dict[str, Text], AfterValidator(_variables)]
VariableNames = Annotated[tuple[str, ...], AfterValidator(_variable_names)]
PoolName = Annotated[str, AfterValidator(_pool)]
JobName = Annotated[str, AfterValidator(_job)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Slurm(_Model):
    """What the job asks Slurm for, besides nodes."""

    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    time: Annotated[Text, AfterValidator(_time)] | None = None
    requeue: bool = True
    #: Seconds before the time limit at which the job is drained (`--signal=B:USR1@…`).
    signal_seconds: Seconds = 300
    #: Further arguments of every component, as sbatch takes them.
    extra: Words = ()


class Component(_Model):
    """Nodes of one kind that pools share: one component of the heterogeneous job."""

    name: JobName
    gpus_per_node: Count
    #: To be compared with what the pools need; counted when left out.
    nodes: Count | None = None
    partition: Text | None = None
    extra: Words = ()


class Training(_Model):
    """The training itself: component 0."""

    nodes: Count
    gpus_per_node: Count
    command: Annotated[Words, Field(min_length=1)]
    container: Text | None = None
    mounts: Words = ()
    workdir: AbsolutePath | None = None
    env: Variables = Field(default_factory=dict)
    #: Variables of whoever submits that the training gets too; no other is passed on.
    pass_env: VariableNames = ()
    #: Whether it starts when all pools are ready, or at once and waits itself (`wait-ready`).
    start: Literal["when-ready", "at-once"] = "when-ready"
    #: One node of the training is Ray's head alone and has no worker.
    dedicated_ray_head: bool = False
    #: Nodes that the trainer itself expects to work on; counted when left out.
    worker_nodes: Count | None = None


class Pool(_Model):
    """A judge: replicas of one model behind one address."""

    name: PoolName
    component: JobName | None = None
    model: Text
    #: Name under which it is asked for; the Gym's configuration must use the same one.
    served_model_name: Text | None = None
    container: Text | None = None
    mounts: Words = ()
    python: Text = "python3"
    replicas: Count
    #: Replicas that may be lost before the pool counts as not ready.
    min_ready: CountOrNone | None = None
    #: Places kept free, to which a replica moves when its node is lost.
    spares: CountOrNone = 0
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    data_parallel_size: Count = 1
    #: Port of the balancer, on the first node of the training.
    port: Port
    #: Port of a replica's server; a node's second replica has the next one.
    vllm_port: Port = 8000
    #: Text that stands for the pool's address in the training's command.
    placeholder: Text
    startup_seconds: Seconds = 3600
    max_restarts: CountOrNone = 5
    shared_paths: tuple[AbsolutePath, ...] = ()
    env: Variables = Field(default_factory=dict)
    #: Variables of whoever submits that the replicas get too, such as HF_TOKEN.
    pass_env: VariableNames = ()
    args: Words = ()

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def served(self) -> str:
        """Name under which the model is asked for."""
        return self.served_model_name or self.model


class Config(_Model):
    """The whole file."""

    version: Literal[1]
    name: JobName = "tandem"
    #: What all nodes see at the same path.
    shared_root: AbsolutePath = "/lustre"
    log_dir: AbsolutePath
    #: Whether a lost node ends the job; if not, lost replicas move to spares.
    no_kill: bool = True
    #: How long a replica does without a sign of the launcher before it ends the job.
    lease_seconds: Seconds = 60
    slurm: Slurm = Slurm()
    training: Training
    components: tuple[Component, ...] = ()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
