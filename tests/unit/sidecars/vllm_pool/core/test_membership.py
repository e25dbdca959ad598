"""Who belongs to the pool: launches, leases, and sources that come and go."""

from __future__ import annotations

import pytest

from vllm_pool.core.membership import (
    Membership,
    Registration,
    StaleError,
    UnknownError,
    check_id,
    parse_url,
)

A, B = "http://198.18.0.1:8000", "http://198.18.0.2:8000"


def one(**more: object) -> Registration:
    return Registration(**{"id": "a", "url": A, "epoch": 1, "lease_seconds": 10.0, **more})  # type: ignore[arg-type]


def test_a_relaunch_elsewhere_replaces_the_launch_before_at_once() -> None:
    pool = Membership().register(one(), "api", 0.0).register(one(url=B, epoch=2), "api", 1.0)
    assert [(m.url, m.epoch) for m in pool.members.values()] == [(B, 2)]


@pytest.mark.parametrize("late", [one(epoch=0), one(url=B)])
def test_late_words_of_a_launch_are_refused(late: Registration) -> None:
    pool = Membership().register(one(), "api", 0.0)
    with pytest.raises(StaleError):
        pool.register(late, "api", 1.0)


def test_a_renewal_keeps_a_drain_and_a_new_launch_ends_it() -> None:
    pool = Membership().register(one(), "api", 0.0).drain("a", draining=True)
    assert pool.register(one(), "api", 1.0).members["a"].draining
    assert not pool.register(one(epoch=2), "api", 1.0).members["a"].draining


def test_a_lease_lapses_by_silence_and_is_forgotten_later() -> None:
    pool = Membership().register(one(), "api", 0.0)
    assert not pool.members["a"].lapsed(10.0)
    assert pool.members["a"].lapsed(10.1)
    assert pool.forget(69.0, 60.0) is pool
    assert pool.forget(71.0, 60.0).members == {}
    unleased = Membership().register(one(lease_seconds=None), "file", 0.0)
    assert unleased.forget(1e9, 0.0) is unleased


def test_a_list_takes_out_what_it_no_longer_names_and_nothing_of_others() -> None:
    pool = Membership().register(one(), "api", 0.0)
    listed = [Registration("b", B), Registration("c", A)]
    pool = pool.sync("file", listed, 1.0)
    assert sorted(pool.members) == ["a", "b", "c"]
    assert sorted(pool.sync("file", listed[:1], 2.0).members) == ["a", "b"]


def test_a_list_that_lags_behind_changes_nothing() -> None:
    pool = Membership().register(one(epoch=5, url=B), "api", 0.0)
    after = pool.sync("file", [Registration("a", A, epoch=4), Registration("a", A)], 1.0)
    assert after.members == pool.members
    newer = pool.sync("file", [Registration("a", A, epoch=6)], 1.0)
    assert (newer.members["a"].url, newer.members["a"].source) == (A, "file")


def test_without_epochs_another_address_is_another_launch() -> None:
    pool = Membership().sync("file", [Registration("a", A)], 0.0)
    before = pool.members["a"].launch
    assert pool.sync("file", [Registration("a", A)], 1.0).members["a"].launch == before
    assert pool.sync("file", [Registration("a", B)], 1.0).members["a"].launch != before


def test_a_removal_that_means_an_older_launch_is_refused() -> None:
    pool = Membership().register(one(epoch=2), "api", 0.0)
    with pytest.raises(StaleError):
        pool.remove("a", epoch=1)
    assert pool.remove("a", epoch=2).members == {}
    with pytest.raises(UnknownError):
        pool.remove("b")


@pytest.mark.parametrize("value", ["", "-a", "a b", "a/b", "a" * 129, "a\n"])
def test_what_is_no_id(value: str) -> None:
    with pytest.raises(ValueError, match="is no id"):
        check_id(value)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        (A, A),
        (A + "/v1/", A),
        ("http://judge", "http://judge:80"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_urls_that_are_taken(url: str, want: str) -> None:
    assert parse_url(url).url == want


@pytest.mark.parametrize(
    "url",
    [
        "https://a:1",
        "a:1",
        "http://",
        "http://u@a:1",
        "http://a:1/x",
        "http://a:1?q",
        "http://a:99999",
    ],
)
def test_urls_that_are_not(url: str) -> None:
    with pytest.raises(ValueError, match=r"http|host|port|URL"):
        parse_url(url)
