"""`make bench-pool` itself: it runs, nothing fails in it, and it says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tandem.bench_pool.subjects import BASELINE, DIRECT, POOL, POOL_SESSION


@pytest.mark.full
def test_one_short_round_of_one_load() -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "tandem.bench_pool", "--rounds", "1", "--seconds", "0.3",
            "--only", "sse@64", "--output", "json",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    series = {one["subject"]: one["samples"] for one in json.loads(done.stdout)["series"]}
    assert set(series) == {DIRECT, BASELINE, POOL, POOL_SESSION}
    for subject, (sample,) in series.items():
        assert sample["requests_per_second"] > 0, subject
        assert sample["errors"] == 0, subject
        assert (sample["cpu_ms_per_request"] > 0) == (subject != DIRECT), subject
