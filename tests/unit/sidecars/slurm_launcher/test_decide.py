"""What follows when a replica's step has ended."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slurm_launcher.allocation.decide import (
    WELL_SECONDS,
    Pool,
    Replica,
    Why,
    ended,
    hopeless,
)

NODES = (("n3",), ("n4",), ("n5",))


def pool(*, lost: frozenset[str] = frozenset()) -> Pool:
    """Two replicas and a spare place."""
    return Pool({"a": Replica("a", 0), "b": Replica("b", 1)}, NODES, lost)


def test_one_whose_node_is_lost_moves_to_the_spare_at_once_and_nothing_is_counted() -> None:
    then = ended(pool(lost=frozenset({"n4"})), "b", Why.NODE_LOST, 5, 3)
    assert (then.start, then.wait) == (2, 0.0)
    assert then.pool.replicas["b"] == Replica("b", 2)


def test_a_step_that_ended_by_itself_on_a_lost_node_moves_too() -> None:
    then = ended(pool(lost=frozenset({"n4"})), "b", Why.EXITED, 5, 3)
    assert then.start == 2


def test_without_a_spare_it_is_given_up_and_the_pool_counts_who_is_left() -> None:
    first = ended(pool(lost=frozenset({"n4", "n5"})), "b", Why.NODE_LOST, 5, 3)
    assert first.start is None
    assert hopeless(first.pool, 1) == ""
    assert "1 of 2 replicas are left, 2 are needed" in hopeless(first.pool, 2)


def test_one_that_ends_by_itself_is_started_again_where_it_was_each_time_later() -> None:
    now, waits = pool(), []
    for _ in range(3):
        then = ended(now, "a", Why.EXITED, 1, 3)
        assert then.start == 0
        waits.append(then.wait)
        now = then.pool
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert ended(now, "a", Why.EXITED, 1, 3).start is None


def test_one_that_was_well_for_long_begins_to_count_anew() -> None:
    now = pool()
    now = replace(now, replicas={**now.replicas, "a": Replica("a", 0, restarts=3)})
    assert ended(now, "a", Why.EXITED, WELL_SECONDS, 3).start == 0
    assert ended(now, "a", Why.EXITED, WELL_SECONDS - 1, 3).start is None


def test_one_that_cannot_be_started_like_this_is_not_tried_again() -> None:
    then = ended(pool(), "a", Why.REFUSED, 1, 5)
    assert then.start is None
    assert "its log says why" in then.reason


def test_without_restarts_one_end_is_the_end() -> None:
    assert ended(pool(), "a", Why.EXITED, 1, 0).start is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(list(Why)),
                  st.sets(st.sampled_from(["n3", "n4", "n5"]), max_size=1), st.floats(0, 1000)),
        max_size=12,
    )
)  # fmt: skip
def test_no_two_replicas_ever_have_one_place_and_none_has_a_lost_one(
    story: list[tuple[str, Why, set[str], float]],
) -> None:
    now = pool()
    for name, why, lost, lived in story:
        if now.replicas[name].place is None:
            continue
        now = replace(now, lost=now.lost | lost)
        then = ended(now, name, why, lived, 2)
        now = then.pool
        if then.start is not None:
            assert now.usable(then.start)
            assert now.replicas[name].place == then.start
        places = [each.place for each in now.replicas.values() if each.place is not None]
        assert len(places) == len(set(places))
