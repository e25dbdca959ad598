"""Simulated nodes beside the real one: what they are like, and that there are as many as wanted.

KWOK plays their kubelets (`components.kwok`); how it does that is written in the stages of
`cluster/kwok/stages`, and what a node is like in the profiles of `cluster/kwok/profiles`.
No real pod lands on a simulated node: each has a taint that only the component
`kustomize/components/kwok` tolerates.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import KWOK
from tandem_host.components import KWOK_ANNOTATION as ANNOTATION
from tandem_host.components import KWOK_FAKE as FAKE
from tandem_host.probes import Api, ApiError
from tandem_host.settings import GPU_RESOURCE, Settings, profile_problem

Object = dict[str, Any]

#: Taint of each simulated node; the value is the annotation's, the effect NoSchedule.
TAINT = ANNOTATION
#: What a simulated node is told by, and what the component's node selector asks for.
SIMULATED_LABEL = "kwok.tandem.dev/simulated"
#: Its value is the profile's name: for a workload that wants nodes of one kind.
PROFILE_LABEL = "kwok.tandem.dev/profile"
#: Tells a node that was made from another text of its profile.
_DIGEST = "kwok.tandem.dev/digest"
_NODES = "/api/v1/nodes"
_OURS = f"labelSelector={SIMULATED_LABEL}"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
_LANES = 8
_WATCH_SECONDS = 60
_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(frozen=True, slots=True)
class Profile:
    """What one kind of simulated node is like.

    Attributes:
        name: Its name, that of its file.
        gpus: GPUs of a node.
        product, family, compute, machine: As NVIDIA's GPU feature discovery labels them.
        gpuMemoryMiB: Memory of one GPU.
        architecture: `amd64` or `arm64`.
        cpu, memory, ephemeralStorage, pods: What a node offers beside GPUs.
        nodesPerRack: Nodes with the same label topology.kubernetes.io/rack.
        nodesPerClique: Nodes of one NVLink domain (label nvidia.com/gpu.clique), 0 for none.
    """

    name: str
    gpus: int
    product: str
    gpuMemoryMiB: int  # noqa: N815 - as in the file
    family: str
    compute: str
    architecture: str
    machine: str
    cpu: int
    memory: str
    ephemeralStorage: str  # noqa: N815
    pods: int
    nodesPerRack: int  # noqa: N815
    nodesPerClique: int = 0  # noqa: N815

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Return the profile in a file.

        Raises:
            UserError: It lacks something, or has what no profile has.
        """
        data: Object = {"name": path.stem, **yaml.safe_load(path.read_text(encoding="utf-8"))}
        known = {each.name for each in fields(cls)}
        wrong = [f"{name} is unknown" for name in sorted(data.keys() - known)]
        wrong += [f"{name} is missing" for name in sorted(known - {"nodesPerClique"} - data.keys())]
        if wrong:
            raise UserError(
                Problem(f"{path}: {', '.join(wrong)}", "see Profile in tandem_host/kwok.py"),
                ExitCode.FAILURE,
            )
        return cls(**data)


def profile(name: str) -> Profile:
    """Return a profile by its name.

    Raises:
        UserError: There is none of that name.
    """
    if problem := profile_problem(name):
        raise UserError(problem, ExitCode.USAGE)
    return Profile.read(KWOK / "profiles" / f"{name}.yaml")


def nodes(kind: Profile, count: int) -> list[Object]:
    """Return the Node objects of a profile."""
    return [_node(kind, number) for number in range(count)]


def _node(kind: Profile, number: int) -> Object:
    name = f"{kind.name}-{number:04}"
    rack = number // kind.nodesPerRack
    labels = {
        "kubernetes.io/arch": kind.architecture,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        PROFILE_LABEL: kind.name,
        SIMULATED_LABEL: "true",
        "topology.kubernetes.io/rack": f"rack-{rack:03}",
        "nvidia.com/gpu.compute.major": kind.compute.partition(".")[0],
        "nvidia.com/gpu.compute.minor": kind.compute.partition(".")[2],
        "nvidia.com/gpu.count": str(kind.gpus),
        "nvidia.com/gpu.family": kind.family,
        "nvidia.com/gpu.machine": kind.machine,
        "nvidia.com/gpu.memory": str(kind.gpuMemoryMiB),
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": kind.product,
    }
    if kind.nodesPerClique:
        # Of a cluster's UUID and the number of the clique in it, as the driver tells them.
        clique = number // kind.nodesPerClique
        labels["nvidia.com/gpu.clique"] = f"00000000-0000-4000-8000-{clique:012}.0"
    room = {
        "cpu": str(kind.cpu),
        "memory": kind.memory,
        "ephemeral-storage": kind.ephemeralStorage,
        "pods": str(kind.pods),
        GPU_RESOURCE: str(kind.gpus),
    }
    made: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION: FAKE}},
        "spec": {"taints": [{"key": TAINT, "value": FAKE, "effect": "NoSchedule"}]},
        "status": {
            "capacity": room,
            "allocatable": room,
            # No address: whoever would ask its kubelet is told at once that there is none.
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                **dict.fromkeys(
                    ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage",
                     "containerRuntimeVersion", "kubeProxyVersion"), ""),
                "kubeletVersion": "simulated",
                "operatingSystem": "linux",
                "architecture": kind.architecture,
            },
        },
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
    made["metadata"]["annotations"][_DIGEST] = digest
    return made


def changes(wanted: Iterable[Object], present: Iterable[Object]) -> tuple[list[Object], list[str]]:
    """Return which nodes to make, and the names of those to remove before; pure.

    Args:
        wanted: The nodes that there are to be.
        present: The simulated nodes that there are; their metadata is enough.
    """
    here = {each["metadata"]["name"]: _digest_of(each) for each in present}
    listed = {each["metadata"]["name"]: each for each in wanted}
    stays = {name for name, node in listed.items() if here.get(name) == _digest_of(node)}
    return (
        [node for name, node in listed.items() if name not in stays],
        sorted(here.keys() - stays),
    )


def _digest_of(node: Object) -> str:
    return str((node["metadata"].get("annotations") or {}).get(_DIGEST, ""))


def wanted_nodes(settings: Settings) -> list[Object]:
    """Return the nodes that a cluster of these settings has."""
    if not settings.kwok_nodes:
        return []
    return nodes(profile(settings.kwok_profile), settings.kwok_nodes)


def difference(api: Api, settings: Settings) -> tuple[list[Object], list[str]]:
    """Return which nodes to make, and the names of those to remove before.

    Raises:
        ApiError: The API server refused.
        OSError: It could not be reached.
    """
    present = api.call("GET", f"{_NODES}?{_OURS}", accept=_METADATA)["items"] or []
    return changes(wanted_nodes(settings), present)


def change(api: Api, make: list[Object], remove: list[str]) -> None:
    """Remove nodes with their pods, then make others; doing it again does no harm.

    Raises:
        ApiError: The API server refused.
        OSError: It could not be reached.
    """
    with ThreadPoolExecutor(_LANES) as pool:
        if remove:
            # The nodes first: the scheduler must not put the next pod there.
            list(pool.map(partial(_delete, api), (f"{_NODES}/{name}" for name in remove)))
            list(pool.map(partial(_delete, api), _pods_on(api, set(remove))))
        list(pool.map(partial(_create, api), make))


def _create(api: Api, node: Object) -> None:
    try:
        api.call("POST", _NODES, node)
    except ApiError as error:
        # A call that was repeated: it is there.
        if error.status != _CONFLICT:
            raise


def _delete(api: Api, path: str) -> None:
    try:
        api.call("DELETE", path, {"gracePeriodSeconds": 0})
    except ApiError as error:
        # Somebody else was first.
        if error.status != _NOT_FOUND:
            raise


def _pods_on(api: Api, gone: set[str]) -> Iterator[str]:
    """Yield the paths of the pods on some nodes: nobody would end them any more."""
    for pod in api.call("GET", "/api/v1/pods?fieldSelector=spec.nodeName!%3D")["items"]:
        if pod["spec"].get("nodeName") in gone:
            place = pod["metadata"]
            yield f"/api/v1/namespaces/{place['namespace']}/pods/{place['name']}"


def is_ready(node: Mapping[str, Any]) -> bool:
    """Return whether a node is Ready and takes pods that tolerate its own taint."""
    conditions = node.get("status", {}).get("conditions", [])
    taints = (node.get("spec") or {}).get("taints") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and all(taint["key"] == TAINT for taint in taints)


def await_ready(api: Api, count: int, seconds: float) -> None:
    """Watch until so many simulated nodes are Ready.

    Raises:
        UserError: They were not, in that time.
    """
    deadline = time.monotonic() + seconds
    ready: set[str] = set()
    while len(ready) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise UserError(
                Problem(f"{len(ready)} of {count} simulated nodes are Ready after {seconds:.0f} s",
                        "read .cluster/host/logs/kwok.log, or take fewer: KWOK_NODES=100"),
                ExitCode.FAILURE,
            )  # fmt: skip
        # Each watch begins with all that there is.
        ready.clear()
        with suppress(OSError, http.client.HTTPException, ValueError, ApiError):
            for event in api.watch(f"{_NODES}?{_OURS}", max(1, int(min(left, _WATCH_SECONDS)))):
                _note(event, ready)
                if len(ready) >= count:
                    return


def _note(event: Mapping[str, Any], ready: set[str]) -> None:
    node = event["object"]
    if event["type"] in {"ADDED", "MODIFIED"} and is_ready(node):
        ready.add(node["metadata"]["name"])
    elif event["type"] in {"MODIFIED", "DELETED"}:
        ready.discard(node["metadata"]["name"])


def count(api: Api) -> tuple[int, int]:
    """Return how many simulated nodes are Ready, and how many there are.

    The server's own table is a tenth of the objects.
    """
    table = api.call("GET", f"{_NODES}?{_OURS}&includeObject=None", accept=_TABLE)
    column = [each["name"] for each in table["columnDefinitions"]].index("Status")
    states = [str(row["cells"][column]).split(",")[0] for row in table.get("rows") or []]
    return states.count("Ready"), len(states)
