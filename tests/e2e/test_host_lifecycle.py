"""The host provider's promises about coming up, staying up and leaving nothing.

These tests take this checkout's host cluster down and up again: `conftest.py` runs them
before anything else is put on it.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import host_snapshot
from support.host_snapshot import Snapshot
from tandem.paths import BIN, KUBECONFIG, ROOT
from tandem.process import tool_env
from tandem_host import ownership, processes, record, settings, teardown
from tandem_host.config import CONTAINERD_SOCKET
from tandem_host.layout import Layout
from tandem_host.probes import Api
from tandem_host.processes import Process
from tandem_host.record import write_sysctl
from tandem_host.settings import GPU_RESOURCE

pytestmark = pytest.mark.cluster

SEVEN = (
    "containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
    "kube-proxy", "kubelet",
)  # fmt: skip
HERE = settings.default()
LAYOUT = Layout(HERE.state)
COREDNS_PODS = "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-dns"


def tandem(
    *words: str, checkout: Path = ROOT, expect: int | None = 0
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(checkout / f) for f in ("scripts/lib", "cluster/host"))
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", *words, "--provider", "host"],
        check=False, capture_output=True, text=True, timeout=400, cwd=checkout,
        stdin=subprocess.DEVNULL,
        env=tool_env({"PYTHONPATH": path, "KUBECONFIG": "", "NO_COLOR": "1"}),
    )  # fmt: skip
    assert expect is None or done.returncode == expect, done.stdout + done.stderr
    return done


def look() -> dict[str, Any]:
    """The status of this moment: a busy machine may answer a probe later than it waits."""
    found: dict[str, Any] = json.loads(tandem("status", "--output", "json", expect=None).stdout)
    return found


def status() -> dict[str, Any]:
    """The status once everything is healthy."""
    until("everything is healthy", healthy)
    return look()


def pids() -> dict[str, int]:
    return {component["name"]: component["pid"] for component in look()["components"]}


# Far beyond what a free machine needs: only a hang may use it up.
def until(what: str, done: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def healthy() -> bool:
    return tandem("status", expect=None).returncode == 0


def until_nothing_to_do() -> None:
    """`up` finds all as it should be; one probe that a busy machine answered late may not."""
    until("up has nothing to do", lambda: "nothing to do" in tandem("up").stderr)


def kill(victims: list[Process]) -> None:
    """Kill -9 and wait for the end: a process lives on for a moment after the signal."""
    # The supervisor first: it must not bring back what is killed after it.
    for victim in sorted(victims, key=lambda p: p.component != processes.SUPERVISOR):
        processes.send(victim.identity, signal.SIGKILL)
    left = processes.wait_gone([victim.identity for victim in victims], 60)
    assert left == []


@pytest.fixture(scope="module")
def clean() -> Iterator[Snapshot]:
    """The machine without a host cluster; one that was up is up again at the end."""
    was_up = tandem("status", expect=None).returncode == 0
    tandem("down")
    yield host_snapshot.take()
    tandem("down")
    if was_up:
        tandem("up")


@pytest.fixture
def running(clean: Snapshot) -> Snapshot:
    """A healthy cluster, repaired when the test before left it broken."""
    tandem("up")
    return clean


@pytest.mark.usefixtures("running")
def test_the_cluster_is_complete() -> None:
    found = status()
    assert [c["name"] for c in found["components"]] == list(SEVEN)
    assert all(c["healthy"] for c in found["components"])
    assert (found["node_ready"], found["dns"], found["gpus"]) == (True, True, 8)


@pytest.mark.usefixtures("running")
def test_logs_exec_and_port_forward_reach_pods() -> None:
    def kubectl(*words: str) -> str:
        return subprocess.run(
            [BIN / "kubectl", f"--kubeconfig={KUBECONFIG}", "-n", "kube-system", *words],
            check=True, capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip

    assert "CoreDNS" in kubectl("logs", "deployment/coredns")
    version = kubectl("exec", "deployment/coredns", "--", "/coredns", "-version")
    assert "CoreDNS" in version
    with subprocess.Popen(
        [BIN / "kubectl", f"--kubeconfig={KUBECONFIG}", "-n", "kube-system", "port-forward",
         "deployment/coredns", ":8080"], stdout=subprocess.PIPE, text=True,
    ) as forward:  # fmt: skip
        assert forward.stdout
        # Reading has no deadline of its own.
        limit = threading.Timer(60, forward.kill)
        limit.start()
        said = forward.stdout.readline()
        limit.cancel()
        forward.kill()
    assert "Forwarding from" in said


@pytest.mark.usefixtures("running")
def test_metrics_of_every_component_can_be_read() -> None:
    api = Api(HERE)
    assert "apiserver_request_total" in api.call("GET", "/metrics")
    assert "kubelet_node_name" in api.call("GET", "/api/v1/nodes/local/proxy/metrics")
    ports = HERE.ports
    plain = {
        ports.etcd_metrics: "/metrics",
        ports.proxy_metrics: "/metrics",
        ports.containerd_metrics: "/v1/metrics",
    }
    for port, path in plain.items():
        done = subprocess.run(
            ["curl", "-fsS", f"http://{HERE.address}:{port}{path}"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "go_goroutines" in done.stdout
    for port in (ports.controller_manager, ports.scheduler):
        done = subprocess.run(
            ["curl", "-fsS", "--cacert", LAYOUT.cert("ca"), "--cert", LAYOUT.cert("admin"),
             "--key", LAYOUT.key("admin"), f"https://{HERE.address}:{port}/metrics"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "go_goroutines" in done.stdout


@pytest.mark.usefixtures("running")
def test_a_second_up_changes_nothing() -> None:
    before = status()
    until_nothing_to_do()
    after = status()
    assert [c["pid"] for c in after["components"]] == [c["pid"] for c in before["components"]]
    assert after["supervisor_pid"] == before["supervisor_pid"]


@pytest.mark.usefixtures("running")
def test_up_loads_what_the_node_lacks() -> None:
    def ctr(*words: str) -> str:
        return subprocess.run(
            [BIN / "ctr", "--address", CONTAINERD_SOCKET, "-n", "k8s.io", "images", *words],
            check=True, capture_output=True, text=True, timeout=120,
        ).stdout  # fmt: skip

    images = [n for n in ctr("list", "--quiet").split() if n.startswith("localhost/tandem/pause:")]
    assert len(images) == 2
    ctr("remove", *images)
    assert "load localhost/tandem/pause:dev" in tandem("up").stderr
    assert "localhost/tandem/pause:dev" in ctr("list", "--quiet").split()


@pytest.mark.usefixtures("running")
def test_another_number_of_gpus_restarts_no_component() -> None:
    before = pids()
    tandem("up", "--gpus", "3")
    assert status()["gpus"] == 3
    tandem("up")  # Without a number it keeps what the cluster has.
    assert status()["gpus"] == 3
    tandem("up", "--gpus", "8")
    assert (status()["gpus"], pids()) == (8, before)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("name", SEVEN)
def test_a_killed_component_is_brought_back_and_pods_stay(name: str) -> None:
    api = Api(HERE)
    old = pids()
    pods = api.get(COREDNS_PODS)["items"]
    os.kill(old[name], signal.SIGKILL)
    until(f"{name} has another process", lambda: pids()[name] not in {None, old[name]})
    until("everything is healthy", healthy)
    assert {n: p for n, p in pids().items() if n != name} == {
        n: p for n, p in old.items() if n != name
    }
    now = api.get(COREDNS_PODS)["items"]
    assert [p["metadata"]["uid"] for p in now] == [p["metadata"]["uid"] for p in pods]
    counts = [p["status"]["containerStatuses"][0]["restartCount"] for p in now + pods]
    assert set(counts) == {0}


@pytest.mark.usefixtures("running")
def test_gpus_come_back_when_the_node_loses_them() -> None:
    api = Api(HERE)
    lost = {"status": {"capacity": {GPU_RESOURCE: "0"}, "allocatable": {GPU_RESOURCE: "0"}}}
    api.merge("/api/v1/nodes/local/status", lost)
    until("the GPUs are back", lambda: look()["gpus"] == 8)


@pytest.mark.usefixtures("running")
def test_up_after_the_supervisor_was_killed_adopts_the_components() -> None:
    before = pids()
    supervisor = status()["supervisor_pid"]
    os.kill(supervisor, signal.SIGKILL)
    until("the supervisor is gone", lambda: not healthy())
    tandem("up")
    assert pids() == before
    assert status()["supervisor_pid"] not in {None, supervisor}
    # The new one watches processes that are not its children.
    old = before["kube-scheduler"]
    os.kill(old, signal.SIGKILL)
    until("the scheduler has another process", lambda: pids()["kube-scheduler"] not in {None, old})
    until("everything is healthy", healthy)


@pytest.mark.usefixtures("running")
def test_up_after_everything_was_killed_at_once_repairs() -> None:
    victims = [p for p in processes.of_cluster(HERE.state) if p.program != processes.SHIM]
    assert len(victims) >= len(SEVEN) + 1
    kill(victims)
    tandem("up")
    assert status()["healthy"]


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    "lost",
    [
        "pki/kubelet.crt",
        "config",
        "settings.json",
        "status.json",
        "record.json",
        "/run/tandem/host.json",
        "../kubeconfig",
    ],
)
def test_what_can_be_written_again_is(lost: str) -> None:
    path = HERE.state / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    tandem("up")
    assert status()["healthy"]
    until_nothing_to_do()
    until(f"{lost} is there again", path.exists)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    "lost", [["pki"], ["etcd"], ["kubelet"], ["pki", "etcd", "kubelet", "config", "logs"]]
)
def test_a_state_beyond_repair_starts_anew(lost: list[str]) -> None:
    old = pids()
    # Volumes are mounted below the kubelet's folder: those stay, and stay mounted.
    subprocess.run(
        ["rm", "-rf", "--one-file-system", *(HERE.state / name for name in lost)],
        check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    tandem("up")
    assert status()["healthy"]
    assert not set(old.values()) & set(pids().values())


@pytest.mark.usefixtures("running")
def test_a_lost_bridge_is_made_again() -> None:
    before = Api(HERE).get(COREDNS_PODS)["items"]
    subprocess.run(["ip", "link", "delete", "cni0"], check=True, timeout=60)
    tandem("up")
    assert status()["healthy"]  # With DNS, so the pod that was there hangs on it again.
    now = Api(HERE).get(COREDNS_PODS)["items"]
    assert [p["metadata"]["uid"] for p in now] == [p["metadata"]["uid"] for p in before]


@pytest.mark.usefixtures("running")
def test_after_a_reboot_the_cluster_goes_on_with_its_data() -> None:
    api = Api(HERE)
    note = "/api/v1/namespaces/default/configmaps/note"
    api.apply(note, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}})
    before = record.load()
    assert before
    # What a reboot takes away: processes, mounts, the network, cgroups and /run.
    teardown.retire_supervisor(HERE)
    kill(processes.of_cluster(HERE.state))
    teardown.kill_pods()
    assert teardown.remove_traces(HERE, before) == []
    shutil.rmtree("/run/tandem")
    tandem("up")
    assert status()["healthy"]
    assert api.get(note) is not None


def waiting_for(lock: Path) -> int:
    """How many processes the kernel keeps waiting for the lock on a file."""
    inode = lock.stat().st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text("utf-8").splitlines()]
    return sum(w[1] == "->" and w[6].rpartition(":")[2] == str(inode) for w in lines)


def test_two_commands_at_once_take_turns(clean: Snapshot) -> None:
    tandem("down")
    with ThreadPoolExecutor(2) as pool:
        # Both begin at the same moment: when this block lets go of the lock.
        with ownership.exclusive(HERE):
            both = [pool.submit(tandem, "up") for _ in range(2)]
            until("both wait", lambda: waiting_for(LAYOUT.command_lock) == 2)
        said = [one.result().stderr for one in both]
    assert all("waiting for it" in text for text in said)
    assert status()["healthy"]
    supervisors = [
        p for p in processes.of_cluster(HERE.state) if p.component == processes.SUPERVISOR
    ]
    assert len(supervisors) == 1
    tandem("down")
    assert host_snapshot.await_same(clean) == []


def test_down_leaves_the_machine_as_it_was(running: Snapshot) -> None:
    tandem("down")
    assert host_snapshot.await_same(running) == []
    assert not KUBECONFIG.exists()
    assert "nothing to do" in tandem("down").stderr


def test_down_after_a_crash_leaves_nothing_either(running: Snapshot) -> None:
    dead = {processes.SUPERVISOR, "containerd", "kubelet"}
    kill([p for p in processes.of_cluster(HERE.state) if p.component in dead])
    shutil.rmtree(LAYOUT.pki)
    tandem("down")
    assert host_snapshot.await_same(running) == []


def test_down_without_any_state_leaves_nothing_either(running: Snapshot) -> None:
    for path in (HERE.state / "record.json", Path("/run/tandem/host.json")):
        path.unlink()
    tandem("down")
    # Settings of the kernel and folders of before were written nowhere else.
    left = host_snapshot.await_same(running)
    for name, value in host_snapshot.changed_sysctls(left):
        write_sysctl(name, value)
    came = {*host_snapshot.take().paths} - {*running.paths}
    for path in map(Path, sorted(came, reverse=True)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    assert [line for line in left if not line.startswith(("sysctls", "paths"))] == []


@pytest.mark.parametrize(
    "times", [5, pytest.param(20, marks=pytest.mark.full)], ids=lambda n: f"{n}-times"
)
def test_up_and_down_again_and_again_leaves_nothing(clean: Snapshot, times: int) -> None:
    for turn in range(times):
        tandem("up")
        assert host_snapshot.differences(clean, host_snapshot.take()), "the snapshot sees nothing"
        tandem("down")
        assert host_snapshot.await_same(clean) == [], f"after turn {turn + 1}"


@pytest.fixture
def second_checkout() -> Iterator[Path]:
    """The programs of this checkout at another place (with a short path: sockets lie in it)."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        other = copy_checkout(Path(folder) / "other")
        yield other
        tandem("down", checkout=other, expect=None)


def copy_checkout(other: Path) -> Path:
    for folder in ("scripts/lib", "cluster/host"):
        shutil.copytree(ROOT / folder, other / folder)
    shutil.copy(ROOT / "versions.yaml", other)
    (other / "bin").symlink_to(BIN)
    return other


@pytest.mark.usefixtures("running")
def test_a_second_checkout_is_refused_and_told_who_has_the_machine(second_checkout: Path) -> None:
    before = status()
    for command in ("up", "down"):
        done = tandem(command, checkout=second_checkout, expect=3)
        assert str(ROOT) in done.stderr
        assert str(before["supervisor_pid"]) in done.stderr
        assert f"make -C {ROOT} cluster-down" in " ".join(done.stderr.split())
    assert pids() == {c["name"]: c["pid"] for c in before["components"]}


def test_traces_of_a_dead_clusters_checkout_are_removed(
    running: Snapshot, second_checkout: Path
) -> None:
    """Another checkout's cluster was killed whole, as by a reboot: ours may start."""
    tandem("down")
    images = second_checkout / ".bundle/images"
    images.mkdir(parents=True)
    for name in ("pause", "coredns"):
        for path in (ROOT / ".bundle/images").glob(f"{name}.*"):
            (images / path.name).symlink_to(path)
    tandem("up", checkout=second_checkout)
    state = second_checkout / ".cluster/host"
    processes.kill([p.identity for p in processes.of_cluster(state)])
    assert "left behind" in tandem("up").stderr
    assert status()["healthy"]
    tandem("down")
    assert host_snapshot.await_same(running) == []


def test_a_path_too_long_for_sockets_is_refused(clean: Snapshot, tmp_path: Path) -> None:
    done = tandem("up", checkout=copy_checkout(tmp_path / ("long" * 20)), expect=3)
    assert "move the checkout to a shorter path" in done.stderr
    assert host_snapshot.await_same(clean) == []


def test_a_taken_port_is_refused_with_its_holder(clean: Snapshot) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 10248), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = tandem("up", expect=3)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert "port 10248 is taken" in done.stderr
    assert str(os.getpid()) in done.stderr
    assert host_snapshot.await_same(clean) == []


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_without_root_nothing_is_done_and_root_is_asked_for(command: str) -> None:
    # The interpreter may lie in a folder of root's: the rights are dropped once it runs.
    program = """
import os, sys
import tandem_host.cluster, tandem_host.status
from tandem import cluster, errors
os.setgid(65534); os.setuid(65534)
errors.run_main(lambda: cluster.main([sys.argv[1], "--provider", "host"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, command],
        check=False, capture_output=True, text=True, timeout=60,
        env=tool_env({"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "root" in done.stderr
    assert "fix: sudo make cluster-" in done.stderr
    assert status()["healthy"]


def test_missing_programs_are_named_together_and_nothing_starts(
    clean: Snapshot, second_checkout: Path
) -> None:
    tandem("down")
    (second_checkout / "bin").unlink()
    done = tandem("up", checkout=second_checkout, expect=3)
    said = " ".join(done.stderr.split())
    assert "missing in ./bin: containerd, etcd, kube-apiserver" in said
    assert "missing images in the bundle: pause, coredns" in said
    assert host_snapshot.await_same(clean) == []
