"""The pool as the manager knows it: every change of it is a method, none does any I/O.

It puts the decisions of `core` together and holds what they need: the membership, the health of
each launch, the weights, the addresses of names, and what Envoy last said of each replica.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vllm_pool.core import health as healths
from vllm_pool.core import refit, rotation
from vllm_pool.core.health import Health, HealthLimits, Kind, Probe
from vllm_pool.core.membership import Member, Membership, Registration, parse_url
from vllm_pool.core.refit import Answer, Held, PoolWeights
from vllm_pool.core.rotation import Facts, Quorum, Standing, State
from vllm_pool.dataplane.config import Backend
from vllm_pool.dataplane.stats import BackendStats

Launch = tuple[int, str]

#: Seconds for which Envoy must have seen nothing in flight on a replica that it sends nothing to.
IDLE_SECONDS: Final = 0.25
#: A manager that was not running for so long has not heard those that spoke meanwhile.
ABSENT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What the pool's owner wants. Seconds and counts are what the names say."""

    min_ready: int = 1
    slow_start_seconds: float = 10.0
    forget_seconds: float = 300.0
    health: HealthLimits = field(default_factory=HealthLimits)


@dataclass(frozen=True, slots=True)
class Seen:
    """What Envoy says of one replica.

    Attributes:
        stats: Its counters.
        at: Clock's time when they came.
        idle_since: Clock's time of the first of all looks in a row that found it drained and
            idle; None when the last one did not.
    """

    stats: BackendStats
    at: float
    idle_since: float | None = None

    @property
    def idle(self) -> bool:
        """Whether it is idle for certain: looks that are far enough apart have found it so."""
        return self.idle_since is not None and self.at - self.idle_since >= IDLE_SECONDS


@dataclass(frozen=True, slots=True)
class Row:
    """One replica, as it is shown to everybody."""

    member: Member
    standing: Standing
    health: Health
    held: Held
    inflight: int | None
    canary_seconds: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in the API's answers."""
        return {
            "id": self.member.id,
            "url": self.member.url,
            "epoch": self.member.epoch,
            "source": self.member.source,
            "state": str(self.standing.state),
            "reasons": list(self.standing.reasons),
            "weight": self.standing.weight,
            "inflight": self.inflight,
            "weight_version": self.held.version,
            "halted": sorted(self.held.halted),
            "canary_seconds": self.canary_seconds,
        }


class Pool:
    """One pool. Not for several threads."""

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        """Begin with nobody.

        Args:
            rules: What the owner wants.
            clock: Seconds that only grow.
        """
        self.rules = rules
        self.draining = False
        self.membership = Membership()
        self.weights = PoolWeights()
        self._clock = clock
        self._health: dict[str, Health] = {}
        self._canary_seconds: dict[str, float] = {}
        self._addresses: dict[str, str] = {}
        self._seen: dict[str, Seen] = {}
        self._refitting: Counter[str] = Counter()
        self._ticked = clock()

    # Who belongs to it.

    def register(self, said: Registration, source: str) -> None:
        """Take a registration or a renewal.

        Raises:
            StaleError: A newer launch is known.
            ValueError: Its id or its url is none.
        """
        self._become(self.membership.register(said, source, self._clock()))

    def sync(self, source: str, listed: Iterable[Registration]) -> None:
        """Take the whole list of a source.

        Raises:
            ValueError: An id or a url of it is none.
        """
        self._become(self.membership.sync(source, listed, self._clock()))

    def remove(self, name: str, epoch: int | None = None) -> None:
        """Take a member out.

        Raises:
            UnknownError: There is none of this id.
            StaleError: A newer launch has its place.
        """
        self._become(self.membership.remove(name, epoch))

    def drain(self, name: str, *, draining: bool) -> None:
        """Begin a drain, or take it back.

        Raises:
            UnknownError: There is none of this id.
        """
        self._become(self.membership.drain(name, draining=draining))

    def _become(self, after: Membership) -> None:
        before = self.membership.members
        for name in before.keys() - after.members.keys():
            self._forget(name)
            self.weights = self.weights.gone(name)
        for name, member in after.members.items():
            known = before.get(name)
            if known is None or known.launch != member.launch:
                self._forget(name)
                self.weights = self.weights.launched(name, member.weight_version)
            elif known.draining != member.draining and name in self._seen:
                # What was idle before may have had requests since.
                self._seen[name] = replace(self._seen[name], idle_since=None)
        self.membership = after

    def _forget(self, name: str) -> None:
        for known in (self._health, self._canary_seconds, self._seen):
            known.pop(name, None)

    # What is learned of it.

    def tick(self) -> None:
        """Let time pass: leases end, and those that ended long ago are forgotten."""
        now = self._clock()
        absent = now - self._ticked > ABSENT_SECONDS
        self._ticked = now
        if absent:
            # We have not listened; that says nothing of those who may have spoken.
            renewed = {
                name: replace(member, renewed=now)
                for name, member in self.membership.members.items()
            }
            self.membership = Membership(renewed)
        self._become(self.membership.forget(now, self.rules.forget_seconds))

    def probed(self, name: str, launch: Launch, probe: Probe, *, progress: bool = False) -> bool:
        """Take an answer of a probe; return whether the replica's health turned.

        An answer that is of an earlier launch, or came while generation was halted, says nothing.
        """
        member = self.membership.members.get(name)
        if member is None or member.launch != launch:
            return False
        if probe.kind is Kind.CANARY:
            if self.halted(name):
                return False
            self._canary_seconds[name] = probe.seconds
        before = self.health(name)
        after = healths.observe(before, probe, self.rules.health, self._clock(), progress=progress)
        self._health[name] = after
        return after.up != before.up

    def health(self, name: str) -> Health:
        """Return what the probes have shown of a replica's launch."""
        return self._health.get(name, Health())

    def halted(self, name: str) -> bool:
        """Return whether its generation may stand still because somebody asked for it."""
        return self._refitting[name] > 0 or bool(self.weights.held.get(name, Held()).halted)

    def resolved(self, host: str, address: str) -> None:
        """Take the address of a name."""
        self._addresses[host] = address

    def address_of(self, host: str) -> str | None:
        """Return the address that is known of a name."""
        return self._addresses.get(host)

    def names(self) -> set[str]:
        """Return the hosts of members that are names, not addresses."""
        hosts = {parse_url(member.url).host for member in self.membership.members.values()}
        return {host for host in hosts if not _is_address(host)}

    def measured(self, stats: Mapping[str, BackendStats] | None) -> None:
        """Take what Envoy says of its replicas; None when it does not answer."""
        if stats is None:
            self._seen = {name: replace(seen, idle_since=None) for name, seen in self._seen.items()}
            return
        now = self._clock()
        seen: dict[str, Seen] = {}
        for name, member in self.membership.members.items():
            # One that Envoy does not know has nothing from it.
            told = stats.get(name, BackendStats(draining=True))
            # A look from before the drain says nothing of what came after it.
            idle = member.draining and told.draining and told.active == 0
            before = self._seen.get(name)
            since = before.idle_since if before is not None else None
            seen[name] = Seen(told, now, (now if since is None else since) if idle else None)
        self._seen = seen

    def successes(self, name: str) -> int | None:
        """Return how many requests of clients have ended well on a replica, by Envoy."""
        seen = self._seen.get(name)
        return None if seen is None else seen.stats.success

    # Refits.

    def targets(self) -> dict[str, Member]:
        """Return those that a refit is for: all that live, whatever else is against them."""
        now = self._clock()
        return {
            name: member
            for name, member in self.membership.members.items()
            if self.health(name).up and not member.lapsed(now)
        }

    def calling(self, names: Iterable[str]) -> None:
        """Take note that a call of a refit is under way; `called_over` ends it."""
        self._refitting.update(list(names))

    def called_over(self, names: Iterable[str]) -> None:
        """Take note that such a call is over."""
        self._refitting.subtract(list(names))
        self._refitting = +self._refitting

    def called(
        self, path: str, answers: Mapping[tuple[str, Launch], Answer], version: str | None
    ) -> None:
        """Take what a call of a refit has done to each launch that it went to."""
        members = self.membership.members
        current = {
            name: answer
            for (name, launch), answer in answers.items()
            if name in members and members[name].launch == launch
        }
        self.weights = self.weights.called(path, current, version)

    # What follows from it.

    def standings(self) -> dict[str, Standing]:
        """Return where each replica stands."""
        now = self._clock()
        members = self.membership.members
        leased = [member for member in members.values() if member.lease_seconds is not None]
        # When all fell silent at once, it is the way here that is broken, and those that answer
        # our own questions go on.
        silent = bool(leased) and all(member.lapsed(now) for member in leased)
        return {
            name: rotation.judge(
                self._facts(member, now, silent=silent), now, self.rules.slow_start_seconds
            )
            for name, member in members.items()
        }

    def _facts(self, member: Member, now: float, *, silent: bool) -> Facts:
        seen = self._seen.get(member.id)
        health = self.health(member.id)
        # Of one that never served nothing has to be seen.
        idle = seen.idle if seen is not None else not health.proven
        return Facts(
            ready=member.ready,
            lapsed=member.lapsed(now) and not (silent and health.up),
            draining=member.draining,
            idle=idle,
            resolved=self._address(member) is not None,
            weights=self.weights.standing(member.id),
            health=health,
        )

    def rows(self) -> list[Row]:
        """Return all replicas by id."""
        standings = self.standings()
        return [
            Row(
                member=member,
                standing=standings[name],
                health=self.health(name),
                held=self.weights.held.get(name, Held()),
                inflight=self._seen[name].stats.active if name in self._seen else None,
                canary_seconds=self._canary_seconds.get(name),
            )
            for name, member in sorted(self.membership.members.items())
        ]

    def quorum(self) -> Quorum:
        """Return whether the pool can be counted on."""
        return rotation.quorum(self.standings(), self.rules.min_ready, draining=self.draining)

    def backends(self) -> list[Backend]:
        """Return what Envoy is told.

        Those that are out of rotation stay there as draining as long as they are members: what
        they have in flight goes on, and is counted. Those that never served are not told of.
        """
        members = self.membership.members
        found: dict[tuple[str, int], Backend] = {}
        ordered = sorted(
            self.standings().items(), key=lambda one: (one[1].in_rotation, members[one[0]].renewed)
        )
        for name, standing in ordered:
            member = members[name]
            host, port = self._address(member), parse_url(member.url).port
            if host is None or standing.state is State.JOINING:
                continue
            # One address is one replica: the later one, if two say that they are there.
            found[host, port] = Backend(
                id=name,
                host=host,
                port=port,
                weight=max(1, standing.weight),
                draining=not standing.in_rotation,
            )
        return sorted(found.values(), key=lambda backend: backend.id)

    def _address(self, member: Member) -> str | None:
        host = parse_url(member.url).host
        return host if _is_address(host) else self._addresses.get(host)

    # What outlives the manager.

    def memory(self) -> dict[str, Any]:
        """Return what the next manager has to know, as JSON's values."""
        now = self._clock()
        return {
            "draining": self.draining,
            "weights": {
                "generation": self.weights.generation,
                "version": self.weights.version,
                "last": self.weights.last,
            },
            "members": [
                {
                    "id": name,
                    "url": member.url,
                    "epoch": member.epoch,
                    "source": member.source,
                    "lease_seconds": member.lease_seconds,
                    "ready": member.ready,
                    "weight_version": member.weight_version,
                    "draining": member.draining,
                    "lapsed": member.lapsed(now),
                    "up": self.health(name).up,
                    "proven": self.health(name).proven,
                    "why": self.health(name).why,
                    "address": self._addresses.get(parse_url(member.url).host),
                    "held": _held_json(self.weights.held.get(name, Held())),
                }
                for name, member in sorted(self.membership.members.items())
            ],
        }

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Take over what an earlier manager knew: who served goes on serving, without a break.

        Leases begin anew: nobody could renew while no manager was there.

        Raises:
            LookupError, TypeError, ValueError: It is not what `memory` has returned.
        """
        now = self._clock()
        members: dict[str, Member] = {}
        held: dict[str, Held] = {}
        known: dict[str, Health] = {}
        addresses: dict[str, str] = {}
        for each in memory["members"]:
            name = str(each["id"])
            lease = each["lease_seconds"]
            members[name] = Member(
                id=name,
                url=parse_url(each["url"]).url,
                epoch=int(each["epoch"]),
                source=str(each["source"]),
                renewed=now - lease - 1e-3 if each["lapsed"] else now,
                lease_seconds=lease,
                ready=bool(each["ready"]),
                weight_version=each["weight_version"],
                draining=bool(each["draining"]),
            )
            held[name] = Held(
                generation=int(each["held"]["generation"]),
                failed=frozenset(refit.Kind(kind) for kind in each["held"]["failed"]),
                halted=frozenset(each["held"]["halted"]),
                version=each["held"]["version"],
            )
            known[name] = Health(up=each["up"], proven=each["proven"], why=each["why"])
            if each["address"]:
                addresses[parse_url(each["url"]).host] = str(each["address"])
        weights = memory["weights"]
        self.draining = bool(memory["draining"])
        self.membership = Membership(members)
        self.weights = PoolWeights(
            int(weights["generation"]), weights["version"], held, int(weights["last"])
        )
        self._health, self._addresses = known, addresses


def _held_json(held: Held) -> dict[str, Any]:
    return {
        "generation": held.generation,
        "failed": sorted(held.failed),
        "halted": sorted(held.halted),
        "version": held.version,
    }


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
