"""Where the files of a cluster are. Every path below the state folder is named here once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one cluster; `root` is `Settings.state`."""

    root: Path

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    def cert(self, name: str) -> Path:
        """Certificate of one authority or client."""
        return self.pki / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Private key of one authority or client."""
        return self.pki / f"{name}.key"

    @property
    def service_account_key(self) -> Path:
        """Private key that signs ServiceAccount tokens."""
        return self.pki / "service-account.key"

    @property
    def service_account_public(self) -> Path:
        """Public half of `service_account_key`."""
        return self.pki / "service-account.pub"

    @property
    def config(self) -> Path:
        """Folder of the components' configuration files."""
        return self.root / "config"

    def kubeconfig(self, user: str) -> Path:
        """Kubeconfig of one component or of `admin`."""
        return self.config / f"{user}.kubeconfig"

    @property
    def kubelet_config(self) -> Path:
        """KubeletConfiguration."""
        return self.config / "kubelet.yaml"

    @property
    def proxy_config(self) -> Path:
        """KubeProxyConfiguration."""
        return self.config / "kube-proxy.yaml"

    @property
    def containerd_config(self) -> Path:
        """Configuration of containerd."""
        return self.config / "containerd.toml"

    @property
    def kwok_config(self) -> Path:
        """What KWOK does with simulated nodes and their pods."""
        return self.config / "kwok.yaml"

    @property
    def cni(self) -> Path:
        """Folder of the CNI network list."""
        return self.config / "cni"

    @property
    def resolv_conf(self) -> Path:
        """Name servers of pods that do not use the cluster's DNS."""
        return self.config / "resolv.conf"

    @property
    def etcd(self) -> Path:
        """Data of etcd."""
        return self.root / "etcd"

    @property
    def kubelet(self) -> Path:
        """Root folder of the kubelet."""
        return self.root / "kubelet"

    @property
    def pod_logs(self) -> Path:
        """Logs of the pods' containers."""
        return self.root / "pod-logs"

    @property
    def ipam(self) -> Path:
        """Addresses that pods hold."""
        return self.root / "ipam"

    @property
    def containerd(self) -> Path:
        """Images and snapshots; kept by `down` so that the next start is warm."""
        return self.root / "containerd"

    @property
    def logs(self) -> Path:
        """Logs of the components."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """Log of one component."""
        return self.logs / f"{name}.log"

    @property
    def settings(self) -> Path:
        """The settings that the supervisor was started with."""
        return self.root / "settings.json"

    @property
    def status(self) -> Path:
        """What the supervisor knows of its components."""
        return self.root / "status.json"

    @property
    def command_lock(self) -> Path:
        """Held by whichever command changes this cluster."""
        return self.root / "command.lock"
