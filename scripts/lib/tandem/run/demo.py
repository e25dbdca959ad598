"""`make demo`: from a bare checkout to a finished run, one phase after the other.

Each phase is the same command that a user would type; the demo adds the clock, the
verdict, and on failure the collected logs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tandem import platform
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import Problem, UserError, run_main
from tandem.paths import ARTIFACTS, KUBECONFIG
from tandem.process import stream
from tandem.run import collect, preflight
from tandem.run.identity import new_run_id
from tandem.run.lifecycle import Outcome, carry_out, report

DEFAULT_VARIANT = "disagg-rayclusters"

_EPILOG = """\
examples:
  python -m tandem.run.demo                       everything, then the default variant
  python -m tandem.run.demo --variant monolithic-rayjob
  python -m tandem.run.demo --only-run            the cluster is up and synced already
  python -m tandem.run.demo --output json         the summary on stdout

exit codes: the run's own; 2 usage, 3 a precondition is not met. What can be known to fail is
refused before anything is started; a phase that fails later ends the demo with its own code.
From then on artifacts/<run>/ holds summary.json and the logs and events that could be had.
"""


@dataclass
class Demo:
    """The phases so far, with their seconds."""

    variant: str
    provider: str
    folder: Path
    phases: dict[str, float] = field(default_factory=dict)
    #: When it began (epoch): older logs are another demo's.
    began: float = field(default_factory=time.time)

    def phase(self, name: str, work: Callable[[], object]) -> None:
        """Run one phase and keep its time, also when it fails."""
        started = time.monotonic()
        try:
            with console.phase(name):
                work()
        finally:
            self.phases[name] = round(time.monotonic() - started, 1)

    def prepare(self) -> None:
        """Bring tools, images, cluster and platform up."""
        self.phase("tools", lambda: stream("tandem.tools", "make"))
        self.phase("bundle", lambda: stream("tandem.bundle", "fill"))
        self.phase("images", lambda: stream("tandem.images", "build"))
        self.phase("cluster", lambda: stream("tandem.cluster", "up", "--provider", self.provider))
        use_the_cluster()
        self.phase("sync", self._sync)

    def _sync(self) -> None:
        platform.sync("default", log=self.folder / "logs" / "helmfile-sync.log")


def use_the_cluster() -> None:
    """Let every child program talk to the cluster that `cluster up` chose.

    Every provider writes this kubeconfig, so it wins over one in the environment, which
    may name a cluster that did not answer.
    """
    os.environ["KUBECONFIG"] = str(KUBECONFIG)


def keep_failure(demo: Demo, error: UserError) -> UserError:
    """Keep what tells why the last phase failed, and return the error that names the place."""
    phase = list(demo.phases)[-1]
    logs = demo.folder / "logs"
    collect.copy_logs(collect.BUILD_LOGS, logs / "build", since=demo.began)
    if phase in ("cluster", "sync"):
        collect.copy_logs(collect.COMPONENT_LOGS, logs / "cluster")
    if phase in ("cluster", "sync") and KUBECONFIG.is_file():
        use_the_cluster()
        collect.collect_cluster(logs)
    summary = {
        "variant": demo.variant,
        "succeeded": False,
        "exit_code": int(error.code),
        "reason": f"phase {phase} failed",
        "problems": [{"what": each.what, "fix": each.fix} for each in error.problems],
        "phases_seconds": demo.phases,
        "artifacts": str(demo.folder),
    }
    collect.write_summary(demo.folder, summary)
    *others, last = error.problems
    kept = [path.relative_to(demo.folder) for path in sorted(logs.rglob("*")) if path.is_file()]
    where = f"look at {os.path.relpath(demo.folder)}: {', '.join(map(str, kept)) or 'summary.json'}"
    return UserError([*others, Problem(last.what, f"{last.fix}; {where}")], error.code)


def _parser() -> Parser:
    parser = Parser("tandem.run.demo", "From a bare checkout to a finished run.", _EPILOG)
    parser.add_argument("--variant", default=DEFAULT_VARIANT, help="folder of kustomize/overlays")
    parser.add_argument("--provider", default="auto", help="how the cluster comes to be")
    parser.add_argument("--only-run", action="store_true", help="skip tools, cluster and sync")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def main() -> int:
    """Run the demo."""
    args = _parser().parse_args()
    with console.phase("preflight"):
        if args.only_run:
            preflight.require_followable(args.variant)
        else:
            preflight.check(args.variant, args.provider, os.environ.get("KUBECONFIG", ""))
    run_id = new_run_id("demo-")
    demo = Demo(args.variant, args.provider, ARTIFACTS / run_id)
    demo.folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    try:
        if not args.only_run:
            demo.prepare()
        elif KUBECONFIG.is_file():
            use_the_cluster()
        demo.phase("run", lambda: outcomes.append(carry_out(args.variant, run_id, demo.folder)))
    except UserError as error:
        raise keep_failure(demo, error) from error
    except KeyboardInterrupt:
        if list(demo.phases)[-1:] == ["run"]:
            console.warn(f"run {run_id} goes on, if it has begun: make stop RUN_ID={run_id}")
        raise
    [outcome] = outcomes
    collect.write_summary(demo.folder, outcome.summary() | {"phases_seconds": demo.phases})
    return report(outcome, args.output, demo.phases)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_main(main)
