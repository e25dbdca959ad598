"""`make demo`: from a bare checkout to a finished run, one phase after the other.

Each phase is the same command that a user would type; the demo adds the clock, the
verdict, and on failure the collected logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tandem import platform
from tandem.cli import Parser
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ARTIFACTS, KUBECONFIG
from tandem.process import stream
from tandem.run import collect, preflight
from tandem.run.end import end_lingering
from tandem.run.follow import RunName, follow
from tandem.run.kube import get
from tandem.run.metrics import first_and_last_reward, read_steps
from tandem.run.start import RESULTS, start
from tandem.run.verdict import Verdict

DEFAULT_VARIANT = "monolithic-rayjob"
#: Beyond the RayJob's own deadline: time for the operator to say so.
_VERDICT_SLACK_SECONDS = 60

_EPILOG = """\
examples:
  python -m tandem.run.demo                       everything, then the default variant
  python -m tandem.run.demo --variant prod-monolithic-rayjob
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


def _cluster_name(run_name: RunName) -> str:
    rayjob = get("rayjobs.ray.io", run_name.namespace, name=run_name.name)
    return str(((rayjob or {}).get("status") or {}).get("rayClusterName") or "")


def _run(demo: Demo) -> Verdict:
    """Apply the variant, follow it to its verdict and keep its results."""
    started = start(demo.variant)
    console.note(f"applied kustomize/overlays/{demo.variant} as {started.run.name}")
    verdict: Verdict | None = None
    try:
        verdict = follow(started.run, timeout=started.deadline_seconds + _VERDICT_SLACK_SECONDS)
    finally:
        # The pods live on for a short while after the verdict: keep what they hold now.
        cluster = _cluster_name(started.run)
        collect.collect_results(demo.folder, started.run.namespace, cluster, RESULTS)
        collect.collect_logs(demo.folder / "logs", started.run.namespace, started.run.name, cluster)
    end_lingering(started.run, verdict)
    return verdict


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


def _report(demo: Demo, verdict: Verdict, output: str) -> None:
    rewards = first_and_last_reward(read_steps(demo.folder / "metrics.jsonl"))
    summary = {
        "variant": demo.variant,
        "succeeded": verdict.succeeded,
        "exit_code": verdict.exit_code,
        "reason": verdict.reason,
        "phases_seconds": demo.phases,
        "reward_first_last": rewards,
        "artifacts": str(demo.folder),
    }
    collect.write_summary(demo.folder, summary)
    if output == "json":
        print(json.dumps(summary, indent=2))
        return
    for name, seconds in demo.phases.items():
        print(f"  {name:<10}{seconds:>8.1f} s")
    if rewards:
        print(f"  reward    {rewards[0]:.3f} -> {rewards[1]:.3f} (mean of 5 steps at each end)")
    print(f"  kept in   {os.path.relpath(demo.folder)}")


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
    stamp = time.strftime("%Y%m%d-%H%M%S")
    demo = Demo(args.variant, args.provider, ARTIFACTS / f"{args.variant}-{stamp}")
    demo.folder.mkdir(parents=True, exist_ok=True)
    verdicts: list[Verdict] = []
    try:
        if not args.only_run:
            demo.prepare()
        elif KUBECONFIG.is_file():
            use_the_cluster()
        demo.phase("run", lambda: verdicts.append(_run(demo)))
    except UserError as error:
        raise keep_failure(demo, error) from error
    [verdict] = verdicts
    _report(demo, verdict, args.output)
    if verdict.succeeded:
        console.ok(f"run succeeded: {demo.variant}")
        return ExitCode.OK
    console.error(
        f"run failed: {verdict.reason}: {verdict.message}",
        f"{verdict.fix}; look at {os.path.relpath(demo.folder)}/logs",
    )
    return verdict.exit_code


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_main(main)
