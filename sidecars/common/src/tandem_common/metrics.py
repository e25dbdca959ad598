"""Metrics that every sidecar has: its requests to the API server."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram


class KubeMetrics:
    """Counts requests; `observe` fits `Client(observe=…)`."""

    def __init__(self, prefix: str, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics under a program's prefix."""
        self._requests = Counter(
            f"{prefix}_kube_requests_total",
            "Requests to the API server by verb and HTTP status (0: no answer)",
            ["verb", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{prefix}_kube_request_duration_seconds",
            "Time to the answer's headers",
            ["verb"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10),
        )

    def observe(self, verb: str, status: int, seconds: float) -> None:
        """Take note of one answer."""
        self._requests.labels(verb, str(status)).inc()
        self._seconds.labels(verb).observe(seconds)
