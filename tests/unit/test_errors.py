import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import SPACE_FIX, ExitCode, Problem, UserError, require_space, run_main
from tandem.paths import ROOT
from tandem.process import run


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


def ends_with(error: OSError, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    def main() -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_main(main)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "fix:" in said
    return ended.value.code, " ".join(said.split())


def test_a_full_disk_is_named_with_what_is_free_and_what_frees_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "not" / "made" / "yet")
    code, said = ends_with(OSError(errno.ENOSPC, "No space left on device", path), capsys)
    assert code == 3
    assert f"{path}: no space left on the disk ({tmp_path}: " in said
    assert "MiB free" in said
    assert "make cluster-down PURGE=1" in said


def test_a_write_to_a_disk_that_is_really_full(capsys: pytest.CaptureFixture[str]) -> None:
    # Always full, and the error of a write names no path.
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_text("x")
    code, said = ends_with(caught.value, capsys)
    assert code == 3
    assert f"{ROOT}: " in said or "MiB free" in said


def test_no_folder_for_temporary_files_is_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    code, said = ends_with(error, capsys)
    assert (code, "no space left on the disk" in said) == (3, True)


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [
        (errno.EACCES, 3, "/x/y: Permission denied (as user "),
        (errno.EPERM, 3, "/x/y: Operation not permitted (as user "),
        (errno.EROFS, 3, "/x/y: its file system is mounted read-only"),
        (errno.EDQUOT, 3, "/x/y: no space left on the disk"),
        (errno.EISDIR, 1, "/x/y: Is a directory"),
    ],
)
def test_errors_of_the_system_are_one_line_and_a_fix(
    capsys: pytest.CaptureFixture[str], number: int, code: int, what: str
) -> None:
    ended, said = ends_with(OSError(number, os.strerror(number), "/x/y"), capsys)
    assert ended == code
    assert said.startswith(f"error: {what}")


def test_on_request_the_trace_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_TRACE", "1")

    def main() -> int:
        raise OSError(errno.EISDIR, "Is a directory", "/x")

    with pytest.raises(SystemExit):
        run_main(main)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said",
    [
        "link: mapping output file failed: no space left on device",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "error: Failed to write file: Disk quota exceeded (os error 122)",
    ],
)
def test_a_program_that_meets_a_full_disk_gets_the_same_fix(said: str) -> None:
    with pytest.raises(UserError) as caught:
        run(["sh", "-c", 'echo "$1" >&2; exit 1', "sh", said], timeout=10, fix="another")
    [problem] = caught.value.problems
    assert caught.value.code == ExitCode.PRECONDITION
    assert said in problem.what
    assert "MiB free" in problem.what
    assert problem.fix == SPACE_FIX


def test_a_program_that_fails_for_another_reason_keeps_its_fix() -> None:
    with pytest.raises(UserError, match="ended with code 4") as caught:
        run(["sh", "-c", "echo undefined: x; exit 4"], timeout=10, fix="another")
    assert caught.value.code == ExitCode.FAILURE
    assert caught.value.problems[0].fix == "another"


def test_too_little_space_is_refused_before_it_is_used_up(tmp_path: Path) -> None:
    require_space(tmp_path, 0.0001, "this")
    with pytest.raises(UserError, match=r"GiB are free at .*; this may need 1000000\.0") as caught:
        require_space(tmp_path / "later", 1e6, "this")
    assert caught.value.code == ExitCode.PRECONDITION
