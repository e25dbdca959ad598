"""The ports that something on a node has already: a pool must keep out of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Band:
    """Ports from `first` to `last`, both included."""

    name: str
    first: int
    last: int

    def holds(self, port: int) -> bool:
        """Return whether a port is in it."""
        return self.first <= port <= self.last

    def __str__(self) -> str:
        """Return it for a message."""
        span = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{span} ({self.name})"


#: Of the training's own Ray, of NeMo Gym, and what the kernel gives to outgoing connections.
RESERVED: Final = (
    Band("Ray's head and agents of the training", 1200, 1399),
    Band("Ray's workers", 2000, 2999),
    Band("Ray's head", 6379, 6379),
    Band("Ray's dashboard", 8265, 8265),
    Band("engines of vLLM", 7000, 7999),
    Band("Ray's client", 10001, 10001),
    Band("NeMo Gym", 11000, 11099),
    Band("outgoing connections", 32768, 60999),
)
#: Where private Rays of replicas are: so many ports for each place on a node.
PRIVATE_RAY_FIRST: Final = 21000
PRIVATE_RAY_PORTS: Final = 200
MOST_PLACES: Final = 16
PRIVATE_RAY: Final = Band(
    "private Rays of replicas",
    PRIVATE_RAY_FIRST,
    PRIVATE_RAY_FIRST + PRIVATE_RAY_PORTS * MOST_PLACES - 1,
)
#: An agent's port for its metrics is so far from the port of its server.
AGENT_OFFSET: Final = 1000
#: A balancer's port for its metrics is so far from its own.
METRICS_OFFSET: Final = 500


def reserved(port: int) -> Iterator[Band]:
    """Yield the bands that a port is in."""
    for band in (*RESERVED, PRIVATE_RAY):
        if band.holds(port):
            yield band


def private_ray(place: int) -> Band:
    """Return the ports of the private Ray of a replica, by its place on the node."""
    first = PRIVATE_RAY_FIRST + PRIVATE_RAY_PORTS * place
    return Band(f"private Ray of place {place}", first, first + PRIVATE_RAY_PORTS - 1)
