"""What to do about a replica whose step has ended: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
#: A replica that lived so long was well: its restarts are counted anew.
WELL_SECONDS: Final = 600.0


class Why(StrEnum):
    """Why a step ended."""

    EXITED = "exited"
    NODE_LOST = "node-lost"
    #: Its agent says that it cannot be started like this: the next time would end the same way.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica and where it is.

    Attributes:
        id: Its id at the balancer, wherever it runs.
        place: Index of its place in the pool; None when it has none.
        restarts: Ends in a row.
    """

    id: str
    place: int | None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of a pool and the places that it has.

    Attributes:
        nodes: Nodes of each place, by its index.
        lost: Nodes that are gone.
    """

    replicas: Mapping[str, Replica]
    nodes: Sequence[tuple[str, ...]]
    lost: frozenset[str] = frozenset()

    def usable(self, place: int) -> bool:
        """Return whether all nodes of a place are there."""
        return not self.lost.intersection(self.nodes[place])

    def free(self) -> list[int]:
        """Return the usable places that nobody has, in order."""
        taken = {replica.place for replica in self.replicas.values()}
        return [n for n in range(len(self.nodes)) if n not in taken and self.usable(n)]


@dataclass(frozen=True, slots=True)
class Then:
    """What follows.

    Attributes:
        pool: The pool after it.
        start: Place at which the replica is started; None: nowhere, it is given up.
        wait: Seconds until then.
        reason: In words.
    """

    pool: Pool
    start: int | None
    wait: float = 0.0
    reason: str = ""


def ended(pool: Pool, name: str, why: Why, lived: float, most_restarts: int) -> Then:
    """Return what follows the end of a replica's step.

    A lost node is no fault of the replica's: it moves to a spare at once, and no restart is
    counted. One that ends by itself is started again where it was, each time later.

    Args:
        pool: The pool; the nodes that are lost are known to it.
        name: The replica.
        why: Why its step ended.
        lived: Seconds that it ran.
        most_restarts: Restarts in a row after which it is given up.
    """
    replica = pool.replicas[name]
    here = replica.place
    lost = here is not None and not pool.usable(here)
    if lost or why is Why.NODE_LOST:
        moved = replace(replica, place=None)
        without = replace(pool, replicas={**pool.replicas, name: moved})
        free = without.free()
        if not free:
            return Then(without, None, reason="its node is lost, and no spare is left")
        return Then(_at(without, moved, free[0]), free[0], reason="its node is lost: to a spare")
    if why is Why.REFUSED:
        gone = replace(replica, place=None)
        return Then(
            replace(pool, replicas={**pool.replicas, name: gone}), None,
            reason="it cannot be started like this: its log says why",
        )  # fmt: skip
    count = 1 if lived >= WELL_SECONDS else replica.restarts + 1
    counted = replace(replica, restarts=count)
    if count > most_restarts:
        gone = replace(counted, place=None)
        return Then(
            replace(pool, replicas={**pool.replicas, name: gone}), None,
            reason=f"{why}: given up after {most_restarts} restarts",
        )  # fmt: skip
    wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (count - 1))
    return Then(
        replace(pool, replicas={**pool.replicas, name: counted}), here, wait,
        reason=f"{why}: restart {count} of {most_restarts}",
    )  # fmt: skip


def _at(pool: Pool, replica: Replica, place: int) -> Pool:
    return replace(pool, replicas={**pool.replicas, replica.id: replace(replica, place=place)})


def hopeless(pool: Pool, min_ready: int) -> str:
    """Return why a pool can never be ready again; empty when it can."""
    left = sum(replica.place is not None for replica in pool.replicas.values())
    if left >= min_ready:
        return ""
    return f"{left} of {len(pool.replicas)} replicas are left, {min_ready} are needed"
