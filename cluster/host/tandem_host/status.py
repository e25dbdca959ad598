"""What runs, since when, how much it uses and whether it works: in well under a second.

All questions are asked at the same time and each has half a second to be answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tandem_host import kwok, node, probes, processes
from tandem_host.components import Component, full_cluster
from tandem_host.layout import Layout
from tandem_host.probes import Api, ApiError
from tandem_host.settings import Settings

_TIMEOUT = 0.5
#: A list of a thousand nodes takes longer than one node.
_LIST_TIMEOUT = 5.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component, as seen now."""

    name: str
    pid: int | None
    healthy: bool
    uptime_seconds: float
    restarts: int
    rss_mib: int
    #: Started with other flags, files or another binary than it would be now.
    outdated: bool
    last_exit: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster, as seen now."""

    running: bool
    #: Everything runs and answers, the node offers as many GPUs as it should, and there are as
    #: many simulated nodes as there should be.
    healthy: bool = field(init=False)
    supervisor_pid: int | None
    components: list[ComponentStatus]
    node_ready: bool
    gpus: int
    gpus_wanted: int
    dns: bool
    rss_mib: int
    kubeconfig: str
    #: Simulated nodes: Ready, there, wanted, and what they are like.
    kwok_ready: int = 0
    kwok_nodes: int = 0
    kwok_wanted: int = 0
    kwok_profile: str = ""

    def __post_init__(self) -> None:
        """Judge what was seen; old settings alone make nothing unhealthy."""
        seen = [replace(component, outdated=False) for component in self.components]
        sound = self.running and not self._lacks(seen, self.gpus_wanted)
        object.__setattr__(self, "healthy", sound)

    def to_json(self) -> str:
        """Return it as a JSON document."""
        return json.dumps(asdict(self), indent=2)

    def missing(self, gpus: int) -> list[str]:
        """Return what keeps the cluster from being complete, in words."""
        return self._lacks(self.components, gpus)

    def _lacks(self, components: list[ComponentStatus], gpus: int) -> list[str]:
        found = [f"{c.name} is not running" for c in components if c.pid is None]
        found += [f"{c.name} does not answer" for c in components if c.pid and not c.healthy]
        found += [f"{c.name} has old settings" for c in components if c.outdated]
        if self.supervisor_pid is None:
            found.append("the supervisor is not running")
        if not self.node_ready:
            found.append("the node is not Ready")
        if self.gpus != gpus:
            found.append(f"the node offers {self.gpus} GPUs instead of {gpus}")
        if (self.kwok_ready, self.kwok_nodes) != (self.kwok_wanted,) * 2:
            found.append(
                f"{self.kwok_ready} of {self.kwok_nodes} simulated nodes are Ready instead of"
                f" {self.kwok_wanted}"
            )
        if not self.dns:
            found.append("the cluster's DNS does not answer")
        return found


def look(settings: Settings, kubeconfig: str) -> ClusterStatus:
    """Return the cluster's status."""
    layout = Layout(settings.state)
    running = processes.of_cluster(settings.state)
    known = _known(layout)
    parts = full_cluster(settings)
    if not running:
        components = [_component(part, None, known, healthy=False) for part in parts]
        return ClusterStatus(
            running=False, supervisor_pid=None, components=components, node_ready=False, gpus=0,
            gpus_wanted=settings.gpus, dns=False, rss_mib=0, kubeconfig=kubeconfig,
            kwok_wanted=settings.kwok_nodes, kwok_profile=settings.kwok_profile,
        )  # fmt: skip
    with ThreadPoolExecutor(len(parts) + 3) as pool:
        answers = [
            pool.submit(probes.healthy, part.probe, layout, timeout=_TIMEOUT) for part in parts
        ]
        found_node = pool.submit(_node, settings)
        dns = pool.submit(node.dns_answers, timeout=_TIMEOUT)
        simulated = pool.submit(_simulated, settings)
        components = [
            _component(
                part, processes.main_process(running, part.name), known, healthy=answer.result()
            )
            for part, answer in zip(parts, answers, strict=True)
        ]
        this_node = found_node.result()
        dns_answers = dns.result()
        kwok_ready, kwok_nodes = simulated.result()
    supervisor = processes.main_process(running, processes.SUPERVISOR)
    supervisor_pid = supervisor.pid if supervisor else None
    supervisor_rss = processes.resident_bytes(supervisor.pid) // _MIB if supervisor else 0
    return ClusterStatus(
        running=True,
        supervisor_pid=supervisor_pid,
        components=components,
        node_ready=node.is_ready(this_node),
        gpus=node.allocatable_gpus(this_node),
        gpus_wanted=settings.gpus,
        dns=dns_answers,
        rss_mib=sum(c.rss_mib for c in components) + supervisor_rss,
        kubeconfig=kubeconfig,
        kwok_ready=kwok_ready,
        kwok_nodes=kwok_nodes,
        kwok_wanted=settings.kwok_nodes,
        kwok_profile=settings.kwok_profile,
    )


def table(status: ClusterStatus) -> str:
    """Return the status as text for a person."""
    if not status.running:
        return "no host cluster is running here (make cluster-up PROVIDER=host)"
    lines = [f"{'COMPONENT':<26}{'PID':>8}  {'UPTIME':>8}  {'RESTARTS':>8}  {'RSS':>8}  STATE"]
    for c in status.components:
        state = "healthy" if c.healthy else f"down ({c.last_exit or 'not started'})"
        state = "not answering" if c.pid and not c.healthy else state
        state += ", old settings" if c.outdated else ""
        lines.append(
            f"{c.name:<26}{c.pid or '-':>8}  {duration(c.uptime_seconds):>8}  {c.restarts:>8}"
            f"  {c.rss_mib:>4} MiB  {state}"
        )
    supervisor = f"pid {status.supervisor_pid}" if status.supervisor_pid else "NOT RUNNING"
    gpus = f"{status.gpus} GPUs"
    if status.gpus != status.gpus_wanted:
        gpus = f"{status.gpus} GPUs INSTEAD OF {status.gpus_wanted}"
    lines += [
        "",
        f"supervisor  {supervisor}",
        f"node        {'Ready' if status.node_ready else 'NOT READY'}, {gpus}",
        *_simulated_line(status),
        f"dns         {'answers' if status.dns else 'DOES NOT ANSWER'}",
        f"memory      {status.rss_mib} MiB in all",
        f"kubeconfig  {status.kubeconfig}",
    ]
    return "\n".join(lines)


def _simulated_line(status: ClusterStatus) -> list[str]:
    if not status.kwok_wanted:
        return []
    many = f"{status.kwok_ready} of {status.kwok_wanted}"
    return [f"simulated   {many} nodes Ready, {status.kwok_profile}"]


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _component(
    part: Component,
    process: processes.Process | None,
    known: Mapping[str, Any],
    *,
    healthy: bool,
) -> ComponentStatus:
    facts = known.get(part.name, {})
    return ComponentStatus(
        name=part.name,
        pid=process.pid if process else None,
        healthy=healthy and process is not None,
        uptime_seconds=round(processes.uptime(process.identity), 1) if process else 0.0,
        restarts=facts.get("restarts", 0),
        rss_mib=processes.resident_bytes(process.pid) // _MIB if process else 0,
        outdated=process is not None and process.digest != part.digest(),
        last_exit=facts.get("last_exit", ""),
    )


def _known(layout: Layout) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(layout.status.read_text(encoding="utf-8"))["components"]
        return found
    return {}


def _simulated(settings: Settings) -> tuple[int, int]:
    """Return how many simulated nodes are Ready and there; those that nobody wants, too."""
    timeout = _LIST_TIMEOUT if settings.kwok_nodes else _TIMEOUT
    with suppress(OSError, ApiError, ValueError):
        return kwok.count(Api(settings, timeout=timeout))
    return 0, 0


def _node(settings: Settings) -> dict[str, Any]:
    with suppress(OSError, ApiError, ValueError):
        return Api(settings, timeout=_TIMEOUT).get(node.NODE) or {}
    return {}
