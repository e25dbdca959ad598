"""Take a cluster off the machine: afterwards the machine is as the record says it was.

Every step is driven by what the kernel shows (marked processes, our cgroup, mounts below
our folders, our bridge), not by files of ours: a cluster whose state was half deleted
goes as completely as a healthy one. Each step may run any number of times.
"""

from __future__ import annotations

import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from tandem.errors import ExitCode, Problem, UserError
from tandem.process import run
from tandem_host import cgroups, config, mounts, network, probes, processes, record
from tandem_host.components import possible
from tandem_host.layout import Layout
from tandem_host.processes import Identity
from tandem_host.record import Record
from tandem_host.settings import CGROUP_ROOT, RUN_FOLDER, Settings
from tandem_host.supervisor import stop_components

_HANDOVER_SECONDS = 3.0
_PODS_SECONDS = 15.0
_CTR_SECONDS = 20.0
_SHIM_SOCKETS = Path("/run/containerd/s")
_CONTAINER_LOGS = Path("/var/log/containers")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def run_down(settings: Settings, before: Record, *, purge: bool) -> None:
    """Stop everything and remove every trace; images stay unless `purge`.

    Raises:
        UserError: Something could not be removed; the message names it.
    """
    retire_supervisor(settings)
    end_processes(settings)
    left = remove_traces(settings, before)
    if left:
        raise UserError(
            [Problem(f"still in use: {what}", "see who uses it, then repeat") for what in left],
            ExitCode.FAILURE,
        )
    delete_state(settings, purge=purge)
    record.forget(settings)
    # Other programs of ours may have files there: removed only when it is empty.
    with suppress(OSError):
        RUN_FOLDER.rmdir()


def retire_supervisor(settings: Settings) -> None:
    """End the supervisor without its components: it must restart nothing from now on."""
    running = processes.of_cluster(settings.state)
    found = [p.identity for p in running if p.component == processes.SUPERVISOR]
    for identity in found:
        processes.send(identity, signal.SIGHUP)
    processes.kill(processes.wait_gone(found, _HANDOVER_SECONDS))


def end_processes(settings: Settings) -> None:
    """End pods and components in an order in which nothing hangs or is started again."""
    parts = {component.name: component for component in possible(settings)}
    runtime = parts.pop("containerd")
    # The kubelet first (with all that only needs the API): it would start pods again.
    stop_components(settings, parts.values())
    kill_pods()
    if probes.healthy(runtime.probe, Layout(settings.state)):
        forget_containers(settings)
    stop_components(settings, [runtime])
    # What is left: shims, and plugins that were at work when their parent was killed.
    processes.kill([process.identity for process in processes.of_cluster(settings.state)])
    kill_pods()


def kill_pods() -> None:
    """Kill every process in our cgroup until there is none."""
    deadline = time.monotonic() + _PODS_SECONDS
    while time.monotonic() < deadline:
        found = []
        for pid in cgroups.pids():
            ticks = processes.start_ticks(pid)
            if ticks is not None:
                found.append(Identity(pid, ticks))
        if not found:
            return
        processes.kill(found, seconds=2.0)


def forget_containers(settings: Settings) -> None:
    """Remove dead containers from containerd's database; its images stay.

    Otherwise the next kubelet would find pods of an earlier life and clean up after them.
    """
    for kind, remove in (
        ("tasks", ["tasks", "delete", "--force"]),
        ("containers", ["containers", "delete"]),
        ("sandboxes", ["sandboxes", "remove", "--force"]),
    ):
        names = _listed(settings, kind)
        if names:
            # The last one is best effort: a sandbox whose shim is dead cannot be asked to end.
            with suppress(UserError):
                _ctr(settings, *remove, *names)


def _listed(settings: Settings, kind: str) -> list[str]:
    words = [kind, "list"] if kind == "sandboxes" else [kind, "list", "--quiet"]
    try:
        lines = _ctr(settings, *words).splitlines()
    except UserError:
        return []
    if kind == "sandboxes":
        lines = [line.split()[0] for line in lines[1:] if line.split()]
    return lines


def _ctr(settings: Settings, *words: str) -> str:
    return run(
        [settings.bin / "ctr", "--address", config.CONTAINERD_SOCKET, "-n", "k8s.io", *words],
        timeout=_CTR_SECONDS,
    )


def remove_traces(settings: Settings, before: Record) -> list[str]:
    """Remove mounts, network, cgroups and foreign files; return what could not be removed."""
    layout = Layout(settings.state)
    sandboxes = known_containers(layout)
    left = [f"mount {point}" for point in mounts.unmount([settings.state, RUN_FOLDER])]
    network.down(before)
    left += [f"cgroup {folder}" for folder in cgroups.remove()]
    if not left:
        remove_foreign(layout, before, sandboxes)
    return left


def known_containers(layout: Layout) -> set[str]:
    """Return the ids of containers that left an address or a shim's folder."""
    found = set()
    for path in layout.ipam.glob("*/[0-9]*"):
        with suppress(OSError):
            found.add(path.read_text(encoding="utf-8").split()[0])
    tasks = config.CONTAINERD_STATE / "io.containerd.runtime.v2.task" / "k8s.io"
    return found | {path.name for path in tasks.glob("*")}


def remove_foreign(layout: Layout, before: Record, containers: set[str]) -> None:
    """Remove what the components wrote outside of our folders, and only that."""
    for link in _CONTAINER_LOGS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{layout.pod_logs}/"):
            link.unlink()
    for path in config.CNI_RESULTS.glob("*"):
        ours = path.name.startswith(f"{config.CNI_NETWORK}-")
        if ours or any(container in path.name for container in containers):
            path.unlink()
    for folder in map(Path, before.absent_paths):
        # Files of others may have come meanwhile: a folder goes only when ours was all of it.
        if folder in {_DEVICE_PLUGINS, _SHIM_SOCKETS}:
            shutil.rmtree(folder, ignore_errors=True)
        remove_empty(folder)


def remove_empty(folder: Path) -> None:
    """Remove a folder and its folders as far as they hold no file."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for child in folder.iterdir():
        remove_empty(child)
    with suppress(OSError):
        folder.rmdir()


def delete_state(settings: Settings, *, purge: bool) -> None:
    """Delete the cluster's files: all but logs and images, or the whole folder."""
    if mounts.current([settings.state, RUN_FOLDER]):
        # Deleting through a mount would delete someone's data.
        raise UserError(
            Problem(f"there are mounts below {settings.state}", "unmount them, then repeat"),
            ExitCode.FAILURE,
        )
    layout = Layout(settings.state)
    kept = set() if purge else {layout.containerd, layout.logs}
    if settings.state.is_dir():
        for path in settings.state.iterdir():
            if path not in kept | {layout.command_lock}:
                _delete(path)
    for folder in (config.CONTAINERD_STATE, RUN_FOLDER / "runc"):
        _delete(folder)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def has_traces(settings: Settings) -> bool:
    """Return whether anything of this cluster is on the machine beside its files."""
    bridge = network.bridge()
    ours = bridge is not None and bridge.get("ifalias") == network.alias(str(settings.state))
    return bool(
        ours
        or processes.of_cluster(settings.state)
        or mounts.current([settings.state, RUN_FOLDER])
        or (Path("/sys/fs/cgroup/pids") / CGROUP_ROOT.lstrip("/")).exists()
    )
