"""Which nodes of a component each replica has: whole nodes, or a part of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_launcher.config import Pool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica can be.

    Attributes:
        pool: Name of the pool.
        index: Number of the place in the pool; those from `replicas` on are spares.
        component: Number of the component.
        first_node: Its first node, counted within the component as Slurm orders them.
        nodes: How many nodes it has.
        slot: Which part of the node it has; 0 when it has the whole.
        gpus_per_node: GPUs that it has on each of its nodes.
    """

    pool: str
    index: int
    component: int
    first_node: int
    nodes: int
    slot: int
    gpus_per_node: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How the replicas of a pool lie on nodes: several nodes each, or several on a node."""

    nodes: int
    per_node: int


def shape(pool: Pool, gpus_per_node: int) -> Shape | None:
    """Return how a pool's replicas lie on nodes; None when they would leave GPUs in between."""
    if pool.gpus >= gpus_per_node:
        return Shape(pool.gpus // gpus_per_node, 1) if pool.gpus % gpus_per_node == 0 else None
    return Shape(1, gpus_per_node // pool.gpus) if gpus_per_node % pool.gpus == 0 else None


def place(pools: Sequence[Pool], gpus_per_node: int, component: int) -> list[Place]:
    """Return the places of all pools of a component, one pool after the other.

    A pool begins with a node of its own: a lost node costs one pool's replicas only. The spares
    lie behind the replicas, on nodes of their own where a replica has whole nodes.

    Raises:
        ValueError: The replicas of a pool do not fit the nodes; `checks` has said so before.
    """
    found: list[Place] = []
    node = 0
    for pool in pools:
        how = shape(pool, gpus_per_node)
        if how is None:
            raise ValueError(f"{pool.name}: {pool.gpus} GPUs on nodes of {gpus_per_node}")
        for index in range(pool.replicas + pool.spares):
            start = node + (index * how.nodes if how.per_node == 1 else index // how.per_node)
            found.append(
                Place(
                    pool=pool.name,
                    index=index,
                    component=component,
                    first_node=start,
                    nodes=how.nodes,
                    slot=index % how.per_node,
                    gpus_per_node=min(pool.gpus, gpus_per_node),
                )
            )
        node = found[-1].first_node + found[-1].nodes
    return found


def nodes_of(places: Sequence[Place]) -> int:
    """Return how many nodes places take."""
    return max((each.first_node + each.nodes for each in places), default=0)
