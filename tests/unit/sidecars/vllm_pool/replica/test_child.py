from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from support.gym_run import gone
from tandem_common.errors import ExitCode, UserError
from tandem_common.processes import exit_code
from vllm_pool.replica.child import Child

SECONDS = 20.0


def child(script: str) -> Child:
    return Child(["bash", "-c", script], dict(os.environ))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


async def pid_in(path: Path) -> int:
    deadline = time.monotonic() + SECONDS
    while not (text := text_of(path)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return int(text)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_is_the_childs(script: str, code: int) -> None:
    async def scenario() -> int:
        it = child(script)
        it.start()
        return await asyncio.wait_for(it.wait(), SECONDS)

    assert exit_code(asyncio.run(scenario())) == code


def test_nothing_of_the_group_outlives_the_leader(tmp_path: Path) -> None:
    async def scenario() -> int:
        it = child(f"sleep 300 & echo $! > {tmp_path}/pid; exit 3")
        it.start()
        assert await asyncio.wait_for(it.wait(), SECONDS) == 3
        return await pid_in(tmp_path / "pid")

    assert gone(asyncio.run(scenario()))


def test_one_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def scenario() -> int:
        it = child(f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done")
        it.start()
        await pid_in(tmp_path / "pid")
        return await asyncio.wait_for(it.stop(0.2), SECONDS)

    assert asyncio.run(scenario()) == -signal.SIGKILL


def test_one_that_ends_within_the_grace_is_not_killed(tmp_path: Path) -> None:
    async def scenario() -> int:
        it = child(f"trap 'exit 5' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done")
        it.start()
        await pid_in(tmp_path / "pid")
        return await asyncio.wait_for(it.stop(SECONDS), SECONDS)

    assert asyncio.run(scenario()) == 5


def test_a_program_that_is_not_there_is_named() -> None:
    async def scenario() -> None:
        Child(["no-such-program-here"], dict(os.environ)).start()

    with pytest.raises(UserError, match="no-such-program-here") as caught:
        asyncio.run(scenario())
    assert caught.value.code is ExitCode.PRECONDITION
