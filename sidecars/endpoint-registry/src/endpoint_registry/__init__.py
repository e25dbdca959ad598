"""How the roles of a run find each other: endpoints in one ConfigMap.

    registry = EndpointRegistry("my-job", namespace="tandem", run_uid=uid, writer="gym")
    registry.publish("gym_head_server", "http://10.0.0.7:9090", lease_seconds=15)
    urls = registry.wait("vllm_base_urls", timeout=600)

Library, command line (`endpoint-registry`), and sidecar share it.
"""

from endpoint_registry.records import Entry, Owner, Run, Snapshot, State
from endpoint_registry.registry import (
    EndpointRegistry,
    PeerError,
    RegistryError,
    RegistryTimeout,
    Superseded,
)

__all__ = [
    "EndpointRegistry",
    "Entry",
    "Owner",
    "PeerError",
    "RegistryError",
    "RegistryTimeout",
    "Run",
    "Snapshot",
    "State",
    "Superseded",
]
