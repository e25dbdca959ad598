from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gym_server.children import Child, Ended, Tail

SECONDS = 20.0


class Runner:
    """Starts children and makes sure that none is left behind."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.err = io.BytesIO()
        self.ends: list[Ended] = []
        self.children: list[Child] = []
        self.rest_seconds = SECONDS

    def start(self, argv: Sequence[str]) -> Child:
        child = Child(
            "the program", argv, env=dict(os.environ), out=self.out, err=self.err,
            on_end=self.ends.append, rest_seconds=self.rest_seconds,
        )  # fmt: skip
        child.start()
        self.children.append(child)
        return child

    def bash(self, script: str) -> Child:
        return self.start(["bash", "-c", script])

    def result(self, script: str) -> Ended:
        ended = self.bash(script).wait(SECONDS)
        assert ended is not None
        return ended

    def await_output(self, text: bytes) -> None:
        until(lambda: text in self.out.getvalue())


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.fixture
def runner() -> Iterator[Runner]:
    with_children = Runner()
    yield with_children
    for child in with_children.children:
        if child.ended is None:
            child.stop(0)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "the program ended with code 0 after"),
        ("exit 3", 3, "the program ended with code 3 after"),
        ("set -e; false; echo never", 1, "ended with code 1"),
        ("set -o pipefail; exit_with() { return 5; }; exit_with | cat", 5, "ended with code 5"),
        ("set -euo pipefail; echo $undefined | tee /dev/null", 1, "ended with code 1"),
        ("kill -9 $$", 137, "was ended by signal 9 (Killed)"),
        ("kill -TERM $$", 143, "was ended by signal 15 (Terminated)"),
        ("bash -c 'kill -9 $$'; exit $?", 137, "a shell tells of SIGKILL"),
        ("exit 255", 255, "ended with code 255 after"),
    ],
)
def test_the_exit_code_is_the_true_one(runner: Runner, script: str, code: int, reason: str) -> None:
    ended = runner.result(script)
    assert ended.exit_code == code
    assert ended.ok == (code == 0)
    assert reason in ended.reason
    until(lambda: runner.ends == [ended])


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((), "x ended with code 1 after 2 s"),
        (("Traceback", "NeMo Gym: a died "), "x ended with code 1 after 2 s: NeMo Gym: a died"),
        (("error: no GPU", "raylet: bye"), "x ended with code 1 after 2 s: error: no GPU"),
        (("a.b.OddError: 7", "bye"), "x ended with code 1 after 2 s: a.b.OddError: 7"),
    ],
)
def test_the_cause_is_one_line_with_the_last_word(words: tuple[str, ...], cause: str) -> None:
    assert Ended("x", 1, 2.0, tail=("others",), words=words).cause == cause


def test_output_passes_through_while_the_program_runs(runner: Runner) -> None:
    child = runner.bash("printf waiting; exec sleep 600")
    runner.await_output(b"waiting")
    assert child.ended is None


def test_much_output_does_not_stop_the_program(runner: Runner) -> None:
    ended = runner.result("seq 1 300000; exit 7")
    assert ended.exit_code == 7
    assert runner.out.getvalue().count(b"\n") == 300_000
    assert ended.tail[-1] == "300000"
    assert len(ended.tail) == 40


def test_a_reader_that_went_away_does_not_stop_the_program(runner: Runner) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as nobody:
        child = Child(
            "the program", ["bash", "-c", "seq 1 100000; exit 4"], env=dict(os.environ),
            out=nobody, err=runner.err, on_end=runner.ends.append,
        )  # fmt: skip
        child.start()
        runner.children.append(child)
        ended = child.wait(SECONDS)
    assert ended is not None
    assert ended.exit_code == 4


def test_nothing_of_the_group_outlives_the_leader(runner: Runner, tmp_path: Path) -> None:
    runner.rest_seconds = 0.2
    # The one left behind ignores TERM and keeps our pipe open.
    stays = f"trap '' TERM; echo $$; touch {tmp_path}/up; while :; do sleep 600; done"
    ended = runner.result(
        f'bash -c "{stays.replace("$", chr(92) + "$")}" &'
        f"while [ ! -e {tmp_path}/up ]; do sleep 0.05; done; exit 6"
    )
    assert ended.exit_code == 6
    assert gone(int(runner.out.getvalue()))


def test_the_leaders_last_words_are_not_those_of_its_group(runner: Runner, tmp_path: Path) -> None:
    member = "trap 'echo going; exit' TERM; touch up; while :; do sleep 0.05; done"
    ended = runner.result(
        f'cd {tmp_path}; bash -c "{member}" & while [ ! -e {tmp_path}/up ]; do sleep 0.05; done; '
        "echo the reason; exit 6"
    )
    assert ended.last_words(5) == "the reason"
    assert ended.last_lines(5).endswith("going")


def test_a_process_outside_the_group_that_keeps_the_pipe_holds_nothing_up(
    runner: Runner, tmp_path: Path
) -> None:
    script = f"setsid bash -c 'touch {tmp_path}/up; exec sleep 600' & echo $!;"
    ended = runner.result(f"{script} while [ ! -e {tmp_path}/up ]; do sleep 0.05; done; exit 6")
    os.kill(int(runner.out.getvalue()), signal.SIGKILL)
    assert ended.exit_code == 6


def test_the_program_ends_with_the_process_that_watches_it() -> None:
    code = (
        "import os, sys, time\n"
        "from gym_server.children import Child\n"
        "child = Child('it', ['sleep', '600'], env=dict(os.environ), out=sys.stdout.buffer,\n"
        "              err=sys.stderr.buffer, on_end=print)\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as watcher:  # fmt: skip
        assert watcher.stdout is not None
        pid = int(watcher.stdout.readline())
        # The kernel's word to the child is given by setpriv, which must have run by then.
        until(lambda: Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "sleep")
        watcher.kill()
    until(lambda: gone(pid))


def test_stop_gives_the_whole_group_its_grace(runner: Runner) -> None:
    # bash itself ends at once and does not pass a signal on; its child has work left to do.
    member = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    child = runner.bash(f'bash -c "{member}"; echo never')
    runner.await_output(b"up")
    assert child.stop(SECONDS).exit_code == 143
    assert runner.out.getvalue() == b"up\nsaved\n"


def test_stop_can_ask_the_leader_alone(runner: Runner) -> None:
    script = (
        "trap 'echo leader; kill %1; exit 9' TERM\n"
        "bash -c 'trap \"echo member; exit\" TERM; echo up; while :; do sleep 0.1; done' &\n"
        "while :; do sleep 0.1; done"
    )
    child = runner.bash(script)
    runner.await_output(b"up")
    ended = child.stop(SECONDS, group=False)
    assert ended.exit_code == 9
    assert runner.out.getvalue().startswith(b"up\nleader\n")


def test_stop_kills_what_does_not_listen(runner: Runner) -> None:
    child = runner.bash("trap '' TERM; echo up; while :; do sleep 600; done")
    runner.await_output(b"up")
    assert child.stop(0.2).status == -signal.SIGKILL
    until(lambda: gone(child.pid))


def test_a_signal_after_the_end_goes_nowhere(runner: Runner) -> None:
    child = runner.bash("exit 0")
    assert child.wait(SECONDS) is not None
    child.send(signal.SIGKILL)
    assert child.stop(0).ok


def test_a_program_that_is_not_there_is_an_error_with_its_name(runner: Runner) -> None:
    ended = runner.start(["/not/there", "x"]).wait(SECONDS)
    assert ended is not None
    assert ended.exit_code == 127
    assert "/not/there" in ended.last_lines(5)


def test_the_tail_shows_what_a_terminal_would() -> None:
    tail = Tail(4)
    tail.add("out", b"first\nsecond\n\n  \n\x1b[31mred\x1b[0m\n")
    tail.add("out", b" 10%\r 90%\r100")
    tail.add("err", b"\x07bell\nTrace")
    tail.add("out", b"%\r\nlast\n")
    assert tail.lines() == ("\N{REPLACEMENT CHARACTER}bell", "100%", "last", "Trace")


def test_the_tail_is_bounded() -> None:
    tail = Tail(2)
    for _ in range(1000):
        tail.add("out", b"x" * 10_000)
    tail.add("out", b"\nnext\nlast\n")
    assert [len(line) for line in tail.lines()] == [4, 4]
    tail.add("out", b"y" * 10_000)
    assert [len(line) for line in tail.lines()] == [4, 500]
