from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from gym_server.children import Child
from gym_server.link import Nobody
from gym_server.metrics import Metrics
from gym_server.phases import Phase
from gym_server.program import (
    Complaint,
    Lost,
    News,
    PeerFailedError,
    Program,
    RunFailedError,
    StoppedError,
)
from gym_server.signals import Crashed, Mailbox, Stop, catch, thread
from tandem_common.errors import UserError

PHASE = Phase("p", awaits="x", side="the RL side", look="there", seconds=0.05, variable="P_SECONDS")


class Recorder(Nobody):
    """No registry either, but it remembers the last words."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def fail(self, message: str) -> None:
        self.words.append(message)

    def withdraw(self) -> None:
        self.words.append("withdrawn")


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def program(mailbox: Mailbox) -> Program:
    metrics = Metrics("x", ["p"], CollectorRegistry())
    return Program(mailbox, Recorder(), metrics, progress_seconds=0.01)


def words(program: Program) -> list[str]:
    assert isinstance(program.link, Recorder)
    return program.link.words


def test_a_phase_ends_with_what_was_waited_for(program: Program, mailbox: Mailbox) -> None:
    mailbox.put(News({"a": "1"}))
    mailbox.put(News({"a": "2", "b": "3"}))
    assert program.until(PHASE, lambda: program.values.get("b")) == "3"
    assert program.values == {"a": "2", "b": "3"}


def test_what_is_known_already_is_not_waited_for(program: Program) -> None:
    program.take(News({"a": "1"}))
    assert program.until(PHASE, lambda: program.values.get("a")) == "1"


def test_a_phase_ends_at_its_deadline_although_news_keep_coming(
    program: Program, mailbox: Mailbox
) -> None:
    def never() -> None:
        mailbox.put(News({}))

    with pytest.raises(UserError) as caught:
        program.until(PHASE, never, lambda: "silence")
    assert caught.value.code == 4
    assert "phase p: the RL side: no x within 0 s; last: silence" in str(caught.value)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (Stop(signal.SIGTERM), StoppedError),
        (Complaint("no GPU", "driver"), PeerFailedError),
        (Lost("403"), UserError),
        (Crashed("probe", ValueError("x")), RuntimeError),
        ("unheard of", TypeError),
    ],
)
def test_what_ends_a_run_ends_every_phase(
    program: Program, mailbox: Mailbox, event: object, error: type[Exception]
) -> None:
    mailbox.put(event)
    with pytest.raises(error):
        program.until(PHASE, lambda: None)


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoppedError(Stop(signal.SIGTERM)), 143, ["withdrawn"]),
        (StoppedError(Stop(signal.SIGINT)), 130, ["withdrawn"]),
        (RunFailedError("it broke", 7), 7, ["it broke", "withdrawn"]),
        # The cause stands there already.
        (PeerFailedError("theirs"), 1, ["withdrawn"]),
    ],
)
def test_the_others_are_told_before_everything_is_taken_back(
    program: Program, error: Exception, code: int, said: list[str]
) -> None:
    assert program.conclude(lambda: fail(error)) == code
    assert words(program) == said


def test_a_defect_of_ours_is_told_too(program: Program) -> None:
    with pytest.raises(ZeroDivisionError):
        program.conclude(lambda: fail(ZeroDivisionError("ours")))
    assert words(program) == ["Program: ZeroDivisionError: ours", "withdrawn"]


def test_a_message_is_for_a_person_and_not_longer_than_one_reads(program: Program) -> None:
    program.conclude(lambda: fail(RunFailedError("x" * 100_000)))
    assert len(words(program)[0]) == 4000


def test_a_thread_that_ends_by_a_defect_is_heard_of(mailbox: Mailbox) -> None:
    thread("worker", lambda: fail(ValueError("x")), mailbox.put).start()
    event = mailbox.get(20)
    assert isinstance(event, Crashed)
    assert event.thread == "worker"


@pytest.fixture
def sleeper(mailbox: Mailbox) -> Iterator[Child]:
    child = Child(
        "it", [sys.executable, "-c", "import signal, time; signal.pause()"],
        env=dict(os.environ), out=sys.stdout.buffer, err=sys.stderr.buffer, on_end=mailbox.put,
    )  # fmt: skip
    child.start()
    yield child
    child.stop(0)


def test_ending_a_child_that_listens_kills_nothing(program: Program, sleeper: Child) -> None:
    assert program.end(sleeper, 20, group=True)
    assert sleeper.ended is not None
    assert program.ended["it"] is sleeper.ended
    assert program.end(sleeper, 20, group=True)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_request_to_end_is_an_event_once_somebody_reads(mailbox: Mailbox) -> None:
    catch(mailbox)
    mailbox.read = True
    os.kill(os.getpid(), signal.SIGTERM)
    assert mailbox.get(20) == Stop(signal.SIGTERM)


@pytest.mark.usefixtures("handlers")
def test_before_that_it_ends_the_process(mailbox: Mailbox) -> None:
    catch(mailbox)
    with pytest.raises(SystemExit) as caught:
        os.kill(os.getpid(), signal.SIGHUP)
    assert caught.value.code == 129
