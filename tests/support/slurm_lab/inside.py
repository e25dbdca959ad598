"""What runs inside the lab's namespaces: pid 1 of the controller's, and of each node's.

Run by path with nothing but the standard library, and as little of it as there is a use for:
sixteen of these start at once. The controller's namespaces hold munged, slurmctld, a bridge and
the namespaces of all nodes, so that its end is the end of everything.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SECONDS = 30.0
_FREEZER = "/sys/fs/cgroup/freezer"


def main(words: Sequence[str]) -> None:
    """Be one of: `controller FOLDER`, `node FOLDER I`, or `boot FOLDER I…` in the controller's."""
    role, folder = words[0], Path(words[1])
    spec = json.loads((folder / "lab.json").read_text())
    if role == "controller":
        _controller(folder, spec)
    elif role == "boot":
        _boot(folder, spec, [int(word) for word in words[2:]])
    else:
        _node(folder, spec, int(words[2]))


def _controller(folder: Path, spec: dict[str, Any]) -> None:
    _note_namespace(folder, "ctl")
    socket.sethostname("ctl")
    for file in ("hosts", "nsswitch.conf"):
        _run("mount", "--bind", folder / file, Path("/etc") / file)
    _ip(
        "link set lo up", f"link add {spec['bridge']} type bridge",
        f"addr add {spec['network']}.1/24 dev {spec['bridge']}", f"link set {spec['bridge']} up",
    )  # fmt: skip
    run = folder / "run"
    _daemon(
        folder / "log" / "munged.out", "munged", "--force", "--foreground", "--num-threads=2",
        f"--socket={run}/munge.sock", f"--key-file={folder}/munge.key",
        f"--pid-file={run}/munged.pid", f"--log-file={folder}/log/munged.log",
        f"--seed-file={run}/munge.seed",
    )  # fmt: skip
    _wait_for(run / "munge.sock")
    conf = folder / "slurm.conf"
    _daemon(folder / "log" / "slurmctld.out", "slurmctld", "-D", "-c", "-f", str(conf))
    _boot(folder, spec, range(1, spec["nodes"] + 1))
    (run / "booted").touch()
    _reap()


def _boot(folder: Path, spec: dict[str, Any], nodes: Sequence[int]) -> None:
    """Make the namespaces of nodes, then connect them; a node's end is that of its `unshare`."""
    made = {node: _unshare_node(folder, spec, node) for node in nodes}
    for node, process in made.items():
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"made\n":
            sys.exit(f"node {node} did not come up: see {folder}/log/n{node}.out")
        link = f"{spec['link']}{node}"
        # The link of a node that crashed goes with its namespace, but not at once.
        known = {name for _, name in socket.if_nameindex()}
        stale = [f"link del {link}"] if link in known else []
        _ip(
            *stale, f"link add {link} type veth peer name eth0 netns {process.pid}",
            f"link set {link} master {spec['bridge']} up",
        )  # fmt: skip
        process.stdin.write(b"connected\n")
        process.stdin.close()


def _unshare_node(folder: Path, spec: dict[str, Any], node: int) -> subprocess.Popen[bytes]:
    words = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount"]
    cgroup = f"{_FREEZER}/{spec['cgroup']}-n{node}" if spec["freezer"] else ""
    if cgroup:
        Path(cgroup).mkdir(exist_ok=True)
        words.append("--cgroup")

    def join() -> None:
        # The root of a cgroup namespace is the cgroup that its maker is in.
        if cgroup:
            Path(cgroup, "cgroup.procs").write_text("0")

    with (folder / "log" / f"n{node}.out").open("ab") as log:
        return subprocess.Popen(
            [*words, "--fork", "--kill-child", "--mount-proc", *_myself("node", folder, node)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            preexec_fn=join,  # noqa: PLW1509 - this program has one thread
        )  # fmt: skip


def _node(folder: Path, spec: dict[str, Any], node: int) -> None:
    socket.sethostname(f"n{node}")
    if spec["freezer"]:
        _run("umount", "-l", _FREEZER)
        _run("mount", "-t", "cgroup", "-o", "freezer", "cgroup", _FREEZER)
    _own_memory(spec["visible"])
    _note_namespace(folder, f"n{node}")
    os.write(1, b"made\n")
    if sys.stdin.readline() != "connected\n":
        sys.exit("the controller has gone")
    _ip(
        "link set lo up", f"addr add {spec['network']}.{10 + node}/24 dev eth0",
        "link set eth0 up", f"route add default via {spec['network']}.1",
    )  # fmt: skip
    # The controller's end of these pipes may be gone any time.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    (folder / "spool" / f"n{node}").mkdir(parents=True, exist_ok=True)
    _daemon(
        folder / "log" / f"slurmd.n{node}.out",
        "slurmd", "-D", "-N", f"n{node}", "-f", str(folder / "slurm.conf"),
    )  # fmt: skip
    _reap()


def _own_memory(visible: Sequence[str]) -> None:
    """Give the node a /tmp and a /dev/shm of its own; what of /tmp has to be seen stays there."""
    kept = {path: os.open(path, os.O_PATH) for path in visible}
    for folder in ("/tmp", "/dev/shm"):  # noqa: S108 - the node's own
        _run("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", folder)
    for path, descriptor in kept.items():
        Path(path).mkdir(parents=True)
        _run(
            "mount", "--no-canonicalize", "--rbind", f"/proc/self/fd/{descriptor}", path,
            keep=[descriptor],
        )  # fmt: skip
        os.close(descriptor)


def _note_namespace(folder: Path, who: str) -> None:
    """Tell those outside how to find this pid namespace: pids differ there, its number does not."""
    number = Path("/proc/self/ns/pid").stat().st_ino
    part = folder / "run" / f"{who}.part"
    part.write_text(str(number))
    part.rename(folder / "run" / f"{who}.ns")


def _daemon(log: Path, *words: str) -> None:
    with log.open("ab") as out:
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _reap() -> None:
    """Take the exit codes of everything that ends here, as pid 1 has to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within {_SECONDS:g} s")
        time.sleep(0.01)


def _ip(*commands: str) -> None:
    subprocess.run(
        ["ip", "-batch", "-"], check=True, timeout=_SECONDS, text=True, input="\n".join(commands)
    )


def _run(*words: str | Path, keep: Sequence[int] = ()) -> None:
    subprocess.run(
        [str(word) for word in words], check=True, timeout=_SECONDS, pass_fds=keep,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _myself(*words: str | int | Path) -> list[str]:
    return [sys.executable, "-S", "-E", str(Path(__file__).resolve()), *map(str, words)]


if __name__ == "__main__":
    main(sys.argv[1:])
