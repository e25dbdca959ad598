"""What the agent makes of what it sees: values in, values out.

Two questions are answered here. Is this server fit to be asked (`judge`)? And what does an answer
of a manager mean for the registration (`settle`)?
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

#: Epochs are milliseconds since 1970 below this bit, and restarts of the job above it. Together
#: they stay exact in a JSON number (2**53) until the year 2109.
_RESTART_BIT: Final = 42
_MOST_RESTARTS: Final = (1 << 11) - 1
#: Leases for which a manager that never took us may insist on a newer epoch, before it is
#: overruled: by then a living newer one would have been told of by those that did take us.
CONFLICT_LEASES: Final = 2.0
_FIRST_RETRY_SECONDS: Final = 0.2
_PORT_FLAG: Final = re.compile(r"--port(?:=(\d+))?")


class Canary(Enum):
    """How a request for one token went."""

    PASSED = "passed"
    #: No answer in time: a long queue looks like this, and so does an engine that hangs.
    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server."""

    #: Nothing listens: the process is not there, or not yet.
    refused: bool = False
    healthy: bool = False
    #: None when it was not asked, since `/health` had failed already.
    canary: Canary | None = None
    #: From the canary's request to its answer.
    seconds: float = 0.0
    #: All tokens that the server has generated since its start, None when it does not say.
    tokens: float | None = None
    #: It was told to rest, by a refit or to free memory: silence is no failure then.
    resting: bool = False
    #: Why it is not well, for people.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many looks in a row change the mind."""

    fail_after: int = 2
    pass_after: int = 2


@dataclass(frozen=True, slots=True)
class Fitness:
    """What is thought of the server."""

    ready: bool = False
    #: Looks in a row that were bad, and good.
    bad: int = 0
    good: int = 0
    #: It has been ready before: the first time takes one good look, a recovery several.
    was_ready: bool = False
    tokens: float | None = None
    #: Times that another process was found in the place of the one that was known.
    restarts: int = 0
    #: Looks in a row at which it answered, and generated nothing although it was to.
    hung: int = 0
    #: Looks in a row at which something listened, and /health failed or did not answer.
    failing: int = 0
    #: Nothing listened at the last look.
    refused: bool = False
    reason: str = "not looked at yet"


def judge(known: Fitness, sample: Sample, limits: Limits) -> Fitness:
    """Return what is thought of the server after one more look.

    A process that is gone is not ready at once. A late canary of a server that has generated
    tokens since the last look, or was told to rest, says nothing either way.
    """
    restarted = known.was_ready and (
        (known.refused and not sample.refused)
        or (sample.tokens is not None and known.tokens is not None and sample.tokens < known.tokens)
    )
    now = replace(
        known,
        tokens=known.tokens if sample.tokens is None else sample.tokens,
        restarts=known.restarts + restarted,
        refused=sample.refused,
        hung=0,
        failing=0,
    )
    if restarted:
        # It has forgotten its weights and its cache: it begins as a new one.
        now = replace(now, ready=False, bad=0, good=0, was_ready=False, tokens=sample.tokens)
    if sample.refused:
        return replace(now, ready=False, bad=known.bad + 1, good=0, reason=sample.reason)
    if sample.healthy and sample.canary is Canary.PASSED:
        good = now.good + 1
        ready = now.ready or good >= (limits.pass_after if now.was_ready else 1)
        reason = "" if ready else f"{good} of {limits.pass_after} good looks after a failure"
        return replace(
            now, ready=ready, bad=0, good=good, was_ready=now.was_ready or ready, reason=reason
        )
    progress = (
        sample.tokens is not None and known.tokens is not None and sample.tokens > known.tokens
    )
    if sample.healthy and sample.canary is Canary.LATE and (progress or sample.resting):
        return now
    bad = now.bad + 1
    # Only where the counter of tokens stands still for certain: a server without one may be busy.
    still = sample.tokens is not None and sample.tokens == known.tokens
    late = sample.healthy and sample.canary is Canary.LATE and now.was_ready and still
    return replace(
        now, ready=now.ready and bad < limits.fail_after, bad=bad, good=0, reason=sample.reason,
        hung=known.hung + 1 if late else 0,
        failing=known.failing + 1 if now.was_ready and not sample.healthy else 0,
    )  # fmt: skip


def stuck(known: Fitness, hung_after: int) -> bool:
    """Return whether a server will not come back by itself.

    Args:
        known: What is thought of it.
        hung_after: Looks in a row without a token; a failing /health, which a burst can hold up
            without anything to tell it by, takes three times as many. 0: never.
    """
    return hung_after > 0 and (known.hung >= hung_after or known.failing >= 3 * hung_after)


def first_epoch(milliseconds: int, restarts: int = 0) -> int:
    """Return the epoch of a start.

    Args:
        milliseconds: Wall clock of the start, since 1970.
        restarts: Times that the job scheduler has started this job anew (SLURM_RESTART_COUNT): a
            restart is newer than what it replaces, whatever its node's clock says.
    """
    return (min(max(restarts, 0), _MOST_RESTARTS) << _RESTART_BIT) + milliseconds


def port_of(command: tuple[str, ...], default: int = 8000) -> int:
    """Return the port that a server's command line asks for."""
    port = default
    for flag, value in pairwise((*command, "")):
        if (match := _PORT_FLAG.fullmatch(flag)) and (match[1] or value).isdecimal():
            port = int(match[1] or value)
    return port


class Reply(Enum):
    """What came back from a manager."""

    #: It did as asked.
    DONE = "done"
    #: It does not know this replica.
    UNKNOWN = "unknown"
    #: It knows a newer epoch of this id, or the same epoch elsewhere.
    CONFLICT = "conflict"
    #: It refuses the request as such: the token, the URL, the id.
    REFUSED = "refused"
    #: It answers, but cannot serve: the manager behind its data plane is away.
    FAILING = "failing"
    #: Nothing answers at all.
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a manager."""

    reply: Reply
    #: For people.
    reason: str = ""
    #: The epoch that it knows, with a conflict; 0 when it does not tell.
    epoch: int = 0
    #: The state that it has this replica in, where that was asked for.
    state: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """What is known of this replica at one manager."""

    #: It has taken us at least once since the agent's start.
    taken: bool = False
    #: The last thing that it did was to take us.
    current: bool = False
    #: Failures in a row.
    failures: int = 0
    #: When it began to insist on a newer epoch.
    conflict_since: float | None = None


class Move(Enum):
    """What to do after an answer."""

    RENEW = "renew"
    RETRY = "retry"
    #: Go on with a newer epoch.
    RAISE = "raise"
    #: Somebody newer has this id: it is theirs.
    YIELD = "yield"


@dataclass(frozen=True, slots=True)
class Next:
    """What is known after an answer, and what follows from it."""

    registration: Registration
    move: Move
    #: Seconds until the next request.
    wait: float
    #: The epoch to go on with, when it is to be raised.
    epoch: int = 0


def settle(
    known: Registration, answer: Answer, *, now: float, lease: float, taken_elsewhere: bool
) -> Next:
    """Return what follows from a manager's answer to a registration.

    A conflict has two causes. Either somebody newer has our id: that is certain when this manager
    had taken us before, and then the id is theirs. Or the one before us had a clock that was
    ahead: then nobody has ever taken us, or those that have keep doing so, and we go beyond it.

    Args:
        known: What was known before.
        answer: What came back.
        now: Seconds of a monotonic clock.
        lease: Seconds of a lease.
        taken_elsewhere: Whether another manager has us at present.
    """
    renew = lease / 3
    if answer.reply is Reply.DONE:
        return Next(Registration(taken=True, current=True), Move.RENEW, renew)
    failed = replace(known, current=False, failures=known.failures + 1)
    wait = min(renew, _FIRST_RETRY_SECONDS * 2 ** min(known.failures, 20))
    if answer.reply is not Reply.CONFLICT:
        # Whatever is wrong with a manager, the server beside us is none the worse for it.
        return Next(replace(failed, conflict_since=None), Move.RETRY, wait)
    if known.taken:
        return Next(failed, Move.YIELD, renew)
    since = now if known.conflict_since is None else known.conflict_since
    failed = replace(failed, conflict_since=since)
    if taken_elsewhere and now - since < CONFLICT_LEASES * lease:
        return Next(failed, Move.RETRY, wait)
    return Next(failed, Move.RAISE, wait, epoch=answer.epoch + 1)


#: States of a member in which nothing is sent to it, nor under way.
_EMPTY_STATES: Final = frozenset({"drained", "lost"})
#: Failed connections in a row after which a balancer is taken for gone: its data plane, too.
_AWAY_AFTER: Final = 3


def has_drained(answer: Answer, away: int) -> bool:
    """Return whether a balancer sends nothing to this replica any more.

    Args:
        answer: Its answer when it was asked to drain, or how far it is.
        away: Times in a row, this one included, that nothing at all answered there.
    """
    if answer.reply is Reply.AWAY:
        return away >= _AWAY_AFTER
    # Who does not know us sends us nothing; nor does who has somebody newer under this id.
    if answer.reply in (Reply.UNKNOWN, Reply.CONFLICT):
        return True
    return answer.reply is Reply.DONE and answer.state in _EMPTY_STATES
