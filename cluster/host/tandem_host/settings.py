"""What a cluster of the host provider is made of: addresses, ports, folders.

One frozen value holds every choice, so that each other module is a function of it. The
full cluster and the small control plane of the tests differ in this value only.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tandem.errors import Problem
from tandem.paths import BIN, CLUSTER, KWOK, ROOT
from tandem_host.layout import Layout

#: Pods and Services live in the benchmark ranges of RFC 2544, which meet no one's network.
NODE_IP = "198.18.0.1"
POD_CIDR = "198.18.0.0/16"
SERVICE_CIDR = "198.19.0.0/16"
#: Pods and Services together: traffic between them keeps its addresses.
CLUSTER_RANGE = "198.18.0.0/15"
API_SERVICE_IP = "198.19.0.1"
DNS_IP = "198.19.0.10"
BRIDGE = "cni0"
NODE_NAME = "local"
CLUSTER_DOMAIN = "cluster.local"
GPU_RESOURCE = "nvidia.com/gpu"
DEFAULT_GPUS = 8
DEFAULT_PROFILE = "h100"
#: Parent of every cgroup that a pod gets: tells ours from those of another kubelet.
CGROUP_ROOT = "/tandem"
#: One host cluster a machine: its owner is written here, outside of every checkout.
RUN_FOLDER = Path("/run/tandem")


def kwok_profiles(folder: Path = KWOK / "profiles") -> list[str]:
    """Return the names of the profiles of simulated nodes."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def profile_problem(name: str) -> Problem | None:
    """Return why a name is that of no profile."""
    known = kwok_profiles()
    if name in known:
        return None
    what = f"there is no profile {name!r} of simulated nodes"
    return Problem(what, f"choose one of: {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of the components; all on loopback or the bridge, never on the LAN."""

    api: int = 6443
    etcd_client: int = 2379
    etcd_peer: int = 2380
    etcd_metrics: int = 2381
    controller_manager: int = 10257
    scheduler: int = 10259
    containerd_metrics: int = 10248 + 90
    kubelet: int = 10250
    kubelet_health: int = 10248
    proxy_metrics: int = 10249
    proxy_health: int = 10256
    kwok: int = 10247


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides how the cluster's processes are started.

    Attributes:
        state: Folder of this cluster's state; everything below it is ours.
        bin: Folder with the cluster's binaries.
        checkout: The checkout that owns the cluster; named to whoever else wants one.
        address: Address that the API server and the metrics listen on.
        gpus: Simulated GPUs of the node.
        kwok_nodes: Simulated nodes beside the real one.
        kwok_profile: What they are like: a file of cluster/kwok/profiles.
        oom_adjust: Whether processes may lower their OOM score (CAP_SYS_RESOURCE).
        ports: TCP ports of the components.
    """

    state: Path
    bin: Path
    checkout: Path
    address: str = NODE_IP
    gpus: int = DEFAULT_GPUS
    kwok_nodes: int = 0
    kwok_profile: str = DEFAULT_PROFILE
    oom_adjust: bool = True
    ports: Ports = field(default_factory=Ports)

    @property
    def api_url(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{self.ports.api}"

    def with_gpus(self, gpus: int) -> Self:
        """Return these settings with another number of GPUs."""
        return replace(self, gpus=gpus)

    def with_simulated(self, nodes: int, profile: str) -> Self:
        """Return these settings with so many simulated nodes of a profile."""
        return replace(self, kwok_nodes=nodes, kwok_profile=profile)

    def to_json(self) -> str:
        """Return the settings as text for another process of ours."""
        return json.dumps(asdict(self), default=str, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings written by `to_json`."""
        data: dict[str, Any] = json.loads(text)
        for name in ("state", "bin", "checkout"):
            data[name] = Path(data[name])
        return cls(**{**data, "ports": Ports(**data["ports"])})


def default(gpus: int = DEFAULT_GPUS) -> Settings:
    """Return the settings of this checkout's cluster."""
    return Settings(state=CLUSTER / "host", bin=BIN, checkout=ROOT, gpus=gpus)


def current() -> Settings:
    """Return the settings that this checkout's cluster was started with, or the defaults."""
    wanted = default()
    with suppress(OSError, ValueError, KeyError, TypeError):
        text = Layout(wanted.state).settings.read_text(encoding="utf-8")
        return Settings.from_json(text)
    return wanted
