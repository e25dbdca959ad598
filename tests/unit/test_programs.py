"""What every program behind the Makefile offers on its command line."""

import subprocess

import pytest

from tandem.paths import ROOT

WRAPPER = ROOT / "scripts" / "tandem"


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WRAPPER, *words], check=False, capture_output=True, text=True, timeout=60, cwd="/"
    )


def programs() -> list[str]:
    return call().stdout.splitlines()[1:]


@pytest.mark.parametrize("program", [name.strip() for name in programs()])
def test_help_has_examples_and_exit_codes(program: str) -> None:
    done = call(program, "--help")
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    done = call("clutser", "up")
    assert done.returncode == 2
    assert "there is no program clutser" in done.stderr
    assert "cluster" in done.stderr.partition("fix:")[2]


def test_an_unknown_option_is_usage() -> None:
    assert call("cluster", "up", "--no-such-option").returncode == 2
