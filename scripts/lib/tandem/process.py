"""Run other programs: always with a deadline, always with their words when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tandem.errors import (
    SPACE_FIX,
    ExitCode,
    Problem,
    UserError,
    describe_space,
    says_no_space,
    written_to,
)
from tandem.paths import BIN

#: Lines of a failed program's output that the error repeats.
TAIL_LINES = 25


def tool_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for child programs: ours, with `./bin` first on PATH."""
    env = dict(os.environ)
    env["PATH"] = f"{BIN}{os.pathsep}{env.get('PATH', '')}"
    env.update(extra or {})
    return env


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a text, indented, for an error message."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


def failure(what: str, said: str, fix: str, paths: Iterable[Path] = ()) -> UserError:
    """Return the error for a program that failed; one for want of space is told from others.

    Args:
        what: The program and how it ended.
        said: Its output; the end of it is repeated.
        fix: What a user should do about any other failure.
        paths: Where it wrote.
    """
    shown = f"{what}:\n{tail(said)}" if said.strip() else what
    if not says_no_space(said):
        return UserError(Problem(shown, fix), ExitCode.FAILURE)
    where = describe_space([*paths, *written_to()])
    return UserError(Problem(f"{shown}\n    no space left ({where})", SPACE_FIX))


def run(
    args: Sequence[str | Path],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    log: Path | None = None,
    fix: str = "read the output above",
) -> str:
    """Run a program to its end and return its stdout.

    Args:
        args: The program (found in `./bin`, then on PATH) and its arguments; no shell.
        timeout: Seconds until it is killed.
        cwd: Folder to run in; the current one by default.
        env: Variables to add to the environment of `tool_env`.
        stdin: Text for its standard input; without it standard input is empty.
        log: File that gets stdout and stderr in place of the caller (then "" is returned).
        fix: What a user should do when it fails.

    Raises:
        UserError: It could not be started, ended with another code than 0, or ran out of
            time; the message repeats the end of its output.
    """
    words = [str(a) for a in args]
    shown = " ".join(words[:6]) + (" …" if len(words) > 6 else "")  # noqa: PLR2004
    try:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as out:
                done = subprocess.run(
                    words, check=False, timeout=timeout, cwd=cwd, env=tool_env(env),
                    input=stdin or "", stdout=out, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
            said = log.read_text(encoding="utf-8", errors="replace")
        else:
            done = subprocess.run(
                words, check=False, timeout=timeout, cwd=cwd, env=tool_env(env),
                input=stdin or "", capture_output=True, text=True,
            )  # fmt: skip
            said = done.stderr or done.stdout
    except FileNotFoundError as error:
        missing = error.filename or words[0]
        raise UserError(
            Problem(f"cannot start {shown}: {missing} is missing", "make tools")
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UserError(
            Problem(f"{shown} did not end within {timeout:.0f} s", fix), ExitCode.FAILURE
        ) from error
    if done.returncode != 0:
        where = f" (all of it: {log})" if log else ""
        raise failure(f"{shown} ended with code {done.returncode}{where}", said, fix)
    return "" if log is not None else done.stdout


def stream(module: str, *args: str) -> None:
    """Run one of our own programs with its lines going straight to the person.

    Its stdout goes to our stderr: what it prints as a result is progress for the caller.

    Raises:
        UserError: It failed; it has said why, and its exit code is kept.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        check=False, env=tool_env(), stdin=subprocess.DEVNULL, stdout=sys.stderr,
    )  # fmt: skip
    if done.returncode != 0:
        codes = {int(code) for code in ExitCode}
        raise UserError(
            Problem(f"{module} {' '.join(args)} failed", "see the lines above"),
            ExitCode(done.returncode) if done.returncode in codes else ExitCode.FAILURE,
        )
