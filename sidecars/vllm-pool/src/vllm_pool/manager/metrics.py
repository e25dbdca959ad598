"""What a balancer shows to Prometheus: the manager's decisions, and what Envoy counts.

Envoy's counters begin anew with each Envoy, as Prometheus expects of counters. The values are
taken over whole by the manager's loop; the thread that answers /metrics reads them only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from vllm_pool.core.rotation import Quorum, State
from vllm_pool.dataplane.stats import BackendStats
from vllm_pool.manager.pool import Row

_CLUSTERS: Final = ("keyed", "unkeyed")
#: Our name, what it tells, and which of Envoy's counters of both clusters are added up.
_OF_CLUSTERS: Final = (
    ("retries", "Tries of a request on another replica", "upstream_rq_retry"),
    (
        "retries_exhausted", "Requests that failed on every replica that could be tried",
        "upstream_rq_retry_limit_exceeded",
    ),
    (
        "retries_refused", "Tries that the retry budget did not allow",
        "upstream_rq_retry_overflow",
    ),
    ("connect_failures", "Connections to replicas that failed", "upstream_cx_connect_fail"),
    ("resets", "Requests that a replica cut off", "upstream_rq_rx_reset"),
    ("unserved", "Requests that came while no replica was in rotation", "upstream_cx_none_healthy"),
)  # fmt: skip
_ANSWERS: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")


class _Envoy(Collector):
    """Turns Envoy's counters into ours."""

    def __init__(self) -> None:
        self.counters: Mapping[str, int] = {}
        self.stats: Mapping[str, BackendStats] = {}

    def describe(self) -> Iterable[Metric]:
        """Say nothing beforehand: the registry need not ask for values to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what Envoy counts now."""
        counters, stats = self.counters, self.stats
        requests = CounterMetricFamily(
            "vllm_pool_requests", "Answers to clients, by the class of their status",
            labels=["status"],
        )  # fmt: skip
        for answer in _ANSWERS:
            requests.add_metric([answer], counters.get(f"http.pool.downstream_rq_{answer}", 0))
        yield requests
        for name, text, counter in _OF_CLUSTERS:
            value = sum(counters.get(f"cluster.{each}.{counter}", 0) for each in _CLUSTERS)
            yield CounterMetricFamily(f"vllm_pool_{name}", text, value)
        yield CounterMetricFamily(
            "vllm_pool_cancellations", "Requests that were under way when their client left",
            counters.get("http.pool.downstream_rq_rx_reset", 0),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "vllm_pool_inflight", "Requests of clients under way",
            counters.get("http.pool.downstream_rq_active", 0),
        )  # fmt: skip
        inflight = GaugeMetricFamily(
            "vllm_pool_replica_inflight", "Requests under way at a replica", labels=["replica"]
        )
        asked = CounterMetricFamily(
            "vllm_pool_replica_requests", "Requests sent to a replica", labels=["replica"]
        )
        errors = CounterMetricFamily(
            "vllm_pool_replica_errors", "Answers of 5xx and lost connections of a replica",
            labels=["replica"],
        )  # fmt: skip
        for name, one in sorted(stats.items()):
            inflight.add_metric([name], one.active)
            asked.add_metric([name], one.total)
            errors.add_metric([name], one.error)
        yield from (inflight, asked, errors)


class Metrics:
    """The metrics of one balancer.

    Attributes:
        not_ready: Why the pool is not ready, for whoever asks from another thread.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register them."""
        self.not_ready: tuple[str, ...] = ("the manager has not begun",)
        self._envoy = _Envoy()
        registry.register(self._envoy)

        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"vllm_pool_{name}", text, labels, registry=registry)

        self._state = gauge("replica_state", "1: it is in this state", ["replica", "state"])
        self._weight = gauge("replica_weight", "Its share, 0 to 100", ["replica"])
        self._canary = gauge("replica_canary_seconds", "How long the last token took", ["replica"])
        self._in_rotation = gauge("replicas_in_rotation", "Replicas that get requests")
        self._replicas = gauge("replicas", "Replicas that are members")
        self._min_ready = gauge("min_ready", "Replicas in rotation that make the pool ready")
        self._ready = gauge("ready", "1: the pool can be counted on")
        self._draining = gauge("draining", "1: this balancer is about to go")
        self._refits = Counter(
            "vllm_pool_refits_total", "Calls of a refit by path and outcome",
            ["path", "outcome"], registry=registry,
        )  # fmt: skip
        self._known: set[str] = set()

    def show(self, rows: Sequence[Row], quorum: Quorum, *, draining: bool) -> None:
        """Take the state of all replicas."""
        for row in rows:
            name = row.member.id
            for state in State:
                self._state.labels(name, str(state)).set(state is row.standing.state)
            self._weight.labels(name).set(row.standing.weight)
            if row.canary_seconds is not None:
                self._canary.labels(name).set(row.canary_seconds)
        names = {row.member.id for row in rows}
        for name in self._known - names:
            for state in State:
                self._state.remove(name, str(state))
            self._weight.remove(name)
            with suppress(KeyError):  # it has never had one
                self._canary.remove(name)
        self._known = names
        self._in_rotation.set(quorum.in_rotation)
        self._replicas.set(quorum.total)
        self._min_ready.set(quorum.min_ready)
        self._ready.set(quorum.ready)
        self._draining.set(draining)
        self.not_ready = quorum.reasons

    def count(self, counters: Mapping[str, int], stats: Mapping[str, BackendStats]) -> None:
        """Take what Envoy counts."""
        self._envoy.counters, self._envoy.stats = counters, stats

    def refit(self, word: str, *, ok: bool) -> None:
        """Count a call of a refit."""
        self._refits.labels(word, "ok" if ok else "failed").inc()
