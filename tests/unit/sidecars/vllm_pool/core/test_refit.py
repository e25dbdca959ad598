"""New weights: those in rotation have the same ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_pool.core.refit import (
    Answer,
    BodyError,
    Kind,
    PoolWeights,
    bodies,
    kind,
    one_answer,
    version_of,
)
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


def test_a_pause_that_fails_everywhere_and_then_succeeds_leaves_the_weights_as_they_are() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, "v1")
    weights = weights.called("/pause", {"a": BROKEN, "b": BROKEN}, None)
    weights = weights.called("/pause", {"a": OK, "b": OK}, None)
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.EQUAL}
    assert weights.version == "v1"


def test_what_an_earlier_refit_has_brought_is_never_taken_for_what_a_later_one_did() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, "v1")
    weights = weights.called("/update_weights", {"a": OK}, "v2").launched("a", None)
    weights = weights.called("/update_weights", {"a": OK}, "v3")
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.BEHIND}


NAMES = "ab"
ANSWERS = st.sampled_from(
    [{"a": OK, "b": OK}, {"a": OK}, {"b": OK}, {"a": OK, "b": BROKEN}, {"a": BROKEN, "b": BROKEN}]
)
STEPS = st.one_of(
    st.tuples(st.just("launch"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
    st.tuples(
        st.sampled_from(["/update_weights", "/pause"]),
        ANSWERS,
        st.none(),
    ),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_all_that_are_equal_have_the_same_weights(steps: list[tuple[str, Any, Any]]) -> None:
    weights = pool()
    # What each one really has: 0 as launched, else the number of the step that brought it;
    # a number below zero is a half-done one that nobody else has.
    real = dict.fromkeys(NAMES, 0)
    for number, (what, who, knows) in enumerate(steps, start=1):
        if what == "launch":
            equal = [name for name in real if weights.standing(name) is Weights.EQUAL]
            newest = [real[name] for name in equal if weights.held[name].version == weights.version]
            says = weights.version if knows and newest else None
            real[who] = newest[0] if says is not None else 0
            weights = weights.launched(who, says)
        elif what == "gone":
            real.pop(who, None)
            weights = weights.gone(who)
        else:
            answers = {name: answer for name, answer in who.items() if name in real}
            if what == "/update_weights" and answers:
                for name, answer in answers.items():
                    real[name] = number if answer.ok else -number * 10 - ord(name)
            weights = weights.called(what, answers, f"v{number}")
        equal = [name for name in real if weights.standing(name) is Weights.EQUAL]
        assert len({real[name] for name in equal}) <= 1


def test_who_missed_the_update_does_not_get_it_by_its_end_or_its_name() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, None).launched("b", None)
    for path in ("/finish_weight_update", "/update_weight_version"):
        weights = weights.called(path, {"a": OK, "b": OK}, "v1")
        assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.BEHIND}
    assert (weights.version, weights.held["a"].version) == ("v1", "v1")


def test_an_update_that_was_not_ended_well_is_mended_by_the_next_one() -> None:
    weights = pool().called("/update_weights", {"a": OK, "b": OK}, None)
    weights = weights.called("/finish_weight_update", {"a": OK, "b": BROKEN}, "v1")
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.FAILED}
    weights = weights.called("/update_weights", {"a": OK, "b": OK}, "v2")
    assert standings(weights) == {"a": Weights.EQUAL, "b": Weights.EQUAL}


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"weight_version": "v7"}', "v7"), (b'{"new_version": "v7"}', "v7"),
        (b'{"weight_version": 7}', None), (b"[1]", None), (b"\xff\x00", None), (b"", None),
    ],
)  # fmt: skip
def test_the_name_of_new_weights_is_read_from_the_body(body: bytes, version: str | None) -> None:
    assert version_of(body) == version


@pytest.mark.parametrize("body", [b'{"rank_offset": 1 }', b"\x00pickle", b"", b"[]", b'{"a":1}'])
def test_a_body_without_places_passes_byte_identical(body: bytes) -> None:
    assert bodies(body, ["a", "b"]) == {"a": body, "b": body}


def test_each_replica_gets_its_own_place_in_the_group() -> None:
    body = json.dumps({"rank_offset": {"a": 1, "b": 3}, "world_size": 5}).encode()
    sent = {name: json.loads(each) for name, each in bodies(body, ["a", "b"]).items()}
    assert sent == {
        "a": {"rank_offset": 1, "world_size": 5}, "b": {"rank_offset": 3, "world_size": 5},
    }  # fmt: skip


def test_a_replica_without_a_place_is_named() -> None:
    with pytest.raises(BodyError, match="no number for b, c"):
        bodies(b'{"rank_offset": {"a": 1}}', ["c", "a", "b"])
