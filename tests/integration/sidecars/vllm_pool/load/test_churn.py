"""Many clients, while the members of the pool change in every way that there is."""

from __future__ import annotations

import itertools
import os
import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

import pytest

from support.pool_fleet import Fleet, Load, loads
from support.pool_plane import Plane, until
from support.pool_serve import Balancer

CLIENTS = 64
#: Milliseconds that an answer takes: long enough that every change meets requests under way.
ANSWER_MS = 2
SHORT, LONG = pytest.param(3, id="3 s"), pytest.param(60, id="60 s", marks=pytest.mark.full)


class Churn(ABC):
    """Changes of the members, one after the other and over again."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.names = list(fleet.ports)
        self.new = itertools.count(len(self.names))
        self.done: Counter[str] = Counter()
        for name in self.names:
            fleet.behave(name, first_ms=ANSWER_MS)

    @abstractmethod
    def join(self, name: str) -> None:
        """Make one a member, or say where it is now."""

    @abstractmethod
    def drain(self, name: str) -> None:
        """Let one get nothing new, and wait until that has happened."""

    @abstractmethod
    def leave(self, name: str) -> None:
        """Make one no member."""

    def chats(self) -> dict[str, int]:
        """Return how many requests of clients each member has had."""
        return {name: self.fleet.seen(name)["requests"]["chats"] for name in self.names}

    def busy(self, load: Load) -> bool:
        """Wait until every member is asked: a change that meets no request proves nothing.

        False: the clients have ended.
        """
        before = self.chats()

        def asked() -> bool:
            now = self.chats()
            return load.over or all(now[name] > before[name] for name in self.names)

        until(asked, f"all of {self.names} are asked")
        return not load.over

    def idle(self, name: str) -> bool:
        """Whether it has nothing under way."""
        return bool(self.fleet.seen(name)["requests"]["in_flight"] == 0)

    def add(self) -> None:
        """Add one."""
        name = f"r{next(self.new)}"
        self.fleet.add(name)
        self.fleet.behave(name, first_ms=ANSWER_MS)
        self.names.append(name)
        self.join(name)

    def drain_and_end(self) -> None:
        """Drain the oldest, and end it when it has finished."""
        oldest = self.names[0]
        self.drain(oldest)
        until(lambda: self.idle(oldest), "it has finished")
        self.names.remove(oldest)
        self.leave(oldest)
        self.fleet.kill(oldest)

    def remove(self) -> None:
        """Remove the oldest without draining; it finishes what it has."""
        oldest = self.names.pop(0)
        self.leave(oldest)
        until(lambda: self.idle(oldest), "it has finished")
        self.fleet.kill(oldest)

    def kill_and_relaunch(self) -> None:
        """Kill one that is a member and asked; bring it back at another address."""
        name = self.names[-1]
        self.fleet.kill(name)
        self.fleet.relaunch(name)
        self.fleet.behave(name, first_ms=ANSWER_MS)
        self.join(name)

    def changes(self) -> list[Callable[[], None]]:
        """Return the changes in their order; there are never fewer than three members."""
        return [self.add, self.drain_and_end, self.kill_and_relaunch, self.add, self.remove]

    def go_on(self, load: Load) -> None:
        """Change members until the clients have ended."""
        for change in itertools.cycle(self.changes()):
            if not self.busy(load):
                return
            change()
            self.done[change.__name__] += 1


class OfFiles(Churn):
    """A data plane whose files the test writes."""

    def __init__(self, plane: Plane, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.plane = plane

    def _tell(self, draining: str | None = None) -> None:
        self.plane.members(self.fleet.backend(n, draining=n == draining) for n in self.names)

    def join(self, name: str) -> None:
        assert name in self.names
        self._tell()

    def drain(self, name: str) -> None:
        self._tell(draining=name)

    def leave(self, name: str) -> None:
        assert name not in self.names
        self._tell()


class OfTheManager(Churn):
    """A whole balancer, whose manager is killed, too."""

    def __init__(self, balancer: Balancer, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.balancer = balancer
        self.epochs: Counter[str] = Counter()
        for name in self.names:
            self.join(name)

    def join(self, name: str) -> None:
        self.epochs[name] += 1
        url = f"http://127.0.0.1:{self.fleet.ports[name]}"
        body = {"url": url, "epoch": self.epochs[name], "lease_seconds": 600}
        assert self.balancer.put(name, body).status == 200
        until(lambda: self._row(name) == ("ready", url), f"{name} is ready")

    def _row(self, name: str) -> tuple[str, str]:
        rows = {row["id"]: row for row in self.balancer.health()["backends"]}
        return (rows[name]["state"], rows[name]["url"]) if name in rows else ("", "")

    def drain(self, name: str) -> None:
        assert self.balancer.ask("POST", f"/pool/replicas/{name}/drain").status == 200
        until(lambda: self._row(name)[0] == "drained", f"{name} is drained")

    def leave(self, name: str) -> None:
        assert self.balancer.ask("DELETE", f"/pool/replicas/{name}").status == 200

    def kill_the_manager(self) -> None:
        """Kill the manager; the next change is asked of its successor."""
        before = self.balancer.child("manager")
        os.kill(before, signal.SIGKILL)
        until(lambda: self.balancer.child("manager") != before, "there is another manager")
        until(lambda: self.balancer.ask("GET", "/health").status == 200, "it answers")

    def changes(self) -> list[Callable[[], None]]:
        return [*super().changes(), self.kill_the_manager]


def held(churn: Churn, load: Load) -> None:
    """Change members until the clients have ended; not one request may have failed."""
    churn.go_on(load)
    said = load.result()
    print(f"{said['requests']} requests, p99 {said['p99_ms']:.0f} ms; {dict(churn.done)}")
    assert said["errors"] == {}
    assert said["requests"] > 1000
    assert set(churn.done) == {change.__name__ for change in churn.changes()}


@pytest.mark.parametrize("seconds", [SHORT, LONG])
def test_nobody_fails_while_members_change(plane: Plane, fleet: Fleet, seconds: float) -> None:
    with loads(plane.port, clients=CLIENTS, seconds=seconds) as load:
        held(OfFiles(plane, fleet), load)


@pytest.mark.full
def test_nobody_fails_while_the_manager_changes_members_and_dies(
    make_balancer: Callable[..., Balancer], fleet: Fleet
) -> None:
    # Load and pool share few processors here: a canary may be late for want of them.
    balancer = make_balancer(CANARY_SECONDS="5", HEALTH_SECONDS="5")
    churn = OfTheManager(balancer, fleet)
    with loads(balancer.port, clients=CLIENTS, seconds=60) as load:
        held(churn, load)


def test_a_killed_member_is_passed_over(plane: Plane, fleet: Fleet) -> None:
    fleet.behave("r0", first_ms=ANSWER_MS)
    with loads(plane.port, clients=CLIENTS, seconds=1) as load:
        until(lambda: fleet.seen("r0")["requests"]["chats"] > 100, "it is asked")
        fleet.kill("r0")
        said = load.result()
    assert said["errors"] == {}
    assert plane.counter("cluster.keyed.upstream_rq_retry_success") > 0
