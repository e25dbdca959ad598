from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_server.interpolation import Known, drop_unresolvable

KNOWN = Known(
    environ={"HOME": "/root"},
    others=({"policy_base_url": "", "policy_model": {"responses_api_models": {}}},),
)


def drop(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    kept, dropped = drop_unresolvable(config, KNOWN)
    return kept, {one.path: one.reason for one in dropped}


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "${base}",
        "${ base }/x",
        "${nested.list.0}",
        "${nested[list][0]}",
        "${nested.list[1].name}",
        "${.sibling}",
        "${..base}",
        "${policy_base_url}",
        "${oc.env:HOME}",
        "${oc.env:'HOME'}",
        "${oc.env:NOT_SET,fallback}",
        "${oc.env:NOT_SET,'a}b'}",
        "${oc.env:NOT_SET,${base}}",
        "${oc.select:not.there,1}",
        "${oc.decode:'{a: 1}'}",
        "${inherit_from:some_server}",
        "${copy:some_server.responses_api_agents}",
        "a ${base} and ${oc.env:HOME}",
        "\\${not.an.interpolation}",
    ],
)
def test_what_can_be_resolved_stays_as_it_is_written(value: str) -> None:
    config = {
        "base": "b",
        "nested": {"list": ["x", {"name": "y"}]},
        "holder": {"value": value, "sibling": 1},
    }
    assert drop(config) == (config, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${policy.model_name}", "no key `policy.model_name` here"),
        ("${base.deeper}", "no key `base.deeper` here"),
        ("${nested.list.7}", "no key `nested.list.7` here"),
        ("${nested.list.x}", "no key"),
        ("${.nothing}", "no key `holder.nothing` here"),
        ("${....base}", "above the root"),
        ("${holder.value}", "refers to itself"),
        ("${holder}", "a part of"),
        ("${oc.env:NOT_SET}", "no variable NOT_SET"),
        ("${oc.env:NOT_SET,${gone}}", "no key `gone`"),
        ("${mul:2,3}", "no resolver `mul`"),
        ("ok ${base} then ${gone}", "no key `gone`"),
        ("${base", "without its `}`"),
        ("${a.${gone}}", "no key `gone`"),
        ("\\\\${gone}", "no key `gone`"),
    ],
)
def test_what_cannot_be_resolved_is_dropped_with_its_path_and_reason(
    value: str, reason: str
) -> None:
    config = {"base": "b", "nested": {"list": ["x"]}, "holder": {"value": value, "other": 1}}
    kept, reasons = drop(config)
    assert kept == {"base": "b", "nested": {"list": ["x"]}, "holder": {"other": 1}}
    assert list(reasons) == ["holder.value"]
    assert reason in reasons["holder.value"]


def test_list_items_are_dropped_one_by_one() -> None:
    kept, reasons = drop({"l": ["${x}", "ok", "${y}", {"z": "${x}"}, ["${x}"]]})
    assert kept == {"l": ["ok", {}, []]}
    assert list(reasons) == ["l[0]", "l[2]", "l[3].z", "l[4][0]"]


def test_what_refers_to_something_dropped_goes_too() -> None:
    kept, reasons = drop({"a": "${b}", "b": "${c}", "c": "${gone}", "d": "${e.f}", "e": {"f": 1}})
    assert kept == {"d": "${e.f}", "e": {"f": 1}}
    assert reasons["a"] == "`b` was dropped"


def test_a_dropped_key_that_a_lower_file_has_is_still_a_target() -> None:
    kept, reasons = drop({"policy_base_url": "${policy.url}", "a": "${policy_base_url}"})
    assert kept == {"a": "${policy_base_url}"}
    assert list(reasons) == ["policy_base_url"]


def test_positions_in_a_list_that_lost_items_are_no_targets() -> None:
    kept, reasons = drop({"l": ["${x}", "one", "two"], "a": "${l.2}", "b": "${l}"})
    assert kept == {"l": ["one", "two"], "b": "${l}"}
    assert reasons["a"] == "the list of `l[2]` has lost items"


def test_numbers_are_keys_of_mappings_too() -> None:
    config = {"a": {1: "x", "2": "y"}, "b": "${a.1}", "c": "${a.2}"}
    assert drop(config) == (config, {})


leaves = st.one_of(
    st.integers(),
    st.sampled_from(["x", "${a}", "${b.a}", "${gone}", "${.a}", "${oc.env:HOME}", "${a.0}", "${"]),
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from("abcd"), trees, max_size=4))
def test_only_what_is_told_goes_and_the_given_config_stays(
    config: dict[str, Any],
) -> None:
    before = copy.deepcopy(config)
    kept, dropped = drop_unresolvable(config, KNOWN)
    assert config == before
    # Every string went for a reason that is told, and only strings with `${` ever go.
    assert _count(config) - _count(kept) == len(dropped)
    assert all("${" in one.value for one in dropped)
    assert len({one.path for one in dropped}) == len(dropped)


def _count(node: Any) -> int:
    if isinstance(node, dict):
        return sum(_count(value) for value in node.values())
    if isinstance(node, list):
        return sum(_count(value) for value in node)
    return 1
