"""New weights: those in rotation have the same ones."""

from __future__ import annotations

import pytest

from vllm_pool.core.refit import Answer, Kind, PoolWeights, kind, one_answer
from vllm_pool.core.rotation import Weights

OK, BROKEN, WRONG = Answer(200, {}), Answer(500, "x"), Answer(400, "bad")


def standings(weights: PoolWeights) -> dict[str, Weights]:
    return {name: weights.standing(name) for name in sorted(weights.held)}


def pool() -> PoolWeights:
    return PoolWeights().launched("a", None).launched("b", None)


def test_those_that_failed_leave_and_a_later_success_brings_them_back() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": BROKEN}, "v1")
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.FAILED}
    assert weights.held["a"].version == "v1"
    assert weights.held["b"].version is None
    weights = weights.called("/update_weights", {"a": OK, "b": OK}, "v2")
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.EQUAL}


def test_when_all_refuse_nothing_was_changed() -> None:
    before = pool()
    assert before.called("/update_weights", {"a": WRONG, "b": WRONG}, "v1") is before


def test_a_launch_after_a_refit_waits_unless_it_says_that_it_has_the_weights() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, "v1")
    assert weights.launched("b", None).standing("b") is Weights.BEHIND
    assert weights.launched("b", "v0").standing("b") is Weights.BEHIND
    assert weights.launched("b", "v1").standing("b") is Weights.EQUAL


def test_a_pool_that_lost_all_who_had_newer_weights_begins_anew() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, "v1").launched("b", None)
    assert standings(weights.gone("a")) == {"b": Weights.EQUAL}


def test_a_failed_pause_is_mended_by_a_resume_that_succeeds() -> None:
    weights = pool().called("/pause", {"a": OK, "b": BROKEN}, None)
    assert weights.held["a"].halted == {"pause"}
    assert weights.standing("b") is Weights.FAILED
    weights = weights.called("/resume", {"a": OK, "b": OK}, None)
    assert (weights.held["a"].halted, weights.standing("b")) == (frozenset(), Weights.EQUAL)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/pause", Kind.PAUSE),
        ("/update_weights_from_tensor", Kind.WEIGHTS),
        ("/collective_rpc", Kind.WEIGHTS),
        ("/is_paused", Kind.LOOK),
        ("/v1/completions", None),
    ],
)
def test_what_a_path_touches(path: str, what: Kind | None) -> None:
    assert kind(path) is what


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({}, 503),
        ({"a": OK}, 200),
        ({"a": OK, "b": BROKEN}, 502),
        ({"a": Answer(0, error="gone")}, 502),
    ],
)
def test_one_answer(answers: dict[str, Answer], status: int) -> None:
    code, body = one_answer(answers)
    assert (code, body["ok"]) == (status, status == 200)
    assert sorted(body["replicas"]) == sorted(answers)
