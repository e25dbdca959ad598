"""Hysteresis both ways, late answers under load, and what counts as work."""

from __future__ import annotations

import pytest

from vllm_pool.core.evidence import IN, OUT, Sample, progress, tokens
from vllm_pool.core.health import Health, HealthLimits, Kind, Probe, Result, observe

LIMITS = HealthLimits()


def after(health: Health, *probes: tuple[Kind, Result], working: bool = False) -> Health:
    for kind, result in probes:
        health = observe(health, Probe(kind, result, "x"), LIMITS, 7.0, progress=working)
    return health


OK = ((Kind.HTTP, Result.OK), (Kind.CANARY, Result.OK))
UP = after(Health(), *OK)


def test_joining_takes_one_good_answer_of_each_kind() -> None:
    assert not after(Health(), OK[0]).up
    assert not after(Health(), OK[1]).up
    assert UP.up
    assert UP.recovered is None


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("result", [Result.FAILED, Result.LATE])
def test_one_bad_answer_is_no_verdict_and_two_are(kind: Kind, result: Result) -> None:
    once = after(UP, (kind, result))
    assert once.up
    twice = after(once, (kind, result))
    assert (twice.up, twice.why) == (False, f"{kind}-{result}: x")
    assert after(once, (kind, Result.OK), (kind, result)).up


def test_after_a_fall_one_good_answer_is_not_enough() -> None:
    fallen = after(UP, (Kind.CANARY, Result.FAILED), (Kind.CANARY, Result.FAILED))
    once = after(fallen, *OK)
    assert not once.up
    back = after(once, *OK)
    assert (back.up, back.recovered) == (True, 7.0)


def test_a_hung_engine_behind_a_good_health_falls_by_its_canary() -> None:
    hung = (OK[0], (Kind.CANARY, Result.LATE))
    assert not after(UP, *hung, *hung).up


def test_a_burst_that_makes_answers_late_takes_nobody_out_while_work_goes_on() -> None:
    late = [(kind, Result.LATE) for kind in Kind] * 10
    assert after(UP, *late, working=True) == UP
    assert not after(UP, *late).up
    # A failure is one, however busy.
    failed = [(Kind.HTTP, Result.FAILED)] * 2
    assert not after(UP, *failed, working=True).up


def test_tokens_tell_of_work_and_requests_only_where_there_are_none() -> None:
    assert progress(Sample(tokens=1.0, successes=1), Sample(tokens=2.0, successes=1))
    assert not progress(Sample(tokens=1.0, successes=1), Sample(tokens=1.0, successes=9))
    assert progress(Sample(successes=1), Sample(successes=2))
    assert not progress(Sample(), Sample(tokens=5.0))


def test_tokens_are_the_sum_of_those_out_and_in() -> None:
    said = (
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 12.0\n'
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 3e1\n'
        'vllm:generation_tokens_total_created{engine="0"} 1.7e9\n'
    )
    assert tokens(said, OUT, IN) == 42.0
    assert tokens("process_cpu_seconds_total 3\n", OUT, IN) is None
    assert tokens("vllm:generation_tokens_total 1e\n", OUT) is None
