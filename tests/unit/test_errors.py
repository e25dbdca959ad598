import subprocess
import sys

import pytest

from tandem.errors import ExitCode, Problem, UserError, run_main


def failing() -> int:
    raise UserError([Problem("one", "mend one"), Problem("two", "mend two")], ExitCode.USAGE)


def interrupted() -> int:
    raise KeyboardInterrupt


def test_all_problems_are_shown_with_their_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(failing)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    for words in ("error: one", "fix: mend one", "error: two", "fix: mend two"):
        assert words in said


def test_ctrl_c_is_130_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_main(interrupted)
    assert ended.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_failure() -> None:
    program = (
        "from tandem.errors import run_main\n"
        "def main():\n"
        "    for i in range(100000): print(i)\n"
        "    return 0\n"
        "run_main(main)\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -c '{program}' | head -n 1"],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert (done.returncode, done.stderr) == (0, "")
