"""Many clients, while the members of the pool change in every way that there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from support.pool_fleet import Fleet, Load, loads
from support.pool_plane import Plane, until

CLIENTS = 64


class Churn:
    """Changes of the members, one after the other and over again."""

    def __init__(self, plane: Plane, fleet: Fleet) -> None:
        self.plane = plane
        self.fleet = fleet
        self.names = list(fleet.ports)
        self.new = itertools.count(len(self.names))

    def tell(self, draining: str | None = None) -> None:
        """Tell Envoy who belongs to the pool."""
        self.plane.members(self.fleet.backend(n, draining=n == draining) for n in self.names)

    def idle(self, name: str) -> bool:
        """Whether it has nothing under way."""
        return bool(self.fleet.seen(name)["requests"]["in_flight"] == 0)

    def busy(self, load: Load) -> bool:
        """Wait until every member is asked: a change that meets no request proves nothing.

        False: the clients have ended.
        """
        before = {name: self.fleet.seen(name)["requests"]["count"] for name in self.names}

        def asked() -> bool:
            now = {name: self.fleet.seen(name)["requests"]["count"] for name in self.names}
            return load.over or all(now[name] > before[name] for name in self.names)

        until(asked, f"all of {self.names} are asked")
        return not load.over

    def add(self) -> None:
        """Add one."""
        name = f"r{next(self.new)}"
        self.fleet.add(name)
        self.fleet.behave(name, first_ms=2)
        self.names.append(name)
        self.tell()

    def drain_and_end(self) -> None:
        """Drain the oldest, and end it when it has finished."""
        oldest = self.names[0]
        self.tell(draining=oldest)
        until(lambda: self.idle(oldest), "it has finished")
        self.names.remove(oldest)
        self.tell()
        self.fleet.kill(oldest)

    def remove(self) -> None:
        """Remove the oldest without draining; it finishes what it has."""
        oldest = self.names.pop(0)
        self.tell()
        until(lambda: self.idle(oldest), "it has finished")
        self.fleet.kill(oldest)

    def kill_and_relaunch(self) -> None:
        """Kill one that is a member and asked; bring it back at another address."""
        name = self.names[-1]
        self.fleet.kill(name)
        self.fleet.relaunch(name)
        self.fleet.behave(name, first_ms=2)
        self.tell()

    def steps(self) -> Iterator[Callable[[], None]]:
        """Yield the changes without an end; there are never fewer than three members."""
        return itertools.cycle(
            [self.add, self.drain_and_end, self.kill_and_relaunch, self.add, self.remove]
        )


@pytest.mark.parametrize(
    "seconds", [pytest.param(3, id="3 s"), pytest.param(60, id="60 s", marks=pytest.mark.full)]
)
def test_nobody_fails_while_members_change(plane: Plane, fleet: Fleet, seconds: float) -> None:
    for name in fleet.ports:
        fleet.behave(name, first_ms=2)
    churn = Churn(plane, fleet)
    done = 0
    with loads(plane.port, clients=CLIENTS, seconds=seconds) as load:
        for step in churn.steps():
            if not churn.busy(load):
                break
            step()
            done += 1
        said = load.result()
    print(f"{said['requests']} requests, {done} changes, p99 {said['p99_ms']:.0f} ms")
    assert said["errors"] == {}
    assert said["requests"] > 1000
    assert done >= 5


def test_a_killed_member_is_noticed_by_what_it_costs(plane: Plane, fleet: Fleet) -> None:
    fleet.behave("r0", first_ms=2)
    with loads(plane.port, clients=CLIENTS, seconds=1) as load:
        until(lambda: fleet.seen("r0")["requests"]["count"] > 100, "it is asked")
        fleet.kill("r0")
        said = load.result()
    assert said["errors"] == {}
    assert plane.counter("cluster.keyed.upstream_rq_retry_success") > 0
