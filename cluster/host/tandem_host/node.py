"""What the node and the cluster need beyond running processes: GPUs, labels, cluster DNS."""

from __future__ import annotations

import http.client
import logging
import secrets
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import yaml

from tandem_host.probes import Api, ApiError
from tandem_host.settings import (
    API_SERVICE_IP,
    CLUSTER_DOMAIN,
    DNS_IP,
    GPU_RESOURCE,
    NODE_NAME,
    Settings,
)

NODE = f"/api/v1/nodes/{NODE_NAME}"
_WATCH = f"/api/v1/nodes?fieldSelector=metadata.name%3D{NODE_NAME}"
_WATCH_SECONDS = 300
_RETRY_SECONDS = 1.0

_MANIFESTS = Path(__file__).resolve().parents[1] / "manifests" / "coredns"
COREDNS_IMAGE = "localhost/tandem/coredns"
COREDNS = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"

#: Where objects of a kind live, below the namespace where they have one.
_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}

_log = logging.getLogger("tandem.host.node")


def is_ready(node: dict[str, Any]) -> bool:
    """Return whether a node is Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def allocatable_gpus(node: dict[str, Any]) -> int:
    """Return the GPUs that a node offers."""
    return int(node.get("status", {}).get("allocatable", {}).get(GPU_RESOURCE, 0))


def gpu_status_patch(node: dict[str, Any], gpus: int) -> dict[str, Any] | None:
    """Return the change of a node's status that gives it its GPUs, None when it has them."""
    wanted = str(gpus)
    status = node.get("status", {})
    lists = ("capacity", "allocatable")
    if all(status.get(name, {}).get(GPU_RESOURCE) == wanted for name in lists):
        return None
    return {"status": {name: {GPU_RESOURCE: wanted} for name in lists}}


def gpu_label_patch(node: dict[str, Any], gpus: int) -> dict[str, Any] | None:
    """Return the change of a node's labels that GPU schedulers look at, None when not needed."""
    wanted = {f"{GPU_RESOURCE}.count": str(gpus), f"{GPU_RESOURCE}.present": str(gpus > 0).lower()}
    labels = node.get("metadata", {}).get("labels", {})
    if all(labels.get(name) == value for name, value in wanted.items()):
        return None
    return {"metadata": {"labels": wanted}}


class GpuKeeper(threading.Thread):
    """Gives the node its simulated GPUs, and again whenever its status loses them.

    The kubelet drops extended resources that it does not know when it starts; a watch
    sees that within milliseconds. On any error the watch begins anew.
    """

    def __init__(self, settings: Settings) -> None:
        """Prepare the thread; it ends with the process."""
        super().__init__(name="gpu-keeper", daemon=True)
        self._api = Api(settings)
        self._gpus = settings.gpus
        self._pause = threading.Event()

    def run(self) -> None:
        """Watch the node for ever."""
        while True:
            try:
                for event in self._api.watch(_WATCH, _WATCH_SECONDS):
                    if event["type"] in {"ADDED", "MODIFIED"}:
                        self.tend(event["object"])
            except (OSError, ValueError, KeyError, http.client.HTTPException, ApiError) as error:
                # The API server restarts, or is not there yet: both pass.
                _log.debug("node watch ended: %s", error)
            self._pause.wait(_RETRY_SECONDS)

    def tend(self, node: dict[str, Any]) -> None:
        """Give one state of the node what it lacks."""
        status = gpu_status_patch(node, self._gpus)
        if status:
            self._api.merge(f"{NODE}/status", status)
            _log.info("gpus_patched count=%s", self._gpus)
        labels = gpu_label_patch(node, self._gpus)
        if labels:
            self._api.merge(NODE, labels)


def coredns_objects(version: str, *, forward: bool) -> list[dict[str, Any]]:
    """Return CoreDNS' manifests with the pinned image and the cluster's DNS address.

    Args:
        version: Tag of the image.
        forward: Ask the node's name servers for names outside of the cluster. CoreDNS
            refuses to start when that is asked for and there is none.
    """
    objects = []
    for path in sorted(_MANIFESTS.glob("*.yaml")):
        manifest: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if manifest["kind"] == "Deployment":
            container = manifest["spec"]["template"]["spec"]["containers"][0]
            container["image"] = f"{COREDNS_IMAGE}:{version}"
        if manifest["kind"] == "Service":
            manifest["spec"]["clusterIP"] = DNS_IP
        if manifest["kind"] == "ConfigMap" and not forward:
            lines = manifest["data"]["Corefile"].splitlines(keepends=True)
            manifest["data"]["Corefile"] = "".join(x for x in lines if "forward" not in x)
        objects.append(manifest)
    return objects


def object_path(manifest: dict[str, Any]) -> str:
    """Return the API path of a manifest's object."""
    metadata = manifest["metadata"]
    collection = _COLLECTIONS[manifest["kind"]].format(namespace=metadata.get("namespace", ""))
    return f"{collection}/{metadata['name']}"


def apply_coredns(api: Api, version: str, *, forward: bool) -> None:
    """Create or update CoreDNS."""
    for manifest in coredns_objects(version, forward=forward):
        api.apply(object_path(manifest), manifest)


def dns_answers(*, server: str = DNS_IP, timeout: float = 0.5) -> bool:
    """Return whether the cluster's DNS, asked through its Service, knows the API's address.

    This goes the way of a pod's question: Service address, kube-proxy's rules, CoreDNS.
    """
    name = f"kubernetes.default.svc.{CLUSTER_DOMAIN}"
    question = query(name, secrets.randbits(16))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.sendto(question, (server, 53))
            answer = client.recv(512)
        except OSError:
            return False
    return answer[:2] == question[:2] and answer.endswith(socket.inet_aton(API_SERVICE_IP))


def query(name: str, identifier: int) -> bytes:
    """Return a DNS question for the IPv4 address of a name."""
    header = struct.pack(">6H", identifier, 0x0100, 1, 0, 0, 0)
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return header + labels + b"\0" + struct.pack(">2H", 1, 1)
