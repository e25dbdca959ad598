"""What stands in the ConfigMap, and what a reader may believe of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint_registry import records
from endpoint_registry.records import (
    Claim,
    Owner,
    Reader,
    Record,
    Run,
    Standing,
    State,
    claim,
    decode,
    digest,
    new_object,
    standing,
)

RUN = Run("run-1", "2026-01-01T00:00:00Z")
T0 = 1_800_000_000.0
Object = dict[str, Any]


def config_map(
    run: str = "run-1", uid: str = "uid-1", data: dict[str, str] | None = None,
    **entries: Record,
) -> Object:  # fmt: skip
    annotations = {records.RECORD + key: record.encode() for key, record in entries.items()}
    labels = {records.RUN_LABEL: run} if run else {}
    metadata = {"name": "x", "uid": uid, "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "data": data or {}}


def record(value: str = "v", **more: Any) -> Record:
    plain = Record("run-1", "gym", at=records.stamp(T0), digest=digest(value), instance="i-1")
    return replace(plain, **more)


def seen(found: Object | None, now: float = 0.0, server_time: float | None = T0) -> Reader:
    reader = Reader(RUN)
    reader.see(found, now, server_time)
    return reader


# --- form --------------------------------------------------------------------------------


@given(
    st.builds(
        Record, run=st.text(min_size=1), writer=st.text(min_size=1), pod=st.text(),
        at=st.text(), state=st.sampled_from(State), beat=st.integers(0, 2**40),
        lease_seconds=st.none() | st.floats(0.001, 1e6), digest=st.text(), note=st.text(),
        instance=st.text(),
    )
)  # fmt: skip
def test_a_record_survives_the_way(found: Record) -> None:
    assert decode(found.encode()) == found


@given(st.text() | st.from_type(type(None)).map(json.dumps))
def test_what_is_no_record_is_none_and_raises_nothing(text: str) -> None:
    found = decode(text)
    assert found is None or isinstance(found, Record)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '"x"', "{}", '{"run":"r"}', '{"run":"r","writer":"w","state":"odd"}',
     '{"run":"r","writer":"w","state":"published","lease":"x"}',
     '{"run":"r","writer":"w","state":"published","lease":0}',
     '{"run":"r","writer":"w","state":"published","lease":-1}',
     '{"run":"r","writer":"w","state":"published","lease":Infinity}'],
)  # fmt: skip
def test_broken_records_are_none(text: str) -> None:
    assert decode(text) is None


def test_a_patch_names_one_key_and_the_object_that_is_meant() -> None:
    body = records.patch("uid-1", "k", record(), "v")
    assert set(body) == {"metadata", "data"}
    assert body["data"] == {"k": "v"}
    assert set(body["metadata"]) == {"uid", "annotations"}
    assert list(body["metadata"]["annotations"]) == [records.RECORD + "k"]
    assert records.patch("u", "k", record(), None)["data"] == {"k": None}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gym_head_server", "http://10.0.0.1:9090"),
        ("gym_head_server", "https://[fd00::1]:9090/path"),
        ("vllm_base_urls", '["http://a:1/v1", "http://b:1/v1"]'),
        ("anything", "any text"),
    ],
)
def test_values_that_nemo_rl_reads_are_taken(key: str, value: str) -> None:
    assert not list(records.key_problems(key))
    assert not list(records.value_problems(key, value))


@pytest.mark.parametrize("key", ["", "a/b", "-a", "a-", ".", "a" * 64, "ä"])
def test_keys_that_the_api_would_refuse_are_refused(key: str) -> None:
    assert list(records.key_problems(key))


# --- whose object it is ------------------------------------------------------------------


def test_an_object_that_we_made_is_ours() -> None:
    assert standing(new_object("job", RUN, []), RUN, []) is Standing.OURS


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (Run("a", "2026-01-01T00:00:00Z"), Run("b", "2026-01-02T00:00:00Z"), Standing.FOREIGN),
        (Run("a", "2026-01-02T00:00:00Z"), Run("b", "2026-01-01T00:00:00Z"), Standing.NEWER),
        (Run("a", "2026-01-02T00:00:00Z"), Run("b"), Standing.NEWER),
        (Run("a", "2026-01-01T00:00:00Z"), Run("b"), Standing.NEWER),
        (Run("a"), Run("b"), Standing.NEWER),
        (Run("a"), Run("b", "2026-01-01T00:00:00Z"), Standing.NEWER),
        (Run("a", "2026-01-01T00:00:00Z"), Run("b", "2026-01-01T00:00:00Z", 1), Standing.NEWER),
        (Run("a"), Run("a.1", "", 1), Standing.FOREIGN),
        (Run("a.1", "", 1), Run("a"), Standing.NEWER),
        (Run("a.2", "2026-01-01T00:00:00Z", 2), Run("a.10", "2026-01-01T00:00:00Z", 10),
         Standing.FOREIGN),
        (Run("a.10", "2026-01-01T00:00:00Z", 10), Run("a.2", "2026-01-01T00:00:00Z", 2),
         Standing.NEWER),
    ],
)  # fmt: skip
def test_only_what_surely_began_before_is_replaced(
    theirs: Run, ours: Run, expected: Standing
) -> None:
    assert standing(new_object("job", theirs, []), ours, []) is expected


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("2026-01-01T00:00:00Z", Standing.NEWER),
        ("2026-01-01T00:00:01Z", Standing.FOREIGN),
        ("", Standing.NEWER),
    ],
)
def test_an_object_older_than_our_run_is_a_former_runs(started: str, expected: Standing) -> None:
    theirs = config_map(run="run-0")
    theirs["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert standing(theirs, Run("run-1", started), []) is expected


@pytest.mark.parametrize(
    ("owner", "attempt", "had", "expected"),
    [
        ("", 0, False, Standing.FOREIGN),
        ("", 0, True, Standing.ADOPTABLE),
        ("", 1, True, Standing.ADOPTABLE),
        ("ours", 0, False, Standing.ADOPTABLE),
        ("ours", 0, True, Standing.ADOPTABLE),
        # A former attempt has the same owner.
        ("ours", 1, False, Standing.FOREIGN),
        ("ours", 1, True, Standing.ADOPTABLE),
        ("another", 0, False, Standing.FOREIGN),
        ("another", 0, True, Standing.NEWER),
    ],
)
def test_whose_an_object_without_a_run_is(
    owner: str, attempt: int, *, had: bool, expected: Standing
) -> None:
    bare = config_map(run="")
    if owner:
        bare["metadata"]["ownerReferences"] = [{"uid": owner}]
    owners = [Owner("ray.io/v1", "RayJob", "top", "ours")]
    assert standing(bare, Run("run-1", "", attempt), owners, had=had) is expected


# --- whose key it is ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "found", "expected"),
    [
        (None, None, Claim.FREE),
        (None, record(instance="other", state=State.WITHDRAWN), Claim.FREE),
        ("v", record(instance="mine"), Claim.OURS),
        (None, record(instance="mine", state=State.PENDING, digest=""), Claim.OURS),
        ("w", record(instance="mine"), Claim.TAKEN),
        ("v", record(instance="other"), Claim.TAKEN),
        ("v", None, Claim.TAKEN),
        ("v", record(instance="other", run="run-0"), Claim.FREE),
        ("v", record(instance="other", lease_seconds=10.0), Claim.TAKEN),
        ("v", record(instance="other", lease_seconds=3.0), Claim.FREE),
    ],
)
def test_a_key_is_anothers_only_while_its_value_is_alive(
    data: str | None, found: Record | None, expected: Claim
) -> None:
    entries: dict[str, Any] = {} if found is None else {"k": found}
    there = config_map(data={} if data is None else {"k": data}, **entries)
    assert claim(there, "k", "", "mine", T0 + 6) is expected


def test_what_a_former_process_of_the_writer_left_is_free_for_its_heir() -> None:
    there = config_map(data={"k": "v"}, k=record(instance="other"))
    assert claim(there, "k", "gym", "mine", T0) is Claim.FREE
    assert claim(there, "k", "rl", "mine", T0) is Claim.TAKEN


# --- what a reader believes --------------------------------------------------------------


def test_no_object_and_no_key_are_no_value() -> None:
    nothing = seen(None).snapshot(0)
    assert (nothing.exists, nothing.value("k")) == (False, None)
    empty = seen(config_map()).snapshot(0)
    assert (empty.exists, empty.of_our_run, empty.value("k")) == (True, True, None)


@given(st.text(min_size=1, max_size=20).filter(lambda run: run != "run-1"))
def test_nothing_of_another_run_is_ever_seen(run: str) -> None:
    foreign = config_map(run, data={"k": "v", "error": "e"}, k=record(run=run))
    snapshot = seen(foreign).snapshot(0)
    assert not snapshot.entries
    assert snapshot.error is None


def test_a_record_of_another_run_in_our_object_makes_its_value_none() -> None:
    assert seen(config_map(data={"k": "v"}, k=record(run="run-0"))).snapshot(0).value("k") is None


def test_a_value_without_a_record_is_believed_in_an_object_of_our_run() -> None:
    entry = seen(config_map(data={"k": "v"})).snapshot(0).entries["k"]
    assert (entry.value, entry.record) == ("v", None)


def test_a_value_changed_behind_its_record_is_bare() -> None:
    entry = seen(config_map(data={"k": "w"}, k=record("v", lease_seconds=1.0))).snapshot(99)
    assert entry.value("k") == "w"


@pytest.mark.parametrize("state", [State.PENDING, State.WITHDRAWN])
def test_a_writer_without_a_value_is_seen(state: State) -> None:
    entry = seen(config_map(k=record("", digest="", state=state, note="why"))).snapshot(4)
    assert entry.value("k") is None
    assert state.value in entry.entries["k"].why
    assert "4 s ago: why" in entry.entries["k"].sign_of_life()


def test_a_lease_is_over_when_it_was_not_renewed_in_time() -> None:
    reader = seen(config_map(data={"k": "v"}, k=record(lease_seconds=10.0)))
    assert reader.snapshot(9.9).value("k") == "v"
    assert reader.next_expiry(4.0) == pytest.approx(6.0)
    over = reader.snapshot(10.1)
    assert over.value("k") is None
    assert over.entries["k"].expired


def test_each_renewal_that_is_seen_starts_anew() -> None:
    reader = Reader(RUN)
    for beat in range(5):
        found = config_map(data={"k": "v"}, k=record(lease_seconds=10.0, beat=beat))
        reader.see(found, beat * 9.0)
        assert reader.snapshot(beat * 9.0 + 9.0).value("k") == "v"


def test_seeing_the_same_again_renews_nothing() -> None:
    found = config_map(data={"k": "v"}, k=record(lease_seconds=10.0))
    reader = seen(found)
    for now in (5.0, 10.5):
        reader.see(found, now, T0 + now)
    assert reader.snapshot(10.5).value("k") is None


def test_another_keys_renewal_renews_nothing() -> None:
    reader = Reader(RUN)
    for beat in range(12):
        a, b = record(lease_seconds=10.0), record(lease_seconds=10.0, beat=beat)
        reader.see(config_map(data={"a": "v", "b": "v"}, a=a, b=b), float(beat))
    snapshot = reader.snapshot(11.0)
    assert (snapshot.value("a"), snapshot.value("b")) == (None, "v")


def test_one_who_comes_later_counts_from_what_the_server_says() -> None:
    found = config_map(data={"k": "v"}, k=record(lease_seconds=10.0))
    late = seen(found, now=0.0, server_time=T0 + 9)
    assert late.snapshot(0.0).value("k") == "v"
    assert late.snapshot(6.0).value("k") is None
    assert seen(found, server_time=T0 + 60).snapshot(0.0).value("k") is None


def test_a_record_copied_into_a_new_object_is_as_old_as_it_was() -> None:
    k = record(lease_seconds=10.0)
    reader = seen(config_map(uid="uid-1", data={"k": "v"}, k=k))
    reader.see(config_map(uid="uid-2", data={"k": "v"}, k=k), 50.0, T0 + 50)
    assert reader.snapshot(50.0).value("k") is None


@given(
    skew=st.floats(-1e6, 1e6), lease=st.floats(1, 100), start=st.floats(0, 1e6),
    beats=st.integers(1, 20),
)  # fmt: skip
def test_no_jump_of_the_servers_clock_ends_a_lease_that_is_seen_to_be_renewed(
    skew: float, lease: float, start: float, beats: int
) -> None:
    reader = Reader(RUN)
    for beat in range(beats):
        now = start + beat * lease / 3
        at = records.stamp(T0 + (skew if beat % 2 else 0))
        reader.see(
            config_map(data={"k": "v"}, k=record(lease_seconds=lease, beat=beat, at=at)), now
        )
        assert reader.snapshot(now + lease / 3).value("k") == "v"
    # And none keeps a dead one: from the last renewal on, only our own clock counts.
    assert reader.snapshot(now + lease * 1.01).value("k") is None


@given(skew=st.floats(-1e6, 1e6), lease=st.floats(1, 100))
def test_one_who_comes_fresh_believes_a_dead_lease_for_one_lease_at_most(
    skew: float, lease: float
) -> None:
    reader = seen(
        config_map(data={"k": "v"}, k=record(lease_seconds=lease)), 0.0, T0 + skew
    )  # fmt: skip
    assert reader.snapshot(lease * 1.01).value("k") is None


def test_a_reader_that_lost_sight_judges_what_it_missed_by_the_servers_clock() -> None:
    reader = seen(config_map(data={"k": "v"}, k=record(lease_seconds=10.0, beat=1)))
    later = record(lease_seconds=10.0, beat=2, at=records.stamp(T0 + 5))
    # A list after an outage of a minute: the record changed, but long ago.
    reader.see(config_map(data={"k": "v"}, k=later), 60.0, T0 + 60)
    assert reader.snapshot(60.0).value("k") is None


def renewed(at: float, beat: int, lease: float = 10.0) -> Object:
    found = record(lease_seconds=lease, beat=beat, at=records.stamp(T0 + at))
    return config_map(data={"k": "v"}, k=found)


@pytest.mark.parametrize("noticed", [True, False], ids=["lost", "slow to open"])
@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_what_a_watch_tells_after_a_cut_is_as_old_as_it_is(*, noticed: bool, pause: float) -> None:
    """Cut for 240 s; the writer has been dead for 235 of them."""
    reader = seen(renewed(0, 1))
    if noticed:
        reader.lost()
    reader.contact(240.0)
    now = 240.0
    for beat, at in ((2, 2.0), (3, 5.0)):
        now += pause
        reader.see(renewed(at, beat), now, T0 + now, listed=False)
        assert reader.snapshot(now).value("k") is None
    # A writer that lives on is believed from its next renewal on, for one lease.
    reader.see(renewed(now - 1, 4), now, T0 + now, listed=False)
    assert reader.snapshot(now + 9.0).value("k") == "v"
    assert reader.snapshot(now + 10.1).value("k") is None


def test_after_a_loss_also_what_comes_slowly_is_judged_by_the_servers_clock() -> None:
    reader = seen(renewed(0, 1))
    reader.lost()
    reader.contact(240.0)
    reader.see(renewed(5.0, 2), 250.0, T0 + 250, listed=False)
    assert reader.snapshot(250.0).value("k") is None


@given(
    jump=st.floats(-1e6, 1e6), lease=st.floats(1, 100), jumps_at=st.integers(1, 8),
    opened=st.sets(st.integers(1, 12)),
)  # fmt: skip
def test_no_jump_of_the_servers_clock_ends_a_lease_for_one_who_follows(
    jump: float, lease: float, jumps_at: int, opened: set[int]
) -> None:
    """The writer learns of it with its next renewal, the reader when it opens a watch."""
    beat_seconds, shift = lease / 3, 0.0
    reader = seen(renewed(0, 0, lease))
    for beat in range(1, 13):
        now = beat * beat_seconds
        if beat in opened:
            shift = jump if beat >= jumps_at else 0.0
            reader.contact(now)
        at = now + (jump if beat > jumps_at else 0.0)
        reader.see(renewed(at, beat, lease), now, T0 + now + shift, listed=False)
        assert reader.snapshot(now + beat_seconds * 0.99).value("k") == "v"


def test_without_the_servers_time_an_age_counts_from_the_first_sight() -> None:
    reader = seen(config_map(data={"k": "v"}, k=record(lease_seconds=10.0, at="")), 0.0, None)
    assert reader.snapshot(9.0).value("k") == "v"
    assert reader.snapshot(11.0).value("k") is None
