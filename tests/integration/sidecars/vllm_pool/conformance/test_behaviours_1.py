"""Every behaviour of the pool can be seen to fail, on a pool with its fault; half 1 of two."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.pool_behaviours import Behaviour, registered

# In two files, since each is one worker's.
HALF = registered()[::2]


# What a test that fails leaves open is of no interest here.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("one", HALF, ids=[each.name for each in HALF])
def test_a_pool_with_the_fault_fails_the_test(
    one: Behaviour, fails: Callable[[Behaviour], bool]
) -> None:
    assert fails(one), f"{one.test.__name__} passes on a pool that {one.fault.name}"
