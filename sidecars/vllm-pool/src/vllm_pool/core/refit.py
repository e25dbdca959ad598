"""New weights for all replicas with one call, and what a failure on some of them means.

The rule: those in rotation have the same weights. A call goes to every replica at once and gives
one answer. A replica on which it failed leaves the rotation, since nobody knows what it has now;
a later call of that kind that succeeds, or a new launch, brings it back. When all refused (4xx)
nothing was changed anywhere, and nobody leaves. A replica that is launched after a refit has the
weights from before: it waits for the next refit, unless it says itself that it has the pool's
version, or nobody is left who has newer ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from vllm_pool.core.rotation import Weights

_GOOD: Final = range(200, 300)
_REFUSED: Final = range(400, 500)


class Kind(StrEnum):
    """What a call touches; a failure is mended by a success of the same kind."""

    PAUSE = "pause"
    SLEEP = "sleep"
    GROUP = "group"
    WEIGHTS = "weights"
    #: Ends an update, or names it: who missed the update itself does not get it by this.
    FINISH = "finish"
    CACHE = "cache"
    #: Asks only: a failure changes nothing.
    LOOK = "look"


#: The first word of a path, and what it touches.
_KINDS: Final = {
    "pause": Kind.PAUSE,
    "resume": Kind.PAUSE,
    "abort_requests": Kind.LOOK,
    "is_paused": Kind.LOOK,
    "is_sleeping": Kind.LOOK,
    "get_world_size": Kind.LOOK,
    "weight_info": Kind.LOOK,
    "sleep": Kind.SLEEP,
    "wake_up": Kind.SLEEP,
    "init_weights_update_group": Kind.GROUP,
    "init_weight_transfer_engine": Kind.GROUP,
    "shutdown_weight_transfer_engine": Kind.GROUP,
    "start_weight_update": Kind.GROUP,
    "start_draft_weight_update": Kind.GROUP,
    "finish_weight_update": Kind.FINISH,
    "update_weight_version": Kind.FINISH,
    "collective_rpc": Kind.WEIGHTS,
    "reset_prefix_cache": Kind.CACHE,
    "reset_mm_cache": Kind.CACHE,
    "reset_encoder_cache": Kind.CACHE,
}
#: Paths that bring new weights begin with it.
NEW_WEIGHTS: Final = "update_weights"
#: Fields of a body that name the weights which a call brings.
VERSION_FIELDS: Final = ("weight_version", "new_version")
#: Field that tells a replica its place in a group; it may be an object, a number for each id.
RANK_FIELD: Final = "rank_offset"
#: First words of all other paths of a refit.
WORDS: Final = tuple(_KINDS)
#: Paths after which generation stands still, and those after which it goes on.
HALTS: Final = {"pause": "pause", "sleep": "sleep"}
GOES_ON: Final = {"resume": "pause", "wake_up": "sleep"}


def word(path: str) -> str:
    """Return the first word of a path."""
    return path.strip("/").split("/", 1)[0]


def kind(path: str) -> Kind | None:
    """Return what a path touches; None when it is no path of a refit."""
    first = word(path)
    return Kind.WEIGHTS if first.startswith(NEW_WEIGHTS) else _KINDS.get(first)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one replica said; status 0 and an error when it said nothing."""

    status: int
    body: Any = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it did what was asked."""
        return self.status in _GOOD

    def as_json(self) -> dict[str, Any]:
        """Return it as it stands in the one answer."""
        return {
            "status": self.status,
            **({"error": self.error} if self.error else {"body": self.body}),
        }


@dataclass(frozen=True, slots=True)
class Held:
    """What one launch holds, as the calls have left it.

    Attributes:
        generation: Number of the last refit that it took part in; 0: as launched.
        failed: Kinds of calls that failed on it and have not succeeded since.
        halted: What stands still on it: `pause`, `sleep`.
        version: Name of its weights; None when nobody named them.
    """

    generation: int = 0
    failed: frozenset[Kind] = frozenset()
    halted: frozenset[str] = frozenset()
    version: str | None = None


@dataclass(frozen=True, slots=True)
class PoolWeights:
    """What those in rotation hold.

    Attributes:
        generation: Number of the refit that brought it; 0: as launched.
        version: Name that it was given.
        last: Highest number that any refit was given. None is given twice: somebody may still
            hold what an earlier one has brought.
    """

    generation: int = 0
    version: str | None = None
    held: Mapping[str, Held] = field(default_factory=dict)
    last: int = 0

    def standing(self, name: str) -> Weights:
        """Return how the weights of a replica stand to the pool's."""
        held = self.held.get(name, Held())
        if held.failed:
            return Weights.FAILED
        return Weights.EQUAL if held.generation == self.generation else Weights.BEHIND

    def launched(self, name: str, version: str | None) -> PoolWeights:
        """Return them after a new launch of a replica, which says that it has `version`."""
        has_it = version is not None and version == self.version
        new = Held(generation=self.generation if has_it else 0, version=version)
        return _settled(replace(self, held={**self.held, name: new}))

    def gone(self, name: str) -> PoolWeights:
        """Return them without a replica."""
        left = {key: held for key, held in self.held.items() if key != name}
        return _settled(replace(self, held=left))

    def called(self, path: str, answers: Mapping[str, Answer], version: str | None) -> PoolWeights:
        """Return them after one call.

        Args:
            path: What was called.
            answers: What each replica that was asked said.
            version: Name of the weights that the call brings, if it names them.
        """
        touched = kind(path)
        if touched is None or touched is Kind.LOOK or refused(answers):
            return self
        news = touched is Kind.WEIGHTS and any(answer.ok for answer in answers.values())
        last = self.last + news
        generation = last if news else self.generation
        held = dict(self.held)
        for name, answer in answers.items():
            held[name] = _after(held.get(name, Held()), path, answer, generation, version)
        named = version if news else self.version
        if touched is Kind.FINISH and version is not None:
            # A name is the pool's when somebody who has the newest weights took it.
            took = [held[name] for name, answer in answers.items() if answer.ok]
            if any(each.generation == generation for each in took):
                named = version
        return _settled(PoolWeights(generation, named, held, last))


def _settled(weights: PoolWeights) -> PoolWeights:
    """Return them as they are, or as launched when nobody has the newest ones any more.

    Who failed at something else, such as a pause, has them still.
    """
    for held in weights.held.values():
        if held.generation == weights.generation and Kind.WEIGHTS not in held.failed:
            return weights
    return replace(weights, generation=0, version=None)


def _after(held: Held, path: str, answer: Answer, generation: int, version: str | None) -> Held:
    touched = kind(path) or Kind.LOOK
    if not answer.ok:
        lost = touched is Kind.WEIGHTS
        return replace(held, failed=held.failed | {touched}, version=None if lost else held.version)
    first = word(path)
    halted = held.halted
    if first in HALTS:
        halted |= {HALTS[first]}
    if first in GOES_ON:
        halted -= {GOES_ON[first]}
    mended = {touched} | ({Kind.GROUP, Kind.FINISH} if touched is Kind.WEIGHTS else set())
    if touched is not Kind.WEIGHTS:
        named = version if touched is Kind.FINISH and version is not None else held.version
        return replace(held, failed=held.failed - mended, halted=halted, version=named)
    return Held(generation, held.failed - mended, halted, version)


def refused(answers: Mapping[str, Answer]) -> bool:
    """Return whether all said that the request is wrong, so that nothing was changed."""
    return bool(answers) and all(answer.status in _REFUSED for answer in answers.values())


def one_answer(answers: Mapping[str, Answer]) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of the one answer: 200 when all did it, else 502 or 503."""
    body = {
        "ok": bool(answers) and all(answer.ok for answer in answers.values()),
        "replicas": {name: answer.as_json() for name, answer in sorted(answers.items())},
    }
    if not answers:
        return 503, {**body, "error": "no replica to ask"}
    return (200 if body["ok"] else 502), body


class BodyError(ValueError):
    """A body of a refit that cannot be sent to the replicas."""


def version_of(body: bytes) -> str | None:
    """Return the name that a body gives to the weights it brings, if it is JSON and names any."""
    said = _object(body)
    for name in VERSION_FIELDS:
        value = said.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def bodies(body: bytes, names: Iterable[str]) -> dict[str, bytes]:
    """Return what each replica is sent: the body as it is, with its own place in the group.

    A group of processes wants a number of each; the trainer gives them by id,
    `"rank_offset": {"judge-0": 1, "judge-1": 2}`. Every other body passes byte-identical.

    Raises:
        BodyError: A replica has no number.
    """
    wanted = list(names)
    said = _object(body)
    ranks = said.get(RANK_FIELD)
    if not isinstance(ranks, dict):
        return dict.fromkeys(wanted, body)
    missing = sorted(set(wanted) - ranks.keys())
    if missing:
        raise BodyError(f"{RANK_FIELD} has no number for {', '.join(missing)}")
    return {name: json.dumps({**said, RANK_FIELD: ranks[name]}).encode() for name in wanted}


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body) if body else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
