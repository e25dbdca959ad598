"""The settings of a pool's balancer; the README's table is made from this class."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.settings import (
    DnsLabel,
    DnsName,
    HttpUrl,
    Port,
    PositiveSeconds,
    Seconds,
    Settings,
    SettingsConfigDict,
    setting,
)
from vllm_pool.dataplane.config import MIB, PlaneSettings

#: A socket's path may have 107 bytes, and the names of ours have up to 16.
_LONGEST_RUN_DIR: Final = 90


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("not an address such as 0.0.0.0") from None


def _run_dir(value: Path) -> Path:
    if len(str(value.absolute())) > _LONGEST_RUN_DIR:
        raise ValueError(f"sockets are made in it: at most {_LONGEST_RUN_DIR} characters")
    return value.absolute()


class _PoolVariables(Settings):
    """The variables that begin with `VLLM_POOL_`, those of the agents left alone."""

    model_config = SettingsConfigDict(env_prefix="VLLM_POOL_")

    @classmethod
    def _unknown_variables(cls) -> Iterable[Problem]:
        # An agent and a balancer may share one environment, as they do on Slurm.
        return (
            problem
            for problem in super()._unknown_variables()
            if not problem.what.startswith("VLLM_POOL_REPLICA_")
        )


class PoolSettings(_PoolVariables):
    """What a balancer needs to know."""

    name: DnsLabel = setting("Name of the pool, for logs and metrics.", default="pool")
    listen_host: Annotated[str, AfterValidator(_address)] = setting(
        "Address that clients and replicas reach.", default="0.0.0.0", limit="an address"  # noqa: S104 - they are elsewhere
    )  # fmt: skip
    listen_port: Annotated[int, Field(ge=1, le=65535)] = setting(
        "Port that clients and replicas reach.", default=8000
    )
    run_dir: Annotated[Path, AfterValidator(_run_dir)] = setting(
        "Folder of this balancer alone: its files, its sockets, what it remembers.",
        default=Path(tempfile.gettempdir()) / "vllm-pool", limit="a short path",
    )  # fmt: skip
    token_file: Path | None = setting(
        "File with the bearer token that every request needs; none: anybody may ask.",
        default=None, limit="a path",
    )  # fmt: skip
    min_ready: Annotated[int, Field(ge=0)] = setting(
        "Replicas in rotation from which on the pool is ready.", default=1
    )
    members_file: Path | None = setting(
        "File that lists replicas, looked at twice a second.", default=None, limit="a path"
    )
    slices: DnsName | Literal[""] = setting(
        "Service whose EndpointSlices list replicas.", default="", limit="a Service's name"
    )
    slices_port: str = setting(
        "Name of the port in the slices; the first one when empty.", default=""
    )
    namespace: DnsLabel | Literal[""] = setting(
        "Namespace of that Service; the pod's own when empty.", default="", limit="a DNS label"
    )
    canary: bool = setting(
        "Ask each replica for one token; false for models that do not generate.", default=True
    )
    canary_model: str = setting(
        "Model that the canary asks for; by default the first one.", default=""
    )
    canary_interval_seconds: PositiveSeconds = setting("Time between two canaries.", default=2.0)
    canary_seconds: PositiveSeconds = setting("How long one token may take.", default=3.0)
    first_canary_seconds: PositiveSeconds = setting(
        "How long the first one may take: kernels may still be compiled.", default=60.0
    )
    health_interval_seconds: PositiveSeconds = setting(
        "Time between two looks at /health of a replica.", default=1.0
    )
    health_seconds: PositiveSeconds = setting("How long /health may take.", default=2.0)
    fail_after: Annotated[int, Field(ge=1)] = setting(
        "Bad answers in a row, of one kind, that take a replica out.", default=2
    )
    pass_after: Annotated[int, Field(ge=1)] = setting(
        "Good answers in a row, of each kind, that bring it back.", default=2
    )
    slow_start_seconds: Seconds = setting(
        "Time in which one that came back gets its whole share again.", default=10.0
    )
    forget_seconds: Seconds = setting(
        "How long a replica is still listed after its lease ran out.", default=300.0
    )
    refit_seconds: PositiveSeconds = setting(
        "How long a replica may take for one call of a refit.", default=900.0
    )
    idle_seconds: PositiveSeconds = setting(
        "Silence after which a request is given up; a generation has no other limit.",
        default=1800.0,
    )
    connect_seconds: PositiveSeconds = setting("How long a connection may take.", default=2.0)
    max_body_mib: Annotated[int, Field(ge=1, le=1024)] = setting(
        "Longest body of a request, in MiB.", default=64
    )
    retries: Annotated[int, Field(ge=0, le=10)] = setting(
        "Other replicas that a failed request is tried on.", default=4
    )
    threads: Annotated[int, Field(ge=1, le=64)] = setting("Threads of Envoy.", default=2)
    drain_seconds: Seconds = setting(
        "How long requests under way may take when the end is asked for.", default=600.0
    )
    drain_notice_seconds: Seconds = setting(
        "How long it goes on taking requests when the end is asked for, until all know.",
        default=2.0,
    )
    metrics_host: str = setting(
        "Address of /metrics, /healthz and /readyz.",
        default="0.0.0.0",  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    )
    metrics_port: Port = setting("Port of /metrics, /healthz and /readyz; 0: any.", default=8088)
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Least important event that is logged.", default="info"
    )

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield what is wrong between fields."""
        if values.get("namespace") and not values.get("slices"):
            yield Problem(
                f"{cls.variable('namespace')} is set without {cls.variable('slices')}",
                f"set {cls.variable('slices')} to the Service's name, or leave both out",
            )
        port = values.get("listen_port")
        if port is not None and port == values.get("metrics_port"):
            yield Problem(
                f"{cls.variable('metrics_port')}={port} is the port of the pool itself",
                "choose another one",
            )

    def plane(self) -> PlaneSettings:
        """Return what the data plane is built from.

        Raises:
            UserError: The token's file cannot be used.
        """
        return PlaneSettings(
            run_dir=self.run_dir,
            listen_host=self.listen_host,
            listen_port=self.listen_port,
            token=read_token(self.token_file, self.variable("token_file")),
            connect_seconds=self.connect_seconds,
            idle_seconds=self.idle_seconds,
            max_body_bytes=self.max_body_mib * MIB,
            retries=self.retries,
            threads=self.threads,
        )


class ClientSettings(_PoolVariables):
    """What a person's command needs to know."""

    url: HttpUrl = setting("Where the pool is.", default="http://127.0.0.1:8000")
    token_file: Path | None = setting(
        "File with the pool's bearer token.", default=None, limit="a path"
    )


def read_token(path: Path | None, shown: str) -> str | None:
    """Return the token in a file; None when there is no file to read.

    Args:
        path: The file.
        shown: Name of the setting, for messages.

    Raises:
        UserError: It cannot be read, or holds no token.
    """
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UserError(
            Problem(f"{shown}={path}: {error}", "name a file that can be read"),
            ExitCode.PRECONDITION,
        ) from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            Problem(f"{shown}={path}: it holds no token", "write one word of ASCII into it"),
            ExitCode.PRECONDITION,
        )
    return token
