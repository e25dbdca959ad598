"""The seven processes of a cluster, and an eighth for simulated nodes, as pure functions.

Each is an argument list, a health probe and a place in the order.

The full cluster and the tests' control plane take their processes from here, so that a
flag is written once. A `Component` is a value: nothing in this module starts anything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from tandem_host import config
from tandem_host.layout import Layout
from tandem_host.settings import (
    CLUSTER_DOMAIN,
    NODE_IP,
    NODE_NAME,
    POD_CIDR,
    SERVICE_CIDR,
    Settings,
)

#: Label of every node that a provider of ours made.
NODE_LABEL = "tandem.dev/local=true"
#: KWOK manages the nodes with this annotation, and no others.
KWOK_ANNOTATION, KWOK_FAKE = "kwok.x-k8s.io/node", "fake"
#: Addresses of simulated pods: of class E, which no network routes and no real pod has.
_KWOK_CIDR = "240.0.0.0/12"
#: KWOK renews a lease each quarter of this: two tries within the 50 s that the node controller
#: waits, and 50 requests a second for 1,000 nodes in place of 100.
_KWOK_LEASE_SECONDS = 80


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Healthy when a GET answers 200.

    Attributes:
        url: Address to ask.
        authority: Certificate of the server's authority; None for plain HTTP.
        client: Name of the certificate to show, None for none.
    """

    url: str
    authority: Path | None = None
    client: str | None = None


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """Healthy when a Unix socket accepts a connection."""

    path: Path


Probe = HttpProbe | SocketProbe


@dataclass(frozen=True, slots=True)
class Component:
    """One supervised process.

    Attributes:
        name: Its name, also that of its binary.
        argv: What to run.
        probe: How to see that it works.
        needs: Components that must be healthy before it starts.
        inputs: Files whose change means that it has to be started again.
        stop_seconds: How long it may take to end by itself.
        env: Variables on top of the common environment.
    """

    name: str
    argv: tuple[str, ...]
    probe: Probe
    needs: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    stop_seconds: float = 5.0
    env: tuple[tuple[str, str], ...] = field(default=())

    def digest(self) -> str:
        """Return what tells this start from one with other flags, files or binary."""
        binary = Path(self.argv[0])
        found = binary.stat() if binary.exists() else None
        facts = [
            list(self.argv),
            [list(pair) for pair in self.env],
            [_content(path) for path in self.inputs],
            [found.st_size, found.st_mtime_ns] if found else [],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def etcd(settings: Settings) -> Component:
    """Return etcd: one member, TLS with client certificates, no fsync (a local cluster)."""
    layout, ports = Layout(settings.state), settings.ports
    client = f"https://127.0.0.1:{ports.etcd_client}"
    # One member talks to no peer; the address is still part of the membership.
    peer = f"http://127.0.0.1:{ports.etcd_peer}"
    metrics = f"http://{settings.address}:{ports.etcd_metrics}"
    return Component(
        name="etcd",
        argv=(
            str(settings.bin / "etcd"),
            "--name=local",
            f"--data-dir={layout.etcd}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            f"--listen-metrics-urls={metrics}",
            f"--cert-file={layout.cert('etcd')}",
            f"--key-file={layout.key('etcd')}",
            f"--trusted-ca-file={layout.cert('etcd-ca')}",
            "--client-cert-auth",
            # The data does not outlive `cluster-down`: a power cut may cost it.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
        probe=HttpProbe(f"{metrics}/health"),
        inputs=(layout.cert("etcd"), layout.cert("etcd-ca")),
    )


def apiserver(settings: Settings) -> Component:
    """Return kube-apiserver with RBAC, aggregation and projected tokens."""
    layout, ports = Layout(settings.state), settings.ports
    issuer = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
    loopback = settings.address.startswith("127.")
    argv = [
        str(settings.bin / "kube-apiserver"),
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={ports.api}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--etcd-servers=https://127.0.0.1:{ports.etcd_client}",
        f"--etcd-cafile={layout.cert('etcd-ca')}",
        f"--etcd-certfile={layout.cert('etcd-client')}",
        f"--etcd-keyfile={layout.key('etcd-client')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={layout.cert('ca')}",
        f"--tls-cert-file={layout.cert('kube-apiserver')}",
        f"--tls-private-key-file={layout.key('kube-apiserver')}",
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={layout.service_account_public}",
        f"--service-account-signing-key-file={layout.service_account_key}",
        f"--kubelet-client-certificate={layout.cert('kubelet-client')}",
        f"--kubelet-client-key={layout.key('kubelet-client')}",
        f"--kubelet-certificate-authority={layout.cert('ca')}",
        # The node's name is in no DNS: `kubectl logs` and `exec` go to its address.
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={layout.cert('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={layout.cert('front-proxy')}",
        f"--proxy-client-key-file={layout.key('front-proxy')}",
        # Aggregated servers run as pods; without a route to a Service's address on some
        # hosts their endpoints are what can be reached.
        "--enable-aggregator-routing=true",
        "--shutdown-delay-duration=0s",
        "--profiling=false",
    ]
    if loopback:
        # Endpoints of the `kubernetes` Service must not be loopback addresses.
        argv.append("--endpoint-reconciler-type=none")
    return Component(
        name="kube-apiserver",
        argv=tuple(argv),
        probe=HttpProbe(f"{settings.api_url}/readyz", layout.cert("ca"), "admin"),
        needs=("etcd",),
        inputs=(
            *(layout.cert(n) for n in ("ca", "etcd-ca", "etcd-client", "kube-apiserver")),
            *(layout.cert(n) for n in ("kubelet-client", "front-proxy", "front-proxy-ca")),
            layout.service_account_public,
        ),
        # It drains watches for up to a minute; the database is stopped next anyway.
        stop_seconds=2.0,
    )


def controller_manager(settings: Settings) -> Component:
    """Return kube-controller-manager."""
    layout = Layout(settings.state)
    return _control_loop(
        settings,
        "kube-controller-manager",
        settings.ports.controller_manager,
        (
            f"--service-account-private-key-file={layout.service_account_key}",
            f"--root-ca-file={layout.cert('ca')}",
            "--use-service-account-credentials",
            f"--cluster-signing-cert-file={layout.cert('ca')}",
            f"--cluster-signing-key-file={layout.key('ca')}",
            f"--cluster-cidr={POD_CIDR}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            # The CNI plugin hands out addresses from one range: a node has no part of its own.
            "--allocate-node-cidrs=false",
            # Made when it is missing: the default lies outside of our folders.
            f"--flex-volume-plugin-dir={layout.kubelet / 'volume-plugins'}",
        ),
    )


def scheduler(settings: Settings) -> Component:
    """Return kube-scheduler."""
    return _control_loop(settings, "kube-scheduler", settings.ports.scheduler)


def containerd(settings: Settings) -> Component:
    """Return containerd."""
    layout = Layout(settings.state)
    return Component(
        name="containerd",
        argv=(
            str(settings.bin / "containerd"),
            f"--config={layout.containerd_config}",
            "--log-level=warn",
        ),
        probe=SocketProbe(config.CONTAINERD_SOCKET),
        inputs=(layout.containerd_config,),
    )


def kubelet(settings: Settings) -> Component:
    """Return the kubelet of the one node."""
    layout = Layout(settings.state)
    return Component(
        name="kubelet",
        argv=(
            str(settings.bin / "kubelet"),
            f"--config={layout.kubelet_config}",
            f"--kubeconfig={layout.kubeconfig('kubelet')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
            f"--root-dir={layout.kubelet}",
            f"--node-labels={NODE_LABEL}",
        ),
        probe=HttpProbe(f"http://127.0.0.1:{settings.ports.kubelet_health}/healthz"),
        needs=("kube-apiserver", "containerd"),
        inputs=(
            layout.kubelet_config,
            layout.kubeconfig("kubelet"),
            layout.cert("kubelet"),
            layout.cert("ca"),
        ),
    )


def proxy(settings: Settings) -> Component:
    """Return kube-proxy."""
    layout = Layout(settings.state)
    return Component(
        name="kube-proxy",
        argv=(
            str(settings.bin / "kube-proxy"),
            f"--config={layout.proxy_config}",
            f"--hostname-override={NODE_NAME}",
        ),
        probe=HttpProbe(f"http://{settings.address}:{settings.ports.proxy_health}/healthz"),
        needs=("kube-apiserver",),
        inputs=(layout.proxy_config, layout.kubeconfig("kube-proxy"), layout.cert("kube-proxy")),
        stop_seconds=3.0,
    )


def kwok(settings: Settings) -> Component:
    """Return KWOK, the kubelet of every simulated node and of no other.

    As `admin`: it does what as many kubelets would do, and the API server's queues for one
    user are too short for that.
    """
    layout = Layout(settings.state)
    server = f"127.0.0.1:{settings.ports.kwok}"
    return Component(
        name="kwok",
        argv=(
            str(settings.bin / "kwok"),
            f"--kubeconfig={layout.kubeconfig('admin')}",
            f"--config={layout.kwok_config}",
            f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}={KWOK_FAKE}",
            f"--cidr={_KWOK_CIDR}",
            f"--node-lease-duration-seconds={_KWOK_LEASE_SECONDS}",
            # Its server answers for the containers of simulated pods too, and asks nobody who
            # they are: on loopback only.
            f"--server-address={server}",
        ),
        probe=HttpProbe(f"http://{server}/healthz"),
        needs=("kube-apiserver",),
        inputs=(layout.kwok_config, layout.kubeconfig("admin"), layout.cert("admin")),
        stop_seconds=3.0,
        # It looks for configuration there: never in the home of whoever starts the cluster.
        env=(("KWOK_WORKDIR", str(layout.root / "kwok")),),
    )


def control_plane(settings: Settings) -> tuple[Component, ...]:
    """Return what answers the API, in the order to start."""
    return (etcd(settings), apiserver(settings), controller_manager(settings))


def full_cluster(settings: Settings) -> tuple[Component, ...]:
    """Return all components in the order to start; they stop in the reverse order."""
    return (
        containerd(settings),
        *control_plane(settings),
        scheduler(settings),
        proxy(settings),
        kubelet(settings),
        *((kwok(settings),) if settings.kwok_nodes else ()),
    )


def possible(settings: Settings) -> tuple[Component, ...]:
    """Return every component that may be running, whatever the settings ask for now."""
    parts = full_cluster(settings)
    return parts if settings.kwok_nodes else (*parts, kwok(settings))


def _control_loop(
    settings: Settings, name: str, port: int, flags: tuple[str, ...] = ()
) -> Component:
    """Return controller manager or scheduler: a client of the API server, one of each.

    Args:
        settings: The cluster.
        name: Its name, also that of its certificate and its kubeconfig.
        port: Where its health and metrics are.
        flags: What only this one has.
    """
    layout = Layout(settings.state)
    kubeconfig = layout.kubeconfig(name)
    return Component(
        name=name,
        argv=(
            str(settings.bin / name),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={settings.address}",
            f"--secure-port={port}",
            f"--tls-cert-file={layout.cert(name)}",
            f"--tls-private-key-file={layout.key(name)}",
            # There is one of each: an election only delays a restart by the lease's life.
            "--leader-elect=false",
            "--profiling=false",
            # At the default rate the controllers' accounts alone take four seconds to make.
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            *flags,
        ),
        probe=HttpProbe(f"https://{settings.address}:{port}/healthz", layout.cert("ca"), "admin"),
        needs=("kube-apiserver",),
        inputs=(kubeconfig, layout.cert(name), layout.cert("ca")),
        stop_seconds=3.0,
    )
