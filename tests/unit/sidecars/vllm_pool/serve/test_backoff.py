"""How soon a process that ended is started again."""

from __future__ import annotations

from itertools import pairwise

from vllm_pool.serve.backoff import WELL_SECONDS, Backoff


def test_the_first_end_is_followed_by_a_start_within_a_second() -> None:
    wait = Backoff().ended(WELL_SECONDS)
    assert wait is not None
    assert wait < 1


def test_one_that_ends_at_once_every_time_waits_longer_and_is_given_up() -> None:
    backoff = Backoff()
    waits = []
    while (wait := backoff.ended(0.1)) is not None:
        waits.append(wait)
        assert len(waits) < 100
    assert all(a <= b for a, b in pairwise(waits))
    assert len(waits) > 5


def test_one_that_was_well_begins_a_new_series() -> None:
    backoff = Backoff()
    first = backoff.ended(0.1)
    for _ in range(5):
        backoff.ended(0.1)
    assert backoff.never_lived
    assert backoff.ended(WELL_SECONDS) == first
    assert not backoff.never_lived
