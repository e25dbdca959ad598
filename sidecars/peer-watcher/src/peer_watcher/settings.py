"""The settings of a watcher; the README's table is made from this class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from peer_watcher.facts import DRIVER_KINDS, SIDE_KINDS, Members, Ref
from peer_watcher.policy import Limits
from tandem_common.errors import Problem
from tandem_common.settings import (
    DnsLabel,
    Port,
    PositiveSeconds,
    Seconds,
    Settings,
    SettingsConfigDict,
    setting,
)

#: Name of the registry's ConfigMap without the job id; NeMo RL's own client uses it too.
REGISTRY_PREFIX: Final = "nemo-rl-endpoints-"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DEFAULTS: Final = Limits()
#: Timers start anew after a gap of `settle_seconds`; ticks must be well within it.
_LEAST_SETTLE_SECONDS: Final = 5.0


def _ref(kinds: tuple[str, ...]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not value:
            return value
        ref = Ref.parse(value)
        if ref.kind not in kinds:
            raise ValueError(f"a {ref.kind} cannot be it")
        if not _NAME.fullmatch(ref.name):
            raise ValueError(f"{ref.name!r} is no name of an object")
        return value

    return check


_Side = Annotated[str, AfterValidator(_ref(SIDE_KINDS))]
_Driver = Annotated[str, AfterValidator(_ref(DRIVER_KINDS))]
_SIDE_LIMIT: Final = " or ".join(f"{kind}/name" for kind in SIDE_KINDS)
_DRIVER_LIMIT: Final = " or ".join(f"{kind}/name" for kind in DRIVER_KINDS)


class WatcherSettings(Settings):
    """What a watcher needs to know."""

    model_config = SettingsConfigDict(env_prefix="PEER_WATCHER_")

    job_id: DnsLabel = setting("Id of the run, as in the registry's name.")
    namespace: DnsLabel = setting("Namespace of the run.")
    self: _Side = setting("The side that this watcher belongs to.", limit=_SIDE_LIMIT)
    peer: _Side = setting(
        "The other side; empty for a run of one object.", default="", limit=_SIDE_LIMIT
    )
    driver: _Driver = setting(
        "The object whose end is the run's end; empty: every side that can end must.",
        default="",
        limit=_DRIVER_LIMIT,
    )
    head_job: str = setting(
        "replicatedJob of a JobSet side whose pod is the Ray head; empty: JobSet judges alone.",
        default="",
    )
    registry: bool = setting(
        "Whether the run has an endpoint registry (`error` and leases are read).", default=True
    )
    startup_seconds: PositiveSeconds = setting(
        "How long a side that is up waits for the other to be created, then to come up.",
        default=_DEFAULTS.startup_seconds,
    )
    replacement_seconds: PositiveSeconds = setting(
        "How long a lost head may take to come back where its loss is made up for.",
        default=_DEFAULTS.replacement_seconds,
    )
    not_ready_seconds: PositiveSeconds = setting(
        "How long a head may be not Ready.", default=_DEFAULTS.not_ready_seconds
    )
    replica_failure_seconds: PositiveSeconds = setting(
        "How long the operator may fail to make pods of a side that was up.",
        default=_DEFAULTS.replica_failure_seconds,
    )
    ended_early_seconds: Seconds = setting(
        "How long the driver may go on after a side has ended well.",
        default=_DEFAULTS.ended_early_seconds,
    )
    lease_grace_seconds: Seconds = setting(
        "How long a lease may be late, beyond its own time.", default=_DEFAULTS.lease_grace_seconds
    )
    staleness_seconds: PositiveSeconds = setting(
        "How long not everything may be known before an alert.",
        default=_DEFAULTS.staleness_seconds,
    )
    settle_seconds: Annotated[float, Field(ge=_LEAST_SETTLE_SECONDS, allow_inf_nan=False)] = (
        setting("Gap in what is known after which patience starts anew.",
                default=_DEFAULTS.settle_seconds)
    )  # fmt: skip
    teardown_seconds: PositiveSeconds = setting(
        "How long a teardown may take before the watcher ends with 1 (and is started again).",
        default=600.0,
    )
    poll_seconds: PositiveSeconds = setting(
        "Time between two looks at what may not be watched.", default=5.0
    )
    attempts: Annotated[int, Field(ge=1)] = setting(
        "Most attempts of one request to the API server.", default=10
    )
    observe_only: bool = setting("Decide and tell, but write and delete nothing.", default=False)
    health_host: str = setting(
        "Address of /healthz, /readyz and /metrics.",
        default="0.0.0.0",  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    )
    health_port: Port = setting("Port of /healthz, /readyz and /metrics.", default=8086)
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Least important event that is logged.", default="info"
    )

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield what is wrong between fields: the objects of the run, and the two times that meet.

        What is polled is as old as a poll; older than the gap after which patience starts anew,
        it would count as a lasting death what is only not looked at.
        """
        poll, settle = values.get("poll_seconds"), values.get("settle_seconds")
        if poll is not None and settle is not None and poll > settle:
            yield Problem(
                f"{cls.variable('poll_seconds')}={poll:g} is more than "
                f"{cls.variable('settle_seconds')}={settle:g}",
                f"set {cls.variable('poll_seconds')} to at most {settle:g}",
            )
        own, peer, driver = (values.get(name) for name in ("self", "peer", "driver"))
        if own and own == peer:
            yield Problem(
                f"{cls.variable('peer')}={peer!r} is this side itself",
                f"name the other side, or leave {cls.variable('peer')} empty",
            )
        if own and not peer and "peer" in values and not driver and own.startswith("RayCluster/"):
            yield Problem(
                f"{own} never ends by itself, and there is neither a peer nor a driver to watch",
                f"set {cls.variable('peer')} or {cls.variable('driver')}",
            )

    @property
    def members(self) -> Members:
        """The objects of the run."""
        return Members(
            Ref.parse(self.self),
            Ref.parse(self.peer) if self.peer else None,
            Ref.parse(self.driver) if self.driver else None,
            f"{REGISTRY_PREFIX}{self.job_id}" if self.registry else "",
        )

    @property
    def limits(self) -> Limits:
        """The patience of the policy."""
        return Limits(
            startup_seconds=self.startup_seconds,
            replacement_seconds=self.replacement_seconds,
            not_ready_seconds=self.not_ready_seconds,
            replica_failure_seconds=self.replica_failure_seconds,
            ended_early_seconds=self.ended_early_seconds,
            lease_grace_seconds=self.lease_grace_seconds,
            staleness_seconds=self.staleness_seconds,
            settle_seconds=self.settle_seconds,
        )
