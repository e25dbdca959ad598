"""`make bench`: the figures of the README, measured in one run on this machine.

Nothing here is asserted: a slow machine is no defect. The table goes to stdout, with the
machine and the date.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandem.console import console
from tandem.errors import ExitCode, run_main
from tandem.paths import ARTIFACTS, KUBECONFIG, ROOT
from tandem.process import run, stream, tool_env

_EPILOG = """\
examples:
  python -m tandem.bench               all figures as a table (tools and images must be there)
  python -m tandem.bench --no-run      without the training run
  python -m tandem.bench --output json

exit codes: 0 ok, 1 a step failed, 2 usage, 3 a precondition is not met
"""


def _seconds(name: str, work: Callable[[], object]) -> float:
    started = time.monotonic()
    with console.phase(name):
        work()
    return round(time.monotonic() - started, 2)


def machine() -> str:
    """Return processor count, memory and kernel of this machine, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


def _status() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cluster", "status", "--provider", "host",
         "--output", "json"],
        check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
    )  # fmt: skip
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def _sync(folder: Path, name: str) -> Callable[[], object]:
    return lambda: run(["helmfile", "sync"], cwd=ROOT, timeout=600, log=folder / f"{name}.log")


def measure(*, with_run: bool) -> dict[str, float]:
    """Measure every figure and return it by name; seconds unless the name says otherwise."""
    folder = ARTIFACTS / "bench"
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    figures: dict[str, float] = {}
    stream("tandem.cluster", "down", "--provider", "host")
    up: Callable[[], None] = lambda: stream("tandem.cluster", "up", "--provider", "host")  # noqa: E731
    figures["cluster-up, warm"] = _seconds("cluster-up, warm", up)
    figures["cluster-up, again (no-op)"] = _seconds("cluster-up, again", up)
    figures["cluster-status"] = _seconds("cluster-status", _status)
    figures["helmfile sync, first"] = _seconds("helmfile sync, first", _sync(folder, "sync-1"))
    figures["helmfile sync, again"] = _seconds("helmfile sync, again", _sync(folder, "sync-2"))
    if with_run:
        figures["monolithic run"] = _seconds(
            "monolithic run", lambda: stream("tandem.run.demo", "--only-run")
        )
    figures["control plane, MiB resident"] = float(_status()["rss_mib"])
    figures["cluster-down"] = _seconds(
        "cluster-down", lambda: stream("tandem.cluster", "down", "--provider", "host")
    )
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="tandem.bench",
        description="Measure the README's figures on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--no-run", action="store_true", help="leave the training run out")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    figures = measure(with_run=not args.no_run)
    where = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
    if args.output == "json":
        print(json.dumps({**where, "figures": figures}, indent=2))
    else:
        print(f"{where['machine']}, {where['date']}")
        for name, value in figures.items():
            print(f"  {name:<30}{value:>10.1f}")
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
