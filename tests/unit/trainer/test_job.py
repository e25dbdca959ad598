import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem_trainer.errors import TrainerError
from tandem_trainer.job import say_error, stop


def test_the_cause_is_the_last_line_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(TrainerError("vLLM ended: its engine is dead\nline of a log\n…"))
    assert capsys.readouterr().err.splitlines() == [
        "line of a log",
        "…",
        "error: vLLM ended: its engine is dead",
    ]


def test_an_error_of_one_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_error(TrainerError("no node offered a GPU"))
    assert capsys.readouterr().err == "error: no node offered a GPU\n"


class FakeRay:
    """A fake Ray whose cluster is gone: nothing is answered, which takes its whole time."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.killed: list[object] = []

    def get(self, _ref: object, timeout: float) -> Any:
        self.waited.append(timeout)
        raise TimeoutError

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


def test_a_gpu_worker_that_does_not_answer_is_waited_for_once_and_killed(tmp_path: Path) -> None:
    ray = FakeRay()
    remote = SimpleNamespace(remote=object)
    actor = SimpleNamespace(log=remote, stop=remote)
    stop(ray, actor, tmp_path / "vllm.log", 3.0)
    assert ray.waited == [3.0]
    assert ray.killed == [actor]


_HANGS = """\
import os, signal, time
from tandem_trainer import job
job.END_SECONDS = 0.2
signal.signal(signal.SIGTERM, job._terminated)
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    time.sleep(60)
"""


def test_who_is_told_to_end_does_not_hang_in_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", _HANGS], check=False, timeout=30)
    assert done.returncode == 143
