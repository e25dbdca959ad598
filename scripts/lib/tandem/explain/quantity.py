"""Kubernetes' quantities in the units of KAI's queues."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_MB = 10**6


def parse(text: str | float) -> Decimal:
    """Return a quantity such as `500m`, `4Gi` or `1e3` in its base unit.

    Raises:
        ValueError: It is no quantity.
    """
    word = str(text).strip()
    for length in (2, 1):
        factor = _SUFFIXES.get(word[-length:])
        if factor is not None:
            word = word[:-length]
            break
    else:
        factor = Decimal(1)
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None
    if not number.is_finite():
        raise ValueError(f"{text!r} is no quantity")
    return number * factor


def _ceiling(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of the three that KAI's queues count: devices, millicores, 10^6 bytes."""

    gpu: int = 0
    cpu: int = 0
    memory: int = 0

    def __add__(self, other: Resources) -> Resources:
        """Return the sum."""
        return Resources(self.gpu + other.gpu, self.cpu + other.cpu, self.memory + other.memory)

    def __mul__(self, times: int) -> Resources:
        """Return so many of it."""
        return Resources(self.gpu * times, self.cpu * times, self.memory * times)

    def at_least(self, other: Resources) -> Resources:
        """Return the greater of both, each kind by itself."""
        return Resources(
            max(self.gpu, other.gpu), max(self.cpu, other.cpu), max(self.memory, other.memory)
        )

    def times_in(self, room: Resources) -> int | None:
        """Return how often it goes into a room; None when it asks for nothing."""
        counts = [
            there // asked
            for asked, there in (
                (self.gpu, room.gpu), (self.cpu, room.cpu), (self.memory, room.memory),
            )
            if asked > 0
        ]  # fmt: skip
        return max(min(counts), 0) if counts else None


def resources_of(quantities: dict[str, str | float]) -> Resources:
    """Return what a table of Kubernetes' quantities holds (requests, or a node's allocatable).

    Raises:
        ValueError: One of the three is no quantity.
    """
    return Resources(
        gpu=_ceiling(parse(quantities.get("nvidia.com/gpu", 0))),
        cpu=_ceiling(parse(quantities.get("cpu", 0)) * 1000),
        memory=_ceiling(parse(quantities.get("memory", 0)) / _MB),
    )
