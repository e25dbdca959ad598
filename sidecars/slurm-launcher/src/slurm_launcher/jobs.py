"""Jobs that were submitted: how they do, and asking them to end."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

from slurm_launcher.config import Config
from tandem_common.errors import ExitCode, Problem, UserError

_FOLDER: Final = re.compile(r"(\d+)(?:-(\d+))?-logs")
_SECONDS: Final = 30


def newest(config: Config) -> str:
    """Return the id of the newest job that has begun.

    Raises:
        UserError: None has.
    """
    found = [match[1] for match in map(_FOLDER.fullmatch, _names(config)) if match]
    if not found:
        raise UserError(
            Problem(
                f"no job has begun under {config.log_dir}",
                "see squeue for one that waits, or submit one",
            ),
            ExitCode.PRECONDITION,
        )
    return max(found, key=int)


def _names(config: Config) -> list[str]:
    try:
        return [entry.name for entry in Path(config.log_dir).iterdir()]
    except OSError:
        return []


def folder(config: Config, job: str) -> Path:
    """Return the folder of a job's last start: each requeue has one of its own.

    Raises:
        UserError: It has not begun.
    """
    mine = [m for m in map(_FOLDER.fullmatch, _names(config)) if m is not None and m[1] == job]
    if not mine:
        raise UserError(
            Problem(f"job {job} has not begun: {config.log_dir} has nothing of it", "see squeue"),
            ExitCode.PRECONDITION,
        )
    return Path(config.log_dir) / max(mine, key=lambda match: int(match[2] or 0))[0]


def status(config: Config, job: str) -> dict[str, Any]:
    """Return what the launcher has told of a job, and what Slurm says of it.

    Raises:
        UserError: It has not begun, or its files cannot be read.
    """
    where = folder(config, job)
    told: dict[str, Any] = {}
    for name in ("state", "reason"):
        path = where / f"{name}.json"
        try:
            told[name] = json.loads(path.read_bytes())
        except FileNotFoundError:
            told[name] = None
        except (OSError, ValueError) as error:
            raise UserError(Problem(f"{path}: {error}", "look at it"), ExitCode.FAILURE) from None
    state = told["state"] or {}
    reason = told["reason"]
    slurm = _slurm(job)
    ended = reason is not None or slurm in ("gone", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    return {
        "job": job,
        "slurm": slurm,
        "phase": "ended" if ended else _phase(state),
        "code": reason["code"] if reason else None,
        "reason": reason["reason"] if reason else None,
        "pools": state.get("pools", {}),
        "folder": str(where),
    }


def _phase(state: dict[str, Any]) -> str:
    names = [event["event"] for event in state.get("events", [])]
    if "training_started" in names:
        return "training"
    return "ready" if "ready" in names else "starting"


def _slurm(job: str) -> str:
    """Return Slurm's word for a job's state; `gone` when it knows it no more."""
    ran = _run(["squeue", "--noheader", "--jobs", job, "--format", "%T"], check=False)
    words = ran.stdout.split()
    return words[0] if words else "gone"


def signal(job: str, number: str) -> None:
    """Send a signal to a job's launcher alone.

    Raises:
        UserError: Slurm refuses.
    """
    _run(["scancel", "--batch", f"--signal={number}", job])


def cancel(job: str) -> None:
    """End a job: its launcher is asked to end, and KillWait later all is killed.

    Raises:
        UserError: Slurm refuses.
    """
    _run(["scancel", job])


def _run(argv: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        ran = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            Problem(f"{argv[0]}: {error}", "run it where Slurm's commands are"),
            ExitCode.PRECONDITION,
        ) from None
    if check and ran.returncode != 0:
        raise UserError(
            Problem(f"{argv[0]} refuses: {ran.stderr.strip()}", "see squeue for what runs"),
            ExitCode.PRECONDITION,
        )
    return ran


def text(said: dict[str, Any]) -> str:
    """Return a status for people."""
    line = f"job {said['job']}: {said['phase']}, Slurm says {said['slurm']}"
    if said["reason"] is not None:
        line += f"; {said['reason']}"
    lines = [line]
    for name, pool in said["pools"].items():
        lost = f", lost nodes: {', '.join(pool['lost_nodes'])}" if pool["lost_nodes"] else ""
        lines.append(f"  pool {name} at {pool['url']}, ready from {pool['min_ready']} on{lost}")
        for replica, each in pool["replicas"].items():
            where = ", ".join(each["nodes"]) or "given up"
            lines.append(f"    {replica}: {where}, {each['restarts']} restarts")
    return "\n".join([*lines, f"  {said['folder']}"])
