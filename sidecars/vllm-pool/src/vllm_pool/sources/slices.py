"""The EndpointSlices of a Service as a list of replicas.

A replica is known by the name of its pod. An endpoint that is not ready is one still: whether it
serves is for our own probes to say, and a pod that terminates finishes what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tandem_common import logs
from tandem_common.kube import Client, ClusterConfig, Informer, Resource
from vllm_pool.core.membership import Registration

SOURCE: Final = "slices"
SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_SERVICE_LABEL: Final = "kubernetes.io/service-name"
#: Longest wait for news; a thread that waits cannot be cancelled.
_WAIT_SECONDS: Final = 2.0
_FAMILIES: Final = ("IPv4", "IPv6")


def members(slices: Iterable[Mapping[str, Any]], port_name: str) -> list[Registration]:
    """Return the replicas that slices list, by id.

    Args:
        slices: The objects.
        port_name: Name of the port that the replicas serve on; the first one when empty.
    """
    found: dict[str, Registration] = {}
    for each in slices:
        ports = each.get("ports") or []
        chosen = [port for port in ports if not port_name or port.get("name") == port_name]
        number = chosen[0].get("port") if chosen else None
        if number is None or each.get("addressType") not in _FAMILIES:
            continue
        for endpoint in each.get("endpoints") or []:
            target = endpoint.get("targetRef") or {}
            addresses = endpoint.get("addresses") or []
            if not addresses:
                continue
            conditions = endpoint.get("conditions") or {}
            host = str(addresses[0])
            name = str(target.get("name") or host.replace(":", ".").strip("."))
            shown = f"[{host}]" if ":" in host else host
            registration = Registration(
                id=name,
                url=f"http://{shown}:{number}",
                draining=True if conditions.get("terminating") else None,
            )
            # Of one pod with two families the first in order is taken, always the same.
            if name not in found or registration.url < found[name].url:
                found[name] = registration
    return [found[name] for name in sorted(found)]


async def follow(
    config: ClusterConfig,
    service: str,
    namespace: str,
    port_name: str,
    synced: Callable[[str, list[Registration]], None],
) -> None:
    """Tell of every list that the slices have had, for ever.

    While the API server cannot be reached nothing changes.
    """
    log = logs.get_logger(source=SOURCE, service=service)
    client = Client(config, user_agent="vllm-pool")
    informer = Informer(
        client, SLICES, namespace=namespace, label_selector=f"{_SERVICE_LABEL}={service}"
    )
    known: list[Registration] | None = None
    trouble = ""
    try:
        informer.start()
        seen = -1
        while True:
            seen = await asyncio.to_thread(informer.wait, seen, _WAIT_SECONDS)
            now = str(informer.error or "")
            if now and now != trouble:
                log.warning("slices_unseen", reason=now)
            trouble = now
            if not informer.synced:
                continue
            listed = members(informer.objects().values(), port_name)
            if listed != known:
                known = listed
                log.info("members_read", replicas=len(listed))
                synced(SOURCE, listed)
    finally:
        # Closing wakes the thread that waits, and waits for the one that watches.
        await asyncio.to_thread(informer.close)
        client.close()
