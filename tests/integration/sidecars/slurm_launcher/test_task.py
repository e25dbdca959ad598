"""A replica's task and the launcher's leases, on real processes and sockets, without Slurm."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from slurm_launcher.allocation.lease import Leases
from slurm_launcher.allocation.task import Task

SOON = 20.0
#: Writes a file when it is asked to end, and ends with 9.
OBEYS = (
    "import pathlib, signal, sys, time\n"
    "def end(*_):\n    pathlib.Path(sys.argv[1]).write_text('drained'); sys.exit(9)\n"
    "signal.signal(signal.SIGTERM, end)\n"
    "pathlib.Path(sys.argv[1]).write_text('running')\n"
    "time.sleep(600)\n"
)


async def _until(path: Path, text: str) -> None:
    async with asyncio.timeout(SOON):
        while not path.exists() or path.read_text() != text:  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def _task(port: int, path: Path, seconds: float = 60.0) -> Task:
    argv = [sys.executable, "-c", OBEYS, str(path)]
    return Task(argv, host="127.0.0.1", port=port, name="a", seconds=seconds, job="7")


@pytest.fixture
def scancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake scancel; returns the file in which it notes its arguments."""
    said = tmp_path / "cancelled"
    program = tmp_path / "bin" / "scancel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {said}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return said


def test_the_launcher_drains_a_task_and_gets_its_code(tmp_path: Path, scancel: Path) -> None:
    path = tmp_path / "state"

    async def run() -> int:
        leases = Leases()
        port = await leases.start("127.0.0.1")
        work = asyncio.create_task(_task(port, path).run())
        await _until(path, "running")
        leases.drain("a")
        code = await asyncio.wait_for(work, SOON)
        await leases.close()
        return code

    assert asyncio.run(run()) == 9
    assert path.read_text() == "drained"
    assert not scancel.exists()


def test_a_task_that_is_asked_by_a_signal_drains_too(tmp_path: Path) -> None:
    path = tmp_path / "state"

    async def run() -> int:
        leases = Leases()
        port = await leases.start("127.0.0.1")
        work = asyncio.create_task(_task(port, path).run())
        await _until(path, "running")
        os.kill(os.getpid(), signal.SIGTERM)
        code = await asyncio.wait_for(work, SOON)
        await leases.close()
        return code

    assert asyncio.run(run()) == 9


def test_without_a_launcher_a_task_ends_itself_and_the_job(tmp_path: Path, scancel: Path) -> None:
    path = tmp_path / "state"

    async def run() -> int:
        leases = Leases()
        port = await leases.start("127.0.0.1")
        work = asyncio.create_task(_task(port, path, seconds=2.0).run())
        await _until(path, "running")
        await leases.close()
        return await asyncio.wait_for(work, SOON)

    assert asyncio.run(run()) == 9
    assert path.read_text() == "drained"
    assert scancel.read_text() == "7\n"


def test_a_launcher_that_is_there_again_in_time_keeps_its_tasks(
    tmp_path: Path, scancel: Path
) -> None:
    path = tmp_path / "state"

    async def run() -> None:
        leases = Leases()
        port = await leases.start("127.0.0.1")
        work = asyncio.create_task(_task(port, path, seconds=10.0).run())
        await _until(path, "running")
        await leases.close()
        again = Leases()
        again._server = await asyncio.start_server(again._serve, "127.0.0.1", port)  # the same port
        async with asyncio.timeout(SOON):
            while not again.held("a"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not work.done()
        again.drain("a")
        assert await asyncio.wait_for(work, SOON) == 9
        await again.close()

    asyncio.run(run())
    assert not scancel.exists()
