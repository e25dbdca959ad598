"""The settings of a replica's agent; the README's table is made from this class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from tandem_common.errors import Problem
from tandem_common.settings import (
    Port,
    PositiveSeconds,
    Seconds,
    Settings,
    SettingsConfigDict,
    Words,
    setting,
)
from vllm_pool.core.membership import ID

_TARGET: Final = re.compile(r"http://[^\s/?#@]+:\d+/?")
_MANAGER: Final = re.compile(r"(dns\+http|https?)://[^\s/?#@]+/?")


def _id(value: str) -> str:
    if not ID.fullmatch(value):
        raise ValueError("not an id (letters, digits, '-', '.', '_', at most 128, not at the ends)")
    return value


def _target(value: str) -> str:
    if value and not _TARGET.fullmatch(value):
        raise ValueError("not an address such as http://host:port")
    return value.rstrip("/")


def _managers(value: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [each for each in value if not _MANAGER.fullmatch(each)]
    if wrong or not value or len(set(value)) != len(value):
        what = f"{wrong[0]!r} is not one" if wrong else "none is given, or one twice"
        raise ValueError(f"addresses such as http://host:port or dns+http://name:port: {what}")
    return tuple(each.rstrip("/") for each in value)


class ReplicaSettings(Settings):
    """What an agent needs to know."""

    model_config = SettingsConfigDict(env_prefix="VLLM_POOL_REPLICA_")

    id: Annotated[str, AfterValidator(_id)] = setting(
        "Id of this replica, the same after a relaunch: keys stay with it.", limit="an id"
    )
    manager: Annotated[Words, AfterValidator(_managers)] = setting(
        "Balancers of the pool; with `dns+http://name:port` every address of the name is one.",
        limit="addresses, parted by commas",
    )
    target: Annotated[str, AfterValidator(_target)] = setting(
        "Where the server listens; by default 127.0.0.1 and the `--port` of the command.",
        default="",
        limit="an address such as http://127.0.0.1:8000",
    )
    advertise: Annotated[str, AfterValidator(_target)] = setting(
        "Where the balancers reach the server; by default this host's address as seen from there.",
        default="",
        limit="an address such as http://10.0.0.7:8000",
    )
    token_file: Path | None = setting(
        "File with the pool's bearer token; read anew for each request.", default=None,
        limit="a path",
    )  # fmt: skip
    model: str = setting("Model that the canary asks for; by default the first one.", default="")
    weight_version: str = setting("Version of the weights that it starts with.", default="")
    lease_seconds: PositiveSeconds = setting(
        "How long a registration holds; it is renewed three times in it.", default=15.0
    )
    startup_seconds: PositiveSeconds = setting(
        "How long the server may take until its first canary passes.", default=1800.0
    )
    probe_seconds: PositiveSeconds = setting(
        "Time between two canaries of a server that is ready.", default=5.0
    )
    startup_probe_seconds: PositiveSeconds = setting(
        "Time between two looks at a server that is not ready.", default=0.25
    )
    canary_seconds: PositiveSeconds = setting("How long one token may take.", default=10.0)
    first_canary_seconds: PositiveSeconds = setting(
        "How long the first token may take: kernels may still be compiled.", default=120.0
    )
    fail_after: Annotated[int, Field(ge=1)] = setting(
        "Bad looks in a row after which it is not ready.", default=2
    )
    pass_after: Annotated[int, Field(ge=1)] = setting(
        "Good looks in a row after which it is ready again.", default=2
    )
    hung_after: Annotated[int, Field(ge=0)] = setting(
        "Late canaries in a row without any token, after which the server is killed; 0: never.",
        default=4,
    )
    request_seconds: PositiveSeconds = setting("How long a manager may take.", default=5.0)
    resolve_seconds: PositiveSeconds = setting(
        "Time between two look-ups of `dns+http` names.", default=5.0
    )
    drain_seconds: Seconds = setting(
        "How long the requests under way may take when the end is asked for.", default=600.0
    )
    grace_seconds: Seconds = setting(
        "How long the server may take to end, before it is killed.", default=30.0
    )
    progress_seconds: PositiveSeconds = setting(
        "Time between two lines that say what is waited for.", default=30.0
    )
    health_host: str = setting(
        "Address of /healthz, /readyz and /metrics.",
        default="0.0.0.0",  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    )
    health_port: Port = setting("Port of /healthz, /readyz and /metrics; 0: any.", default=8087)
    control_port: Port = setting(
        "Port on 127.0.0.1 for POST /drain, for a preStop hook; 0: none.", default=0
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Least important event that is logged.", default="info"
    )

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield what is wrong between fields: a request must not outlive what it renews."""
        request, lease = values.get("request_seconds"), values.get("lease_seconds")
        if request is not None and lease is not None and request > lease:
            yield Problem(
                f"{cls.variable('request_seconds')}={request:g} is more than "
                f"{cls.variable('lease_seconds')}={lease:g}",
                f"set {cls.variable('request_seconds')} to at most {lease:g}",
            )
