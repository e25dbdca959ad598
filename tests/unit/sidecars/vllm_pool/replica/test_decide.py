from __future__ import annotations

import pytest

from vllm_pool.replica.decide import (
    Answer,
    Canary,
    Fitness,
    Limits,
    Move,
    Next,
    Registration,
    Reply,
    Sample,
    first_epoch,
    has_drained,
    judge,
    port_of,
    settle,
    stuck,
)

LIMITS = Limits(fail_after=2, pass_after=2)
LEASE = 15.0


def passed(tokens: float | None = None) -> Sample:
    return Sample(healthy=True, canary=Canary.PASSED, tokens=tokens)


def late(tokens: float | None = None, *, resting: bool = False) -> Sample:
    return Sample(
        healthy=True, canary=Canary.LATE, tokens=tokens, resting=resting, reason="no answer"
    )


GONE = Sample(refused=True, reason="connection refused")
BROKEN = Sample(healthy=True, canary=Canary.FAILED, reason="HTTP 500")


def after(*samples: Sample) -> Fitness:
    known = Fitness()
    for sample in samples:
        known = judge(known, sample, LIMITS)
    return known


def test_the_first_token_makes_a_server_ready() -> None:
    assert not after(GONE, Sample(reason="HTTP 503")).ready
    assert after(GONE, passed()).ready


def test_one_bad_look_does_not_make_it_unready_but_two_do() -> None:
    assert after(passed(), BROKEN).ready
    broken = after(passed(), BROKEN, BROKEN)
    assert not broken.ready
    assert broken.reason == "HTTP 500"


def test_a_recovery_takes_several_good_looks() -> None:
    assert not after(passed(), BROKEN, BROKEN, passed()).ready
    assert after(passed(), BROKEN, BROKEN, passed(), passed()).ready
    assert not after(passed(), BROKEN, BROKEN, passed(), BROKEN, passed()).ready


def test_a_process_that_is_gone_is_not_ready_at_once() -> None:
    assert not after(passed(), GONE).ready


def test_a_late_canary_of_a_server_that_makes_tokens_is_no_failure() -> None:
    assert after(passed(10), late(20), late(30), late(40)).ready


def test_a_late_canary_of_a_server_that_makes_none_is_a_failure() -> None:
    assert not after(passed(10), late(10), late(10)).ready
    assert not after(passed(), late(), late()).ready


def test_a_late_canary_of_a_server_that_was_told_to_rest_is_no_failure() -> None:
    assert after(passed(10), late(10, resting=True), late(10, resting=True)).ready


@pytest.mark.parametrize("sign", [[GONE], []], ids=["nothing listened", "its counter is lower"])
def test_another_process_in_its_place_begins_anew(sign: list[Sample]) -> None:
    known = after(passed(50), *sign, BROKEN if sign else passed(3))
    assert known.restarts == 1
    again = after(passed(50), *sign, passed(3))
    assert (again.ready, again.restarts) == (True, 1)


def test_a_server_that_was_never_ready_does_not_count_as_restarted() -> None:
    assert after(GONE, BROKEN, GONE, passed()).restarts == 0


def test_a_restarted_job_is_newer_whatever_its_clock_says() -> None:
    assert first_epoch(1_000, restarts=1) > first_epoch(1_900_000_000_000)
    assert first_epoch(1_001, restarts=1) > first_epoch(1_000, restarts=1)
    assert first_epoch(1_900_000_000_000, restarts=10**9) < 2**53


@pytest.mark.parametrize(
    ("command", "port"),
    [
        (("vllm", "serve", "m"), 8000),
        (("vllm", "serve", "m", "--port", "8100"), 8100),
        (("vllm", "serve", "m", "--port=8100", "--seed", "1"), 8100),
        (("vllm", "serve", "m", "--port"), 8000),
    ],
)
def test_the_port_of_a_command(command: tuple[str, ...], port: int) -> None:
    assert port_of(command) == port


def told(
    known: Registration, answer: Answer, *, now: float = 100.0, elsewhere: bool = False
) -> Next:
    return settle(known, answer, now=now, lease=LEASE, taken_elsewhere=elsewhere)


def test_a_registration_is_renewed_three_times_a_lease() -> None:
    then = told(Registration(failures=7), Answer(Reply.DONE))
    assert (then.move, then.wait) == (Move.RENEW, LEASE / 3)
    assert then.registration == Registration(taken=True, current=True)


@pytest.mark.parametrize(
    "reply", [Reply.AWAY, Reply.FAILING, Reply.REFUSED, Reply.UNKNOWN], ids=lambda r: r.value
)
def test_whatever_a_manager_fails_to_do_it_is_asked_again(reply: Reply) -> None:
    known = Registration(taken=True, current=True)
    waits = []
    for _ in range(40):
        then = told(known, Answer(reply))
        assert then.move is Move.RETRY
        known = then.registration
        waits.append(then.wait)
    assert waits[0] < 1
    assert waits == sorted(waits)
    assert waits[-1] == LEASE / 3
    assert known.taken
    assert not known.current


def test_a_manager_that_had_taken_us_and_knows_a_newer_one_ends_us() -> None:
    then = told(Registration(taken=True), Answer(Reply.CONFLICT, epoch=9))
    assert then.move is Move.YIELD


def test_a_clock_that_was_ahead_before_us_is_overruled() -> None:
    then = told(Registration(), Answer(Reply.CONFLICT, epoch=9))
    assert (then.move, then.epoch) == (Move.RAISE, 10)


def test_with_another_manager_that_has_us_a_conflict_is_overruled_only_after_two_leases() -> None:
    conflict = Answer(Reply.CONFLICT, epoch=9)
    first = told(Registration(), conflict, elsewhere=True)
    assert first.move is Move.RETRY
    soon = told(first.registration, conflict, now=100 + 1.9 * LEASE, elsewhere=True)
    assert soon.move is Move.RETRY
    then = told(soon.registration, conflict, now=100 + 2 * LEASE, elsewhere=True)
    assert (then.move, then.epoch) == (Move.RAISE, 10)


def test_a_drain_is_done_when_nothing_is_sent_here_any_more() -> None:
    assert has_drained(Answer(Reply.DONE, state="drained"), away=0)
    assert has_drained(Answer(Reply.UNKNOWN), away=0)
    assert has_drained(Answer(Reply.CONFLICT), away=0)
    assert not has_drained(Answer(Reply.DONE, state="draining"), away=0)
    assert not has_drained(Answer(Reply.DONE), away=0)


def test_a_manager_that_is_away_while_its_data_plane_answers_is_waited_for() -> None:
    assert not has_drained(Answer(Reply.FAILING), away=0)
    assert not has_drained(Answer(Reply.AWAY), away=2)
    assert has_drained(Answer(Reply.AWAY), away=3)


def test_a_server_hangs_when_canary_after_canary_is_late_and_no_token_comes() -> None:
    assert after(passed(5), late(5), late(5), late(5)).hung == 3
    assert after(passed(5), late(5), late(5), passed(6)).hung == 0
    assert after(passed(5), late(5), late(6), late(6)).hung == 1
    assert after(passed(5), late(5), late(5, resting=True)).hung == 0
    assert after(passed(5), late(5), BROKEN).hung == 0


def test_a_server_that_is_stuck_by_its_tokens_or_by_its_health() -> None:
    silent = Sample(reason="/health: no answer")
    assert not stuck(after(passed(5), late(5), late(5)), 3)
    assert stuck(after(passed(5), late(5), late(5), late(5)), 3)
    assert not stuck(after(passed(5), *[silent] * 8), 3)
    assert stuck(after(passed(5), *[silent] * 9), 3)
    assert not stuck(after(passed(5), *[silent] * 9, passed(6)), 3)
    # One that nobody listens for, or that was never ready, is somebody else's business.
    assert not stuck(after(passed(5), *[GONE] * 99), 3)
    assert not stuck(after(*[silent] * 99), 3)
    assert not stuck(after(passed(5), *[late(5)] * 99), 0)


def test_one_that_counts_no_tokens_or_was_never_ready_is_not_taken_for_hung() -> None:
    assert after(passed(), late(), late()).hung == 0
    assert after(late(5), late(5)).hung == 0
