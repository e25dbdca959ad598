"""Metrics of both programs, under a prefix each."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from tandem_common.metrics import KubeMetrics


class Metrics:
    """What a program is doing and how long it took."""

    def __init__(
        self, prefix: str, phases: Sequence[str], registry: CollectorRegistry = REGISTRY
    ) -> None:
        """Register the metrics; every phase has its series from the start."""
        self.kube = KubeMetrics(prefix, registry)
        self._phase = Gauge(
            f"{prefix}_phase", "1 for the phase that the program is in", ["phase"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Gauge(
            f"{prefix}_phase_seconds", "Seconds that a finished phase took", ["phase"],
            registry=registry,
        )  # fmt: skip
        self._children = Counter(
            f"{prefix}_child_exits_total", "Ends of child processes", ["child", "exit_code"],
            registry=registry,
        )  # fmt: skip
        self.urls = Gauge(
            f"{prefix}_vllm_urls", "vLLM addresses that are in use", registry=registry
        )
        self.changes = Counter(
            f"{prefix}_vllm_url_changes", "Changes of the vLLM addresses while serving",
            ["followed"], registry=registry,
        )  # fmt: skip
        for name in phases:
            self._phase.labels(name).set(0)

    def enter(self, phase: str) -> None:
        """Take note that a phase begins."""
        self._phase.labels(phase).set(1)

    def leave(self, phase: str, seconds: float) -> None:
        """Take note that a phase is over."""
        self._phase.labels(phase).set(0)
        self._seconds.labels(phase).set(seconds)

    def child_ended(self, name: str, exit_code: int) -> None:
        """Count the end of a child."""
        self._children.labels(name, str(exit_code)).inc()
