"""The sidecar: publish an address once it answers, renew it, withdraw it at the end.

`decide` is the whole policy and pure; the rest carries it out.
"""

from __future__ import annotations

import signal
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from endpoint_registry.records import joined
from endpoint_registry.registry import EndpointRegistry, Superseded
from endpoint_registry.settings import RENEWALS_A_LEASE, SidecarSettings
from tandem_common import logs
from tandem_common.clock import Clock, Deadline
from tandem_common.errors import ExitCode
from tandem_common.kube import (
    ClusterConfig,
    Forbidden,
    Invalid,
    KubeError,
    NamespaceTerminating,
    OwnedByAnother,
    Unauthorized,
)
from tandem_common.metrics import KubeMetrics
from tandem_common.serve import Health, HealthServer

_BAD_STATUS = 500
_SHORTEST_WAIT = 0.001


class Phase(StrEnum):
    """What stands in the registry, as far as we know."""

    #: Nothing of ours yet.
    STARTING = "starting"
    PUBLISHED = "published"
    #: It had been published, and stopped to answer.
    WITHDRAWN = "withdrawn"
    #: Another writer has the key; we do not fight for it.
    TAKEN = "taken"


class Action(StrEnum):
    """What to do now."""

    NOTHING = "nothing"
    ANNOUNCE = "announce"
    PUBLISH = "publish"
    RENEW = "renew"
    WITHDRAW = "withdraw"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Standing:
    """All that the policy looks at.

    Attributes:
        phase: What stands in the registry.
        failures: Probes that failed in a row; 0 when the last one was answered.
        since_write: Seconds since our last write that succeeded.
        silent: Seconds since the last probe that was answered; before the first, since the
            program began.
    """

    phase: Phase
    failures: int
    since_write: float
    silent: float


def decide(now: Standing, settings: SidecarSettings) -> Action:
    """Return what to do."""
    due = now.since_write >= settings.lease_seconds / RENEWALS_A_LEASE
    match now.phase:
        case Phase.TAKEN:
            return Action.NOTHING
        case Phase.PUBLISHED if now.failures >= settings.probe_failures:
            return Action.WITHDRAW
        case Phase.PUBLISHED:
            return Action.RENEW if due else Action.NOTHING
        case _ if now.failures == 0:
            return Action.PUBLISH
        # Also one that was withdrawn: its word that it still waits is a sign of life, by which
        # nobody else would ever end the run.
        case _ if now.silent >= settings.timeout_seconds:
            return Action.GIVE_UP
        case _:
            return Action.ANNOUNCE if due else Action.NOTHING


class Metrics:
    """What /metrics shows."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics."""
        self.published = Gauge(
            "endpoint_registry_published", "1 while our endpoint stands in the registry",
            registry=registry,
        )  # fmt: skip
        self.lease_age = Gauge(
            "endpoint_registry_renewal_age_seconds", "Time since the last write that succeeded",
            registry=registry,
        )  # fmt: skip
        self.probes = Counter(
            "endpoint_registry_probes_total", "Probes of the endpoint", ["result"],
            registry=registry,
        )  # fmt: skip
        self.writes = Counter(
            "endpoint_registry_writes_total", "Writes to the registry", ["action", "result"],
            registry=registry,
        )  # fmt: skip
        self.conflicts = Gauge(
            "endpoint_registry_conflicts", "Writes that met another object or a busy one",
            registry=registry,
        )  # fmt: skip


def http_probe(settings: SidecarSettings) -> Callable[[], str]:
    """Return a function that asks every address, and says what is wrong or ""."""
    urls = (settings.probe_url,) if settings.probe_url else settings.urls
    # Without an https address the certificates would only take memory.
    secure = any(url.startswith("https") for url in urls)
    client = httpx.Client(verify=ssl.create_default_context() if secure else False, trust_env=False)

    def probe() -> str:
        # One limit for all: the renewal of the lease waits for them.
        deadline = Deadline(settings.probe_timeout_seconds)
        for url in urls:
            try:
                left = max(deadline.remaining, _SHORTEST_WAIT)
                status = client.get(url, timeout=left).status_code
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return f"{url}: {type(error).__name__}: {error}"
            if status >= _BAD_STATUS:
                return f"{url} answered {status}"
        return ""

    return probe


class Sidecar:
    """The loop."""

    def __init__(
        self,
        settings: SidecarSettings,
        registry: EndpointRegistry,
        value: str,
        *,
        probe: Callable[[], str],
        metrics: Metrics,
        stop: threading.Event,
        clock: Clock = time.monotonic,
    ) -> None:
        """Prepare it."""
        self._settings = settings
        self._registry = registry
        self._value = value
        self._probe = probe
        self._metrics = metrics
        self._stop = stop
        self._clock = clock
        self._log = logs.get_logger(key=settings.key)
        self._answered = clock()
        self._wrote = -float("inf")
        self._turn = clock()
        self._phase = Phase.STARTING
        self._failures = 1
        self._fault = "it has not been probed yet"
        self._refused = ""

    def ready(self) -> Health:
        """Ready means: readers believe our endpoint."""
        age = self._clock() - self._wrote
        self._metrics.lease_age.set(age)
        reasons = [self._refused] if self._refused else []
        if self._phase is not Phase.PUBLISHED:
            reasons.append(f"{self._phase}: {self._fault or 'answers, not published yet'}")
        elif age > self._settings.lease_seconds:
            reasons.append(f"the last renewal was {age:.0f} s ago, the lease is over")
        return Health(tuple(reasons))

    def live(self) -> Health:
        """Live means: the loop goes round."""
        settings = self._settings
        turn = settings.probe_timeout_seconds + settings.lease_seconds
        age = self._clock() - self._turn
        limit = 3 * (turn + settings.probe_seconds)
        return Health((f"the loop stands still for {age:.0f} s",) if age > limit else ())

    def run(self) -> int:
        """Go round until it is stopped; return the exit code."""
        while not self._stop.is_set():
            self._turn = self._clock()
            self._ask()
            action = self._decide()
            if action is Action.GIVE_UP:
                return self._give_up()
            if action is not Action.NOTHING:
                self._try(action)
            renewal = self._settings.lease_seconds / RENEWALS_A_LEASE
            self._stop.wait(min(self._settings.probe_seconds, renewal))
        return self._end()

    def _ask(self) -> None:
        fault = self._probe()
        self._metrics.probes.labels("failed" if fault else "answered").inc()
        self._failures = self._failures + 1 if fault else 0
        if not fault:
            self._answered = self._clock()
        if bool(fault) != bool(self._fault):
            self._log.info("probe", answered=not fault, fault=fault)
        self._fault = fault

    def _decide(self) -> Action:
        now = self._clock()
        standing = Standing(
            self._phase, self._failures, now - self._wrote, now - self._answered
        )  # fmt: skip
        return decide(standing, self._settings)

    def _try(self, action: Action) -> None:
        """Do it; what fails is tried again at the next turn."""
        result = "ok"
        try:
            self._act(action)
            self._wrote = self._clock()
            self._refused = ""
        except OwnedByAnother as error:
            result = "taken"
            self._phase = Phase.TAKEN
            self._fault = "another writer has published this key"
            self._log.warning("key_taken", reason=str(error))
        except KubeError as error:
            result = type(error).__name__
            if self._phase is Phase.STARTING and isinstance(
                error, Forbidden | Unauthorized | Invalid | NamespaceTerminating
            ):
                raise
            self._refused = f"{action} failed: {error}"
            self._log.warning("write_failed", action=action, reason=str(error))
        finally:
            self._metrics.writes.labels(action, result).inc()
            self._metrics.published.set(self._phase is Phase.PUBLISHED)
            self._metrics.conflicts.set(self._registry.counts["conflicts"])

    def _act(self, action: Action) -> None:
        key, lease = self._settings.key, self._settings.lease_seconds
        # A write that takes longer is better begun anew with what is true then.
        how: dict[str, Any] = {"timeout": lease / RENEWALS_A_LEASE}
        match action:
            case Action.ANNOUNCE:
                self._registry.announce(key, self._fault, lease_seconds=lease, **how)
            case Action.PUBLISH:
                self._registry.publish(key, self._value, lease_seconds=lease, **how)
                self._phase = Phase.PUBLISHED
                self._log.info("published", value=self._value)
            case Action.RENEW:
                self._registry.renew(key, self._value, lease_seconds=lease, **how)
            case Action.WITHDRAW:
                self._registry.withdraw(key, self._fault, **how)
                self._phase = Phase.WITHDRAWN
                self._log.warning("withdrawn", reason=self._fault)
            case _:
                raise AssertionError(action)

    def _give_up(self) -> int:
        limit = f"{self._settings.timeout_seconds:g} s"
        what = (
            f"did not answer within {limit}"
            if self._phase is Phase.STARTING
            else f"was withdrawn and has not answered again for {limit}"
        )
        message = f"{self._registry.writer}: {self._settings.key} {what}: {self._fault}"
        self._log.error("gave_up", reason=message)
        self._registry.error(message, timeout=self._settings.grace_seconds)
        return ExitCode.FAILURE

    def _end(self) -> int:
        """Withdraw; readers would find out by the lease, but later."""
        if self._phase is Phase.PUBLISHED:
            try:
                self._registry.withdraw(
                    self._settings.key, "the pod ends", timeout=self._settings.grace_seconds
                )
                self._log.info("withdrawn", reason="the pod ends")
            except (KubeError, Superseded) as error:
                self._log.warning("withdraw_failed", reason=str(error))
        return ExitCode.OK


def run_sidecar(settings: SidecarSettings, cluster: ClusterConfig) -> int:
    """Run the sidecar as a program, until SIGTERM."""
    from endpoint_registry.__main__ import connect  # noqa: PLC0415 - it imports us

    value = joined(settings.key, settings.urls)
    logs.configure("endpoint-registry", level=settings.log_level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    current: list[Sidecar] = []

    def ready() -> Health:
        return current[0].ready() if current else Health(("the API server has not answered yet",))

    def live() -> Health:
        return current[0].live() if current else Health()

    metrics = Metrics()
    with HealthServer(settings.http_host, settings.http_port, live=live, ready=ready):
        observe = KubeMetrics("endpoint_registry").observe
        with connect(settings, cluster, observe=observe) as registry:
            sidecar = Sidecar(
                settings, registry, value, probe=http_probe(settings), metrics=metrics, stop=stop
            )  # fmt: skip
            current.append(sidecar)
            return sidecar.run()
