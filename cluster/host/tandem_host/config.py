"""The components' configuration files as pure functions of the settings.

Values that look odd have a reason beside them. JSON is used where the reader takes YAML:
JSON is YAML, and a dictionary cannot be indented wrongly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.paths import KWOK
from tandem_host.layout import Layout
from tandem_host.settings import (
    BRIDGE,
    CGROUP_ROOT,
    CLUSTER_DOMAIN,
    DNS_IP,
    NODE_IP,
    POD_CIDR,
    RUN_FOLDER,
    Settings,
)

#: The pause image; pinned in containerd, so no garbage collection ever takes it.
PAUSE_IMAGE = "localhost/tandem/pause:dev"
#: Name of the CNI network; part of the names of libcni's cache files.
CNI_NETWORK = "tandem"
#: Where libcni remembers what it gave each pod; it cannot be told another place.
CNI_RESULTS = Path("/var/lib/cni/results")
#: containerd's state (sockets, mounts of running containers) must not be below the
#: checkout: a socket's path may have 107 characters at most.
CONTAINERD_STATE = RUN_FOLDER / "containerd"
CONTAINERD_SOCKET = CONTAINERD_STATE / "containerd.sock"

#: The second one holds the real servers where systemd-resolved is the first one's only one.
RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_LOOPBACK_SERVER = re.compile(r"\s*nameserver\s+(127\.|::1\b)")
_KUBECONFIG_USERS = ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")


def kubeconfig(settings: Settings, user: str, *, embed: bool = False) -> str:
    """Return the kubeconfig of a user.

    Args:
        settings: The cluster.
        user: Name of its certificate.
        embed: Put the keys into the file, so that it can be copied anywhere.
    """
    layout = Layout(settings.state)

    def file(name: str, path: Path) -> dict[str, str]:
        if not embed:
            return {name: str(path)}
        import base64  # noqa: PLC0415 - one caller in ten needs it

        return {f"{name}-data": base64.b64encode(path.read_bytes()).decode()}

    return _json({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "tandem",
            "cluster": {
                "server": settings.api_url,
                **file("certificate-authority", layout.cert("ca")),
            },
        }],
        "users": [{
            "name": user,
            "user": {
                **file("client-certificate", layout.cert(user)),
                **file("client-key", layout.key(user)),
            },
        }],
        "contexts": [{"name": "tandem", "context": {"cluster": "tandem", "user": user}}],
        "current-context": "tandem",
    })  # fmt: skip


def kubelet(settings: Settings) -> str:
    """Return the KubeletConfiguration."""
    layout = Layout(settings.state)
    return _json({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "port": settings.ports.kubelet,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": settings.ports.kubelet_health,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.cert("ca"))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.cert("kubelet")),
        "tlsPrivateKeyFile": str(layout.key("kubelet")),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [DNS_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        # A host's resolver on loopback (systemd-resolved) is out of a pod's reach and
        # makes CoreDNS forward to itself: pods get the file that we write.
        "resolvConf": str(layout.resolv_conf),
        # Hosts with cgroup v1 are refused by default since Kubernetes 1.35.
        "failCgroupV1": False,
        # cgroupfs works with and without systemd as process 1.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": CGROUP_ROOT,
        "failSwapOn": False,
        "maxPods": 200,
        "podLogsDir": str(layout.pod_logs),
        "volumePluginDir": str(layout.kubelet / "volume-plugins"),
        # Images come from files only: one that was collected cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        # Lowering the score needs CAP_SYS_RESOURCE; without it the kubelet complains for ever.
        "oomScoreAdj": -999 if settings.oom_adjust else 0,
        "shutdownGracePeriod": "0s",
        # A killed kubelet's node must not look lost before the supervisor has it back.
        "nodeStatusUpdateFrequency": "5s",
        # How soon a pod sees that a mounted Secret has changed. JobSet writes the keys of its
        # webhook into one that it has mounted: at 1 min, `helmfile sync` took up to 100 s.
        "syncFrequency": "5s",
        # Every image, not the 50 largest: `make demo` looks a run's images up there.
        "nodeStatusMaxImages": -1,
    })  # fmt: skip


def proxy(settings: Settings) -> str:
    """Return the KubeProxyConfiguration."""
    layout = Layout(settings.state)
    return _json({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": settings.address,
        "healthzBindAddress": f"{settings.address}:{settings.ports.proxy_health}",
        "metricsBindAddress": f"{settings.address}:{settings.ports.proxy_metrics}",
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
        "clusterCIDR": POD_CIDR,
        "detectLocalMode": "ClusterCIDR",
        "mode": "iptables",
        # Node ports on the node's address only: the host's network is none of our business.
        "nodePortAddresses": [f"{NODE_IP}/32"],
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "100ms"},
        # Zero leaves the host's conntrack limits as they are.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": -999 if settings.oom_adjust else 0,
    })  # fmt: skip


def containerd(settings: Settings) -> str:
    """Return the configuration of containerd (TOML)."""
    layout = Layout(settings.state)
    cri = "io.containerd.cri.v1"
    return f"""\
version = 3
root = {_toml(layout.containerd)}
state = {_toml(CONTAINERD_STATE)}

[grpc]
  address = {_toml(CONTAINERD_SOCKET)}

[metrics]
  address = "{settings.address}:{settings.ports.containerd_metrics}"

[plugins."io.containerd.nri.v1.nri"]
  # Nothing here uses it, and its socket would lie outside of our folders.
  disable = true

[plugins."{cri}.images"]
  # Overlay is the only snapshotter that the host needs to have.
  snapshotter = "overlayfs"
[plugins."{cri}.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."{cri}.runtime"]
  # Without CAP_SYS_RESOURCE no score can be lowered and every sandbox would fail.
  restrict_oom_score_adj = true
  # Network namespaces below our own state folder: found and unmounted with the rest.
  netns_mounts_under_state_dir = true
[plugins."{cri}.runtime".cni]
  bin_dirs = [{_toml(settings.bin)}]
  conf_dir = {_toml(layout.cni)}
[plugins."{cri}.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."{cri}.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = {_toml(RUN_FOLDER / "runc")}
"""


def cni(settings: Settings) -> str:
    """Return the CNI network list: one bridge, addresses of the host, host ports.

    Masquerading is not the plugin's task (it makes a chain a pod): `network.py` has
    one rule for all of them.
    """
    return _json({
        "cniVersion": "1.0.0",
        "name": CNI_NETWORK,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    # The node has the first address; services of the host may get others.
                    "ranges": [[{"subnet": POD_CIDR, "rangeStart": "198.18.1.1"}]],
                    "dataDir": str(Layout(settings.state).ipam),
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    })  # fmt: skip


def kwok_stages() -> str:
    """Return what KWOK does with simulated nodes and their pods: every stage, in one stream."""
    paths = sorted((KWOK / "stages").glob("*.yaml"))
    return "---\n".join(path.read_text(encoding="utf-8") for path in paths)


def resolv_conf(host: str) -> str:
    """Return the host's resolver configuration without servers that a pod cannot reach."""
    kept = [line for line in host.splitlines() if not _LOOPBACK_SERVER.match(line)]
    return "\n".join(kept) + "\n"


def reachable_resolver(texts: Sequence[str]) -> str:
    """Return the first resolver configuration that leaves a server, cut to what pods reach."""
    cut = [resolv_conf(text) for text in texts]
    return next((text for text in cut if "nameserver" in text), cut[0] if cut else "")


def files(settings: Settings) -> dict[Path, str]:
    """Return every configuration file of the full cluster with its text."""
    layout = Layout(settings.state)
    found = {layout.kubeconfig(user): kubeconfig(settings, user) for user in _KUBECONFIG_USERS}
    found[layout.kubelet_config] = kubelet(settings)
    found[layout.proxy_config] = proxy(settings)
    found[layout.containerd_config] = containerd(settings)
    found[layout.cni / "10-tandem.conflist"] = cni(settings)
    if settings.kwok_nodes:
        found[layout.kwok_config] = kwok_stages()
    return found


def write(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file whole or not at all; one that already has the text stays untouched."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    draft.replace(path)


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def _toml(value: Path) -> str:
    # A JSON string is a TOML basic string.
    return json.dumps(str(value))
