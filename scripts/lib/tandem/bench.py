"""`make bench`: the figures of the README, measured in one run on this machine.

Nothing here is asserted: a slow machine is no defect. The table goes to stdout, with the
machine, the date and, beside each figure, the limit that the project promises for two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.figures import Figure, report
from tandem.paths import ARTIFACTS, KUBECONFIG, ROOT
from tandem.process import run, stream, tool_env
from tandem.render import render_variant

_EPILOG = """\
examples:
  python -m tandem.bench               all figures as a table (tools and images must be there)
  python -m tandem.bench --no-run      without the training run
  python -m tandem.bench --output json

exit codes: 0 ok, 1 a step failed, 2 usage, 3 a precondition is not met
"""

_SYNC_SECONDS = 600
_TOOLS_SECONDS = 3600
_EXPLAIN_SECONDS = 120
_RUN_SECONDS = 1800
#: Variants of the local cluster that are measured, with the most seconds to the first step (the
#: first rollout lies before it).
RUNS: dict[str, float | None] = {
    "disagg-rayclusters": 120.0,
    "disagg-jobset": 120.0,
    "monolithic-rayjob": None,
}
#: 1.3 GB.
_MEMORY_MIB = 1240


def _seconds(name: str, work: Callable[[], object], limit: float | None = None) -> Figure:
    with console.phase(name) as phase:
        work()
        seconds = phase.seconds
    return Figure(name, round(seconds, 2), limit)


def _status() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host",
         "--output", "json"],
        check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
    )  # fmt: skip
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def _memory(name: str) -> Figure:
    return Figure(f"control plane, {name}", float(_status()["rss_mib"]), _MEMORY_MIB, "MiB")


def _tools() -> None:
    # Not a part of the `make` that we may be running under.
    run(["make", "tools"], cwd=ROOT, timeout=_TOOLS_SECONDS, env={"MAKEFLAGS": "", "MAKELEVEL": ""})


def _api_server(folder: Path) -> Figure:
    """Measure the bare API server that tests run against; it ends before this returns."""
    from tandem_host.control_plane import ControlPlane  # noqa: PLC0415 - help needs no provider

    plane = ControlPlane(folder)
    try:
        return _seconds("API server of the tests, ready", plane.start, 4)
    finally:
        plane.stop()


def _explain(folder: Path) -> Figure:
    """Measure `make explain` of a run of 64 workers against a list of 1,000 nodes."""
    from tandem.rehearsal import Plan, run_folder  # noqa: PLC0415 - help needs no provider
    from tandem_host import kwok  # noqa: PLC0415

    plan = Plan("prod-disagg-jobset", 1, 68, 64, 8, 1000, "h100")
    file = folder / "nodes.json"
    folder.mkdir(parents=True, exist_ok=True)
    nodes = kwok.nodes(kwok.profile(plan.profile), plan.nodes)
    file.write_text(json.dumps({"kind": "List", "items": nodes}), encoding="utf-8")
    with run_folder(plan, plan.run_ids[0], render_variant(plan.variant)) as run_of_64:
        words = [sys.executable, "-m", "tandem.explain", str(run_of_64), "--nodes", str(file)]
        return _seconds(
            "make explain, 64 workers, 1,000 nodes",
            lambda: run(words, timeout=_EXPLAIN_SECONDS),
            2,
        )


def _sync(folder: Path, name: str) -> Callable[[], object]:
    return lambda: run(
        ["helmfile", "sync"], cwd=ROOT, timeout=_SYNC_SECONDS, log=folder / f"{name}.log"
    )


def _cluster(command: str) -> None:
    stream("tandem.cluster", command, "--provider", "host")


def _run(variant: str) -> list[Figure]:
    """Measure a run: what `make run` says of itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tandem.runs", "start", "--variant", variant, "--output", "json"],
        check=False, stdout=subprocess.PIPE, text=True, env=tool_env(), timeout=_RUN_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise UserError(
            Problem(f"the run of {variant} ended with code {done.returncode}", "see above"),
            ExitCode.FAILURE,
        )
    outcome = json.loads(done.stdout)
    marks, limit = outcome["marks_seconds"], RUNS[variant]
    first = marks.get("first step")
    figures = [Figure(f"{variant}, apply to first step", first, limit)] if first else []
    return [*figures, Figure(f"{variant}, apply to verdict, all pods ended", marks["over"])]


def measure(*, with_run: bool) -> list[Figure]:
    """Measure every figure, in the order of the table."""
    folder = ARTIFACTS / "bench"
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    _tools()
    _cluster("down")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as scratch:
        figures = [
            _seconds("make tools, nothing to do", _tools, 2),
            _api_server(Path(scratch)),
            _explain(folder),
        ]
    figures += [
        _seconds("cluster-up, warm", lambda: _cluster("up"), 15),
        _seconds("cluster-up, again (no-op)", lambda: _cluster("up")),
        _seconds("cluster-status", _status, 1),
        _memory("without the platform"),
        _seconds("helmfile sync, first", _sync(folder, "sync-1"), 30),
        _seconds("helmfile sync, again", _sync(folder, "sync-2"), 30),
    ]
    if with_run:
        figures += [figure for variant in RUNS for figure in _run(variant)]
    figures += [
        _memory("with the platform"),
        _seconds("cluster-down", lambda: _cluster("down")),
    ]
    return figures


def main() -> int:
    """Measure and print."""
    parser = Parser("tandem.bench", "Measure the README's figures on this machine.", _EPILOG)
    parser.add_argument("--no-run", action="store_true", help="leave the training run out")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    figures = measure(with_run=not args.no_run)
    report(figures, args.output)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
