"""What a lab is made of, and the texts that its Slurm reads. Values in, texts out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Proctrack = Literal["cgroup", "linuxproc"]

#: Addresses of the nodes. RFC 2544 keeps 198.18.0.0/15 for tests; these live in network
#: namespaces that lead nowhere.
NETWORK = "198.18.91"
CONTROLLER = "ctl"
#: munge's socket lies in the folder, and the path of a socket has at most 107 bytes.
MAX_FOLDER = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The size and the times of a lab; all times in seconds."""

    nodes: int = 6
    gpus: int = 4
    cpus: int = 8
    #: How Slurm finds the processes of a step; linuxproc loses those that forked twice.
    proctrack: Proctrack = "cgroup"
    #: A node that is silent for this long is DOWN.
    slurmd_timeout: int = 5
    #: From TERM to KILL when a job ends.
    kill_wait: int = 5

    def problems(self) -> list[str]:
        """Return what is wrong with them."""
        bounds = (
            ("nodes", self.nodes, 1, 200), ("gpus", self.gpus, 0, 16), ("cpus", self.cpus, 1, 256),
            ("slurmd_timeout", self.slurmd_timeout, 3, 3600), ("kill_wait", self.kill_wait, 1, 600),
        )  # fmt: skip
        return [
            f"{name} is {value}; it must be {least} to {most}"
            for name, value, least, most in bounds
            if not least <= value <= most
        ]


def address(node: int) -> str:
    """Return the address of a node; nodes count from 1."""
    return f"{NETWORK}.{10 + node}"


def name(node: int) -> str:
    """Return the host name of a node."""
    return f"n{node}"


def texts(settings: Settings, folder: Path, plugin: Path | None) -> dict[str, str]:
    """Return the files that Slurm and the resolver read, by their names in the folder.

    Args:
        settings: Of the lab.
        folder: The lab's folder, which all nodes see under this path.
        plugin: The compiled fake of pyxis, if there is one.
    """
    files = {
        "slurm.conf": _slurm_conf(settings, folder),
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\n"
        "ConstrainRAMSpace=no\nConstrainDevices=no\n",
        "hosts": _hosts(settings),
        # Without AAAA entries every look-up would go on to DNS, and wait for it.
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "gres.conf": "",
    }
    if settings.gpus:
        files["gres.conf"] = (
            f"NodeName={_all(settings)} Name=gpu File={folder}/dev/nvidia[0-{settings.gpus - 1}]\n"
        )
    if plugin is not None:
        files["plugstack.conf"] = f"required {plugin} {folder}\n"
    return files


def _all(settings: Settings) -> str:
    return f"n[1-{settings.nodes}]"


def _hosts(settings: Settings) -> str:
    lines = ["127.0.0.1 localhost", f"{NETWORK}.1 {CONTROLLER}"]
    lines += [f"{address(node)} {name(node)}" for node in range(1, settings.nodes + 1)]
    return "\n".join(lines) + "\n"


def _slurm_conf(settings: Settings, folder: Path) -> str:
    run, log = folder / "run", folder / "log"
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    cores = f"CPUs={settings.cpus} Sockets=1 CoresPerSocket={settings.cpus} ThreadsPerCore=1"
    hardware = f"{cores} RealMemory=8000{gres}"
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={CONTROLLER}({NETWORK}.1)",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # One munged serves all nodes: a socket in the folder is in reach of all.
        f"AuthInfo=socket={run}/munge.sock",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={run}/slurmctld.pid",
        f"SlurmdPidFile={run}/slurmd.%n.pid",
        f"SlurmctldLogFile={log}/slurmctld.log",
        f"SlurmdLogFile={log}/slurmd.%n.log",
        "MailProg=/bin/true",
        f"ProctrackType=proctrack/{settings.proctrack}",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        # Only the backfill scheduler starts heterogeneous jobs.
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=1,bf_hetjob_immediate,sched_interval=2,batch_sched_delay=0",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/none",
        # The nodes say that they have more than this machine has.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        f"SlurmdTimeout={settings.slurmd_timeout}",
        f"KillWait={settings.kill_wait}",
        "MessageTimeout=5",
        "TCPTimeout=2",
        "UnkillableStepTimeout=20",
        "InactiveLimit=0",
        "MinJobAge=600",
        "JobRequeue=1",
        "GresTypes=gpu",
        f"NodeName=DEFAULT {hardware} State=UNKNOWN",
    ]
    lines += [
        f"NodeName={name(node)} NodeAddr={address(node)}" for node in range(1, settings.nodes + 1)
    ]
    lines.append(
        f"PartitionName=batch Nodes={_all(settings)} Default=YES MaxTime=INFINITE State=UP"
        " OverSubscribe=NO"
    )
    return "\n".join(lines) + "\n"
