"""Each thing that a machine can lack has one problem with its value and its fix."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tandem.errors import Problem
from tandem.images import bundle
from tandem.images.bundle import Record
from tandem_host import preflight
from tandem_host.preflight import Facts, Holder
from tandem_host.settings import Ports, Settings

GIB = 1024**3

LACKS = [
    (Facts(root=False), "needs root", "sudo"),
    (Facts(admin=False), "CAP_SYS_ADMIN", "privileged"),
    (Facts(missing_tools=("etcd", "ctr")), "missing in ./bin: etcd, ctr", "make tools"),
    (Facts(missing_programs=("runc",)), "missing system programs: runc", "make system"),
    (Facts(missing_images=("pause",)), "missing images in the bundle: pause", "make images"),
    (Facts(broken_images=(Problem("pause.tar is cut", "again"),)), "pause.tar is cut", "again"),
    (Facts(missing_controllers=("memory",)), "cgroup controllers: memory", "mount"),
    (Facts(missing_features=("veth",)), "this kernel cannot do: veth", "modprobe"),
    (Facts(holders=(Holder(6443, 7, "k3s"),)), "port 6443 is taken by process 7 (k3s)", "kill 7"),
    (Facts(holders=(Holder(6443),)), "port 6443", "ss -ltnp"),
    (Facts(foreign_bridge=True), "cni0 exists", "ip link delete cni0"),
    (Facts(foreign_route="198.18.0.0/16 dev tun0"), "dev tun0", "remove the route"),
    (Facts(state_path="/a b/c"), "spaces", "plain path"),
    (Facts(state_path="/" + "x" * 80), "81 characters", "shorter path"),
    (Facts(free_disk=14 * GIB, disk_folder="/x"), "14.0 GiB free on the disk of /x", "PURGE"),
    (Facts(free_disk=2 * GIB, warm=True), "3.0 GiB are needed", "free space"),
    (Facts(free_memory=3 * GIB), "3.0 GiB of memory are free, 4.0 GiB", "end other programs"),
    (Facts(free_memory=5 * GIB, kwok_nodes=1000), "memory are free, 6.9 GiB", "(KWOK_NODES)"),
]


def test_a_sound_machine_has_no_problem() -> None:
    assert preflight.problems(Facts()) == []
    assert preflight.problems(Facts(free_disk=4 * GIB, warm=True)) == []


@pytest.mark.parametrize(("facts", "what", "fix"), LACKS, ids=[what for _, what, _ in LACKS])
def test_each_lack_is_one_problem_with_its_fix(facts: Facts, what: str, fix: str) -> None:
    found = preflight.problems(facts)
    assert len(found) == 1
    assert what in found[0].what
    assert fix in found[0].fix


def test_all_problems_are_reported_together() -> None:
    facts = Facts(
        root=False, missing_tools=("etcd",), missing_programs=("runc",), free_memory=0,
        holders=(Holder(6443, 1, "x"), Holder(2379, 2, "y")),
    )  # fmt: skip
    assert len(preflight.problems(facts)) == 6


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("0: 00000000:192B 00000000:0000 0A 0 0 0 0 0 77", {6443: "77"}),
        ("0: 0100007F:192B 00000000:0000 0A 0 0 0 0 0 77", {6443: "77"}),
        ("0: 010012C6:192B 00000000:0000 0A 0 0 0 0 0 77", {6443: "77"}),
        ("0: 00000000000000000000000000000000:192B 0:0 0A 0 0 0 0 0 77", {6443: "77"}),
        # On another address of the machine, connected, and another port.
        ("0: 0A0200C0:192B 00000000:0000 0A 0 0 0 0 0 77", {}),
        ("0: 0100007F:192B 0100007F:9999 01 0 0 0 0 0 77", {}),
        ("0: 0100007F:192C 00000000:0000 0A 0 0 0 0 0 77", {}),
    ],
)
def test_sockets_that_bar_a_port(line: str, found: dict[int, str]) -> None:
    assert preflight.listener(line, {6443}) == found


def test_the_holder_of_a_port_is_found(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        ports = Ports(**dict.fromkeys(Ports.__slots__, 1) | {"api": port})
        settings = Settings(state=tmp_path, bin=tmp_path, checkout=tmp_path, ports=ports)
        found = preflight.foreign_holders(settings)
    assert [(holder.port, holder.pid) for holder in found] == [(port, os.getpid())]
    own = Path("/proc/self/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    assert own.startswith(found[0].command.rstrip("…"))


def test_a_broken_record_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{")
    bundle.write(Record("coredns", "localhost/tandem/coredns:v1", "hash"), tmp_path)
    monkeypatch.setattr(bundle, "FOLDER", tmp_path)
    facts = preflight.gather(Settings(tmp_path / "state", tmp_path / "no-bin", tmp_path))
    assert "etcd" in facts.missing_tools
    assert facts.missing_images == ("pause",)
    [broken] = facts.broken_images
    assert "broken.json" in broken.what
    said = [problem.what for problem in preflight.problems(facts)]
    for part in ("missing in ./bin", "missing images in the bundle: pause", "broken.json"):
        assert any(part in each for each in said)
