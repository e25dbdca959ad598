"""What the watcher tells Prometheus; the README's table is made from `METRICS`."""

from __future__ import annotations

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from peer_watcher.policy import Decision, Health
from tandem_common.metrics import KubeMetrics

#: Name, labels and meaning of every metric of ours.
METRICS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "peer_watcher_decisions_total": (
        ("action", "rule"), "Decisions other than to wait"),
    "peer_watcher_health": (
        ("object", "health"), "1 for the health of each object now, 0 for the others"),
    "peer_watcher_staleness_seconds": (
        (), "How long not everything has been known; 0 when it is"),
    "peer_watcher_alert": (
        ("rule",), "1 while an alert stands"),
    "peer_watcher_watch_reconnects_total": (
        ("resource",), "Watches that were lost and came back"),
    "peer_watcher_deletions_total": (
        ("kind", "result"), "Deletions that were asked for: deleted, gone, error"),
    "peer_watcher_last_step_timestamp_seconds": (
        (), "Wall time of the last decision"),
}  # fmt: skip


class Metrics:
    """The metrics of one watcher."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register them."""

        def counter(name: str) -> Counter:
            labels, meaning = METRICS[name]
            return Counter(name.removesuffix("_total"), meaning, labels, registry=registry)

        def gauge(name: str) -> Gauge:
            labels, meaning = METRICS[name]
            return Gauge(name, meaning, labels, registry=registry)

        self._decisions = counter("peer_watcher_decisions_total")
        self._health = gauge("peer_watcher_health")
        self._staleness = gauge("peer_watcher_staleness_seconds")
        self._alert = gauge("peer_watcher_alert")
        self._reconnects = counter("peer_watcher_watch_reconnects_total")
        self._deletions = counter("peer_watcher_deletions_total")
        self._last = gauge("peer_watcher_last_step_timestamp_seconds")
        self.kube = KubeMetrics("peer_watcher", registry)

    def decided(self, decision: Decision) -> None:
        """Take note of a decision."""
        self._last.set_to_current_time()
        self._staleness.set(decision.stale_seconds)
        if decision.rule:
            self._decisions.labels(decision.action.value, decision.rule).inc()
        for ref, health in decision.health.items():
            for each in Health:
                self._health.labels(str(ref), each.value).set(each is health)
        for alert in decision.alerts:
            self._alert.labels(alert.rule).set(alert.raised)

    def reconnected(self, resource: str) -> None:
        """Take note of a watch that came back."""
        self._reconnects.labels(resource).inc()

    def deleted(self, kind: str, result: str) -> None:
        """Take note of a deletion."""
        self._deletions.labels(kind, result).inc()
