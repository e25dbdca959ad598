from __future__ import annotations

import pytest

from tandem.golden import differences


@pytest.mark.parametrize(
    ("now", "before", "word"),
    [
        ({"a.yaml": "x: 1\n"}, {"a.yaml": "x: 2\n"}, "-x: 2\n+x: 1"),
        ({"a.yaml": "x"}, {}, "is missing"),
        ({}, {"a.yaml": "x"}, "nothing renders it"),
    ],
)
def test_each_difference_is_told_with_how_to_accept_it(
    now: dict[str, str], before: dict[str, str], word: str
) -> None:
    [problem] = differences(now, before)
    assert word in problem.what
    assert "make update" in problem.fix


def test_the_same_is_no_difference() -> None:
    assert differences({"a.yaml": "x"}, {"a.yaml": "x"}) == []
