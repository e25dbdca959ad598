"""What an agent counts."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from vllm_pool.replica.decide import Answer


class Metrics:
    """The metrics of one agent."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register them."""
        self.ready = Gauge(
            "vllm_pool_replica_ready", "1: the last canaries passed", registry=registry
        )
        self.canary_seconds = Gauge(
            "vllm_pool_replica_canary_seconds", "How long the last token took", registry=registry
        )
        self.restarts = Counter(
            "vllm_pool_replica_restarts_total",
            "Times that another server was found in the place of the one that was known",
            registry=registry,
        )
        self.draining = Gauge(
            "vllm_pool_replica_draining", "1: nothing new is wanted", registry=registry
        )
        self.managers = Gauge(
            "vllm_pool_replica_managers", "Managers that this replica is to be known to",
            registry=registry,
        )  # fmt: skip
        self.registered = Gauge(
            "vllm_pool_replica_registered", "Managers that have taken it", registry=registry
        )
        self._answers = Counter(
            "vllm_pool_replica_registrations_total", "Registrations and renewals by what came back",
            ["reply"], registry=registry,
        )  # fmt: skip

    def answered(self, answer: Answer) -> None:
        """Take note of a manager's answer."""
        self._answers.labels(answer.reply.value).inc()
