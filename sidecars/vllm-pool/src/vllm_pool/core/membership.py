"""Who belongs to the pool, as several sources say it.

A replica is known by its id. What stands behind the id may change: each launch has an epoch, and
a higher one replaces the launch before at once, wherever it listens. Words of an older launch
that come late change nothing.

A source (the API, a file, EndpointSlices) speaks for its own members only. `sync` takes its whole
list; a source that cannot be read is simply not synced, so its members stay and are judged by
their health alone. Only members with a lease can be lost by silence.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

#: Id of a replica.
ID: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?")
_HOST: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?\.?")


class StaleError(Exception):
    """Words of a launch that has been replaced, or that contradict what is known of it."""


class UnknownError(Exception):
    """There is no member of this id."""


def check_id(value: str) -> str:
    """Return an id as it was given.

    Raises:
        ValueError: It has other characters than letters, digits, `-`, `_` and `.`, or is too long.
    """
    if not ID.fullmatch(value):
        raise ValueError(
            f"{value!r} is no id: letters, digits, '-', '_' and '.', at most 128, "
            "letters or digits at both ends"
        )
    return value


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens; the host is an address or a name."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address as a URL without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Return the address in a replica's URL; a final `/` or `/v1` is no part of it.

    Raises:
        ValueError: It is no `http://host:port`.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError(f"{url!r}: the scheme must be http")
    if (
        parts.username
        or parts.query
        or parts.fragment
        or parts.path not in ("", "/", "/v1", "/v1/")
    ):
        raise ValueError(f"{url!r}: only http://host:port is taken (and a final /v1)")
    host = parts.hostname or ""
    try:
        port = parts.port or 80
    except ValueError:
        raise ValueError(f"{url!r}: the port is no number up to 65535") from None
    if ":" in host:
        host = str(ipaddress.ip_address(host))
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{url!r}: {host!r} is no host")
    return Address(host, port)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a source says of one replica.

    Attributes:
        id: Name of the replica; survives relaunches.
        url: Where it listens, `http://host:port`.
        epoch: Number of the launch; None where the source counts none (a new address is then a
            new launch).
        lease_seconds: How long this is true without being said again; None: until said otherwise.
        ready: Whether the replica itself says that it can serve.
        weight_version: What it says of its weights.
        draining: Whether it is to finish its work and get no more; None leaves that as it is.
    """

    id: str
    url: str
    epoch: int | None = None
    lease_seconds: float | None = None
    ready: bool = True
    weight_version: str | None = None
    draining: bool | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as the pool knows it.

    Attributes:
        source: Whose word put it here last.
        renewed: Clock's time of that word.
        draining: Whether it is to get no new requests.
    """

    id: str
    url: str
    epoch: int
    source: str
    renewed: float
    lease_seconds: float | None = None
    ready: bool = True
    weight_version: str | None = None
    draining: bool = False

    @property
    def launch(self) -> tuple[int, str]:
        """What tells one launch of an id from another."""
        return self.epoch, self.url

    def lapsed(self, now: float) -> bool:
        """Return whether its lease has run out."""
        return self.lease_seconds is not None and now - self.renewed > self.lease_seconds


@dataclass(frozen=True, slots=True)
class Membership:
    """All members by id; every change gives a new one."""

    members: Mapping[str, Member] = field(default_factory=dict)

    def register(self, said: Registration, source: str, now: float) -> Membership:
        """Return the membership after one registration or renewal.

        Raises:
            StaleError: Its epoch is older than the one known, or the same with another url.
            ValueError: Its id or its url is none.
        """
        check_id(said.id)
        url = parse_url(said.url).url
        known = self.members.get(said.id)
        epoch = said.epoch
        if epoch is None:
            epoch = 0 if known is None else known.epoch + (known.url != url)
        if known is not None and epoch < known.epoch:
            raise StaleError(
                f"{said.id}: epoch {epoch} is older than {known.epoch}, which is registered"
            )
        if known is not None and epoch == known.epoch and url != known.url:
            raise StaleError(
                f"{said.id}: epoch {epoch} is registered at {known.url}; "
                f"a launch at {url} needs a higher epoch"
            )
        same = known is not None and (epoch, url) == known.launch
        # A drain that was asked for is meant for the launch that runs; its successor serves.
        draining = known.draining if same and known is not None else False
        member = Member(
            id=said.id,
            url=url,
            epoch=epoch,
            source=source,
            renewed=now,
            lease_seconds=said.lease_seconds,
            ready=said.ready,
            weight_version=said.weight_version,
            draining=draining if said.draining is None else said.draining,
        )
        return Membership({**self.members, said.id: member})

    def sync(self, source: str, listed: Iterable[Registration], now: float) -> Membership:
        """Return the membership after a source's whole list: what it no longer lists is gone.

        A member that another source brought stays as it is, unless the list has a higher epoch.

        Raises:
            ValueError: An id or a url of the list is none.
        """
        after = self
        ids = set()
        for said in listed:
            ids.add(said.id)
            known = after.members.get(said.id)
            foreign = known is not None and known.source != source
            if foreign and (said.epoch is None or known is None or said.epoch <= known.epoch):
                continue
            try:
                after = after.register(said, source, now)
            except StaleError:
                # A list that lags behind (an old slice, a file written before the relaunch).
                continue
        left = {
            name: member
            for name, member in after.members.items()
            if member.source != source or name in ids
        }
        return Membership(left)

    def remove(self, name: str, epoch: int | None = None) -> Membership:
        """Return the membership without a member.

        Args:
            name: Its id.
            epoch: Launch that is meant; None for whichever runs.

        Raises:
            UnknownError: There is none of this id.
            StaleError: A newer launch than `epoch` has taken its place.
        """
        known = self._known(name)
        if epoch is not None and epoch < known.epoch:
            raise StaleError(f"{name}: epoch {epoch} has been replaced by {known.epoch}")
        return Membership({key: member for key, member in self.members.items() if key != name})

    def drain(self, name: str, *, draining: bool) -> Membership:
        """Return the membership with a drain begun or taken back.

        Raises:
            UnknownError: There is none of this id.
        """
        known = self._known(name)
        return Membership({**self.members, name: replace(known, draining=draining)})

    def forget(self, now: float, seconds: float) -> Membership:
        """Return the membership without those whose lease ran out so many seconds ago."""
        left = {
            name: member
            for name, member in self.members.items()
            if member.lease_seconds is None
            or now - member.renewed <= member.lease_seconds + seconds
        }
        return self if len(left) == len(self.members) else Membership(left)

    def _known(self, name: str) -> Member:
        known = self.members.get(name)
        if known is None:
            raise UnknownError(f"no replica {name!r}")
        return known
