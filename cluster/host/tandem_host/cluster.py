"""Bring the cluster up, take it down: the order of things, with everything else elsewhere."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError
from tandem.images.load import load_into_node
from tandem.paths import CLUSTER, KUBECONFIG
from tandem.process import tail
from tandem.versions import pinned
from tandem_host import (
    cgroups,
    config,
    firewall,
    kwok,
    network,
    node,
    ownership,
    pki,
    preflight,
    probes,
    processes,
    record,
    status,
    supervisor,
    teardown,
)
from tandem_host.components import containerd, full_cluster
from tandem_host.components import kwok as kwok_component
from tandem_host.layout import Layout
from tandem_host.ownership import Claim
from tandem_host.probes import Api, ApiError
from tandem_host.record import Record
from tandem_host.settings import Settings, current, default
from tandem_host.status import ClusterStatus

_POLL_SECONDS = 0.1
_START_SECONDS = 120.0
#: A component that ended this often while the cluster starts will not come up by itself.
_HOPELESS_RESTARTS = 4

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a cluster is to have; None keeps what it has.

    Attributes:
        gpus: Simulated GPUs of the real node; at first 8.
        kwok_nodes: Simulated nodes; at first none.
        kwok_profile: What they are like; at first `h100`.
    """

    gpus: int | None = None
    kwok_nodes: int | None = None
    kwok_profile: str | None = None

    def over(self, settings: Settings, running: Settings) -> Settings:
        """Return settings with what is wished for, and for the rest what runs.

        Raises:
            UserError: A profile for nodes that there are none of.
        """
        nodes = running.kwok_nodes if self.kwok_nodes is None else self.kwok_nodes
        if self.kwok_profile is not None and self.kwok_nodes is None and not nodes:
            raise UserError(
                Problem(
                    f"profile {self.kwok_profile} is for simulated nodes, and there are none",
                    f"say how many: KWOK_NODES=100 KWOK_PROFILE={self.kwok_profile}",
                ),
                ExitCode.USAGE,
            )
        gpus = running.gpus if self.gpus is None else self.gpus
        kind = self.kwok_profile or running.kwok_profile
        return settings.with_gpus(gpus).with_simulated(nodes, kind)


def up(wish: Wish = Wish()) -> ClusterStatus:
    """Bring the cluster up, or repair it; does nothing when all is well.

    Args:
        wish: What it is to have.

    Raises:
        UserError: The machine lacks something, belongs to another checkout, or the
            cluster did not become ready; a first start that failed is taken down again.
    """
    settings = default()
    if not _is_root():
        # Without root nothing below can be seen, let alone changed.
        raise UserError(preflight.problems(preflight.gather(settings)))
    with ownership.exclusive(settings):
        claim = ownership.refuse_if_taken(settings)
        running = current() if claim is Claim.OURS else settings
        wanted = wish.over(settings, running)
        wanted = replace(wanted, oom_adjust=preflight.lowers_oom_score())
        if claim is Claim.OURS and _complete(wanted):
            loaded = load_into_node(config.CONTAINERD_SOCKET)
            if not any(image.fresh for image in loaded):
                console.ok("the host cluster is up; nothing to do")
            return status.look(wanted, str(KUBECONFIG))
        with console.phase("check the machine"):
            preflight.check(wanted)
        fresh = _make_room(wanted, claim)
        try:
            _start(wanted)
        except BaseException:
            if fresh:
                console.note("taking down what was started; the logs stay in .cluster/host/logs")
                _down(wanted, purge=False)
            raise
    return status.look(wanted, str(KUBECONFIG))


def foresee() -> list[Problem]:
    """Return what would keep `up` from working once tools and images are made.

    For callers that would find out only after a long build; starts and changes nothing.
    """
    settings = default()
    facts = preflight.before_build(preflight.gather(settings))
    if not _is_root():
        return preflight.problems(facts)
    try:
        claim = ownership.refuse_if_taken(settings)
    except UserError as taken:
        return [*taken.problems, *preflight.problems(preflight.beside_another(facts))]
    if claim is Claim.OURS and _complete(_as_it_runs(settings)):
        return []
    return preflight.problems(facts)


def _as_it_runs(settings: Settings) -> Settings:
    wanted = Wish().over(settings, current())
    return replace(wanted, oom_adjust=preflight.lowers_oom_score())


def down(*, purge: bool = False, force: bool = False) -> bool:
    """Take the cluster down; returns whether there was one.

    Args:
        purge: Delete the node's images and the logs too.
        force: Also take down the cluster of another checkout.
    """
    settings = default()
    if not _is_root():
        raise UserError(Problem("the host provider needs root", "sudo make cluster-down"))
    if force:
        _down_others(settings)
    ownership.refuse_if_taken(settings)
    _remove_abandoned(settings)
    if not settings.state.exists() and not teardown.has_traces(settings):
        return False
    with ownership.exclusive(settings):
        there = teardown.has_traces(settings) or record.load() is not None
        if there:
            with console.phase("take the host cluster down"):
                _down(settings, purge=purge)
        elif purge:
            teardown.delete_state(settings, purge=True)
    if purge:
        Layout(settings.state).command_lock.unlink(missing_ok=True)
        with suppress(OSError):
            settings.state.rmdir()
    return there


def _is_root() -> bool:
    return os.geteuid() == 0


def _complete(settings: Settings) -> bool:
    """Return whether nothing at all is left to do."""
    if beyond_repair(settings) or not KUBECONFIG.is_file():
        return False
    if settings != current():
        return False
    if record.load() is None or record.load_copy(settings) is None:
        return False
    if not network.sound(settings) or not cgroups.sound():
        return False
    return not status.look(settings, str(KUBECONFIG)).missing(settings.gpus)


def _make_room(settings: Settings, claim: Claim) -> bool:
    """Remove what cannot be repaired; return whether the cluster starts from nothing."""
    if claim in {Claim.ABANDONED, Claim.FREE}:
        _remove_abandoned(settings)
        return True
    broken = beyond_repair(settings)
    if claim is Claim.OURS and broken:
        console.note(f"starting anew: {broken}")
        _down(settings, purge=False)
        return True
    return False


def _remove_abandoned(settings: Settings) -> None:
    """Remove what a dead cluster of another checkout left on the machine."""
    left = record.load()
    state = left.state if left else network.bridge_state()
    if state is not None and state != str(settings.state):
        console.note(f"removing what the cluster in {state} left behind")
        _down(replace(settings, state=Path(state)), purge=False, before=left)


def beyond_repair(settings: Settings) -> str:
    """Return why the state on disk cannot be continued, empty when it can."""
    layout = Layout(settings.state)
    if not pki.has_authorities(layout):
        return "the keys that sign certificates and tokens are gone"
    if not (layout.etcd / "member").is_dir():
        return "the database is gone"
    # Volumes that are mounted keep the folder from going as a whole.
    if not (layout.kubelet / "cpu_manager_state").is_file():
        return "the kubelet's folder is gone"
    if not layout.containerd.is_dir():
        return "containerd's folder is gone"
    return ""


def _down(settings: Settings, *, purge: bool, before: Record | None = None) -> None:
    known = before or record.find(settings) or record.unknown(settings)
    teardown.run_down(settings, known, purge=purge)
    if settings.state == CLUSTER / "host" and not leads_elsewhere(settings, KUBECONFIG):
        KUBECONFIG.unlink(missing_ok=True)


def leads_elsewhere(settings: Settings, kubeconfig: Path) -> bool:
    """Return whether a kubeconfig names another cluster, one that provider `existing` took up."""
    with suppress(OSError):
        lines = kubeconfig.read_text(encoding="utf-8", errors="replace").splitlines()
        servers = {line.split()[1] for line in lines if line.split()[:1] == ["server:"]}
        return bool(servers) and settings.api_url not in servers
    return False


def _down_others(settings: Settings) -> None:
    others = {process.environ[processes.MARK] for process in processes.marked()}
    left = record.load()
    if left is not None:
        others.add(left.state)
    for state in others - {str(settings.state)}:
        with console.phase(f"take down the cluster in {state}"):
            before = left if left is not None and left.state == state else None
            _down(replace(settings, state=Path(state)), purge=False, before=before)


def _start(settings: Settings) -> None:
    layout = Layout(settings.state)
    with console.phase("prepare keys, configuration and network"):
        _prepare(settings)
    _supervise(settings)
    api = Api(settings)
    with ThreadPoolExecutor(1) as pool:
        images = pool.submit(_load_basic_images, settings)
        with console.phase("control plane"):
            _await(settings, lambda: _api_ready(settings), "the API server", images)
        with console.phase("images of pause and cluster DNS"):
            _await(settings, images.done, "loading images")
            images.result()
        forward = "nameserver" in layout.resolv_conf.read_text(encoding="utf-8")
        _retry(lambda: node.apply_coredns(api, pinned("coredns"), forward=forward))
        _simulate(settings, api)
        with console.phase("node, GPUs and cluster DNS") as phase:
            _await(settings, lambda: _is_complete(settings), "the node")
            phase.detail = f"{settings.gpus} GPUs"
    # The large images last: the cluster answers meanwhile.
    load_into_node(config.CONTAINERD_SOCKET)


def _prepare(settings: Settings) -> None:
    layout = Layout(settings.state)
    known = record.find(settings)
    if known is None and teardown.has_traces(settings):
        known = record.unknown(settings)
    # Taken before the first thing is changed, and never again while the cluster is there.
    record.save(known or record.take(settings, firewall.saved()))
    for folder in (layout.kubelet, layout.etcd, layout.logs, layout.pod_logs, layout.containerd):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki.ensure(settings)
    resolvers = [p.read_text(encoding="utf-8") for p in config.RESOLVERS if p.is_file()]
    config.write(layout.resolv_conf, config.reachable_resolver(resolvers), mode=0o644)
    for path, text in config.files(settings).items():
        config.write(path, text)
    config.write(layout.settings, settings.to_json())
    config.write(KUBECONFIG, config.kubeconfig(settings, "admin", embed=True))
    cgroups.create()
    network.up(settings)


def _supervise(settings: Settings) -> None:
    """Make sure that a supervisor with these settings runs; it adopts what is there."""
    found = processes.main_process(processes.of_cluster(settings.state), processes.SUPERVISOR)
    seen = status.look(settings, str(KUBECONFIG))
    if found is not None and not any(c.outdated for c in seen.components):
        started_with = Layout(settings.state).settings.stat().st_mtime
        if started_with < time.time() - processes.uptime(found.identity):
            return
    teardown.retire_supervisor(settings)
    if not settings.kwok_nodes:
        # Of the components only this one may be wanted no longer.
        supervisor.stop_components(settings, [kwok_component(settings)])
    supervisor.launch(settings)


def _simulate(settings: Settings, api: Api) -> None:
    """See to it that there are as many simulated nodes as wanted, all Ready."""
    make, remove = _retry(lambda: kwok.difference(api, settings))
    if not (settings.kwok_nodes or remove):
        return
    with console.phase("simulated nodes") as phase:
        kwok.change(api, make, remove)
        kwok.await_ready(api, settings.kwok_nodes, _START_SECONDS)
        phase.detail = f"{settings.kwok_nodes}: {len(make)} made, {len(remove)} removed"


def _load_basic_images(settings: Settings) -> None:
    deadline = time.monotonic() + _START_SECONDS
    probe = containerd(settings).probe
    while not probes.healthy(probe, Layout(settings.state)):
        if time.monotonic() > deadline:
            return  # The wait for the control plane reports it.
        time.sleep(_POLL_SECONDS)
    load_into_node(config.CONTAINERD_SOCKET, list(preflight.BASIC_IMAGES))


def _api_ready(settings: Settings) -> bool:
    parts = {component.name: component for component in full_cluster(settings)}
    return probes.healthy(parts["kube-apiserver"].probe, Layout(settings.state))


def _is_complete(settings: Settings) -> bool:
    return not status.look(settings, str(KUBECONFIG)).missing(settings.gpus)


def _await(
    settings: Settings,
    done: Callable[[], bool],
    what: str,
    images: Future[None] | None = None,
) -> None:
    """Wait until something holds; fail early when a component keeps ending."""
    layout = Layout(settings.state)
    deadline = time.monotonic() + _START_SECONDS
    before = {c.name: c.restarts for c in status.look(settings, "").components}
    while not done():
        if images is not None and images.done():
            images.result()
        now = status.look(settings, "")
        for component in now.components:
            if component.restarts - before[component.name] >= _HOPELESS_RESTARTS:
                said = layout.log(component.name).read_text(encoding="utf-8", errors="replace")
                raise UserError(
                    Problem(
                        f"{component.name} ends again and again ({component.last_exit}):\n"
                        f"{tail(said)}",
                        f"read {layout.log(component.name)}",
                    ),
                    ExitCode.FAILURE,
                )
        if time.monotonic() > deadline:
            lacking = "; ".join(now.missing(settings.gpus))
            raise UserError(
                Problem(
                    f"{what} was not ready within {_START_SECONDS:.0f} s: {lacking}",
                    f"read the logs in {layout.logs}",
                ),
                ExitCode.FAILURE,
            )
        time.sleep(_POLL_SECONDS)


def _retry(call: Callable[[], _T]) -> _T:
    """Call until it works: RBAC and controllers follow the API server by some moments."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return call()
        except (ApiError, OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
