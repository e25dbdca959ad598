"""The program: looks, decides, acts, tells; until the run is over or it is told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from peer_watcher.act import Actor
from peer_watcher.facts import Members, ObjectFacts, Observation, Target, Verdict
from peer_watcher.metrics import Metrics
from peer_watcher.observe import Observer, short
from peer_watcher.policy import Action, Alert, Decision, Limits, Policy, State
from peer_watcher.settings import WatcherSettings
from tandem_common import logs
from tandem_common.clock import Clock, Deadline
from tandem_common.errors import ExitCode, run_main
from tandem_common.kube import Client, KubeError, load_config
from tandem_common.serve import Health, HealthServer

#: How often patience is looked at while something lasts, and how often when nothing does.
_BUSY_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 20.0
#: The loop must have come by within this time; a confirmation of six slow looks fits in.
_LIVE_SECONDS: Final = 120.0

_EPILOG: Final = """\
examples:
  PEER_WATCHER_JOB_ID=run-7 PEER_WATCHER_NAMESPACE=tandem \\
  PEER_WATCHER_SELF=RayCluster/rl PEER_WATCHER_PEER=RayCluster/gym \\
  PEER_WATCHER_DRIVER=Job/driver peer-watcher
      watch the side rl and its peer gym; the end of the Job is the run's end
  peer-watcher --observe-only --self RayJob/monolithic --job-id run-7 --namespace tandem
      tell what it would do, write and delete nothing

Every setting is an environment variable, and a flag of the same name in lower case with
dashes; README.md of this package has the table.

exit codes: 0 the run is over and everything of it is gone (or never came), or told to stop
(SIGTERM); 1 a teardown did not end in time (start it again: it goes on), 2 usage, 3 a
precondition is not met (no cluster, no token, port in use)
"""


def wall_time() -> str:
    """Return the time as RFC 3339 with microseconds, as Events want it."""
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Watcher:
    """One watcher of one run.

    `run` is the loop. All I/O comes from outside, so tests drive `step` with a clock and an
    API server of their own.
    """

    def __init__(
        self,
        members: Members,
        limits: Limits,
        observer: Observer,
        actor: Actor,
        metrics: Metrics,
        *,
        observe_only: bool = False,
        teardown_seconds: float = 600.0,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take the parts."""
        self._members = members
        self._policy = Policy(members, limits)
        self._observer, self._actor, self._metrics = observer, actor, metrics
        self._observe_only = observe_only
        self._teardown_seconds = teardown_seconds
        self._clock = clock
        self._log = logs.get_logger()
        self._told: tuple[str, ...] = ()
        self._unsent: list[Alert] = []
        self._stop = threading.Event()
        self.state = State()
        self.last_step: float | None = None
        self.seen_all = False

    def stop(self) -> None:
        """End the loop soon, without acting."""
        self._stop.set()
        self._observer.wake.set()

    def close(self) -> None:
        """Stop to watch."""
        self._observer.close()

    def live(self) -> Health:
        """Whether the loop comes by."""
        late = self.last_step is not None and self._clock() - self.last_step > _LIVE_SECONDS
        return Health(("the loop has not come by",)) if late else Health()

    def ready(self) -> Health:
        """Whether everything could be read once."""
        return Health() if self.seen_all else Health(("not everything has been read yet",))

    def run(self) -> ExitCode:
        """Watch until the run is over or `stop` is called."""
        self._observer.start()
        while not self._stop.is_set():
            code = self.step()
            if code is not None:
                return code
            self._observer.wake.wait(self._pause())
            self._observer.wake.clear()
        self._log.info("stopped", reason="told to")
        return ExitCode.OK

    def _pause(self) -> float:
        """Return how long the next step may be away when no watch wakes the loop before."""
        # What is known may be incomplete or old (then time alone changes the decision).
        busy = bool(self.state.timers) or not self.seen_all or bool(self.state.alerts)
        return min(_BUSY_SECONDS if busy else _IDLE_SECONDS, self._observer.wait_seconds)

    def step(self) -> ExitCode | None:
        """Look and decide once, and act on it; return the exit code when all is over."""
        self.last_step = self._clock()
        if not self._observer.tried:
            return None
        seen = self._observer.observe()
        decision = self._take(seen)
        if decision.action is Action.CONFIRM:
            seen = self._observer.confirm()
            decision = self._take(seen)
        if self._stop.is_set():
            return None
        if decision.action is Action.STAND_DOWN:
            self._log.info("stand_down", rule=decision.rule, reason=decision.reason)
            return ExitCode.OK
        if self._observe_only:
            return None
        if decision.action is Action.TEARDOWN and decision.verdict is not None:
            return self._tear_down(decision.verdict)
        self._remember(decision, seen)
        self._send_alerts(seen)
        return None

    def _take(self, seen: Observation) -> Decision:
        self.state, decision = self._policy.step(self.state, seen, self._clock())
        self.seen_all = self.seen_all or not decision.unknown
        self._metrics.decided(decision)
        self._tell(decision)
        self._unsent += decision.alerts
        return decision

    def _tell(self, decision: Decision) -> None:
        """Log what is new: a decision that is repeated each second is said once."""
        phases = {str(ref): member.phase.value for ref, member in self.state.members.items()}
        now = (decision.action.value, decision.rule, *phases.values(), *decision.unknown)
        for alert in decision.alerts:
            tell = self._log.warning if alert.raised else self._log.info
            name = "alert_raised" if alert.raised else "alert_withdrawn"
            tell(name, rule=alert.rule, message=alert.message)
        if now == self._told:
            return
        self._told = now
        fields: dict[str, Any] = {"phases": phases}
        if decision.unknown:
            fields["unknown"] = list(decision.unknown)
        if decision.rule:
            fields |= {
                "rule": decision.rule, "reason": decision.reason,
                "evidence": list(decision.evidence), "observe_only": self._observe_only,
            }  # fmt: skip
        self._log.info(decision.action.value.replace("-", "_"), **fields)

    def _carrier(self, seen: Observation) -> Target | None:
        view = seen.views.get(self._members.self_)
        if view is None or not isinstance(view.object, ObjectFacts):
            return None
        return Target(self._members.self_, view.object.uid)

    def _remember(self, decision: Decision, seen: Observation) -> None:
        carrier = self._carrier(seen)
        if decision.record is None or carrier is None:
            return
        try:
            self._actor.remember(carrier, decision.record)
        except KubeError as error:
            # The record is written again with the next step that differs from it.
            self._log.warning("record_not_written", error=short(error))

    def _send_alerts(self, seen: Observation) -> None:
        """Turn alerts into Events as soon as the API server takes them."""
        carrier = self._carrier(seen)
        if carrier is None:
            return
        while self._unsent:
            alert = self._unsent[0]
            state = "raised" if alert.raised else "withdrawn"
            try:
                self._actor.event(
                    carrier,
                    reason="PeerWatcherAlert" if alert.raised else "PeerWatcherAlertOver",
                    note=f"{alert.message} [{alert.rule}]",
                    warning=alert.raised,
                    name=f"{carrier.ref.name}.{alert.rule}-{state}-{time.time_ns():x}",
                )
            except KubeError as error:
                self._log.info("alert_not_sent", rule=alert.rule, error=short(error))
                return
            self._unsent.pop(0)

    def _tear_down(self, verdict: Verdict) -> ExitCode | None:
        """Carry a verdict out; None when told to stop meanwhile (the next watcher goes on)."""
        log = self._log.bind(rule=verdict.rule, outcome=verdict.outcome.value)
        targets = {str(target.ref): target.uid for target in verdict.targets}
        log.info("teardown_started", reason=verdict.reason, targets=targets)
        deadline = Deadline(self._teardown_seconds, self._clock)
        said: tuple[str, ...] = ()
        while not self._stop.is_set():
            self.last_step = self._clock()
            progress = self._actor.advance(verdict)
            if progress.done:
                log.info("teardown_done", seconds=round(deadline.elapsed, 1))
                return ExitCode.OK
            if progress.faults and progress.faults != said:
                said = progress.faults
                log.warning("teardown_hindered", faults=list(said))
            if deadline.passed:
                left = [str(target.ref) for target in progress.left]
                log.error("teardown_unfinished", left=left, faults=list(progress.faults))
                return ExitCode.FAILURE
            self._observer.wake.wait(_BUSY_SECONDS)
            self._observer.wake.clear()
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="peer-watcher",
        description="End both sides of a run when one of them is dead, or when the run is done.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, field in WatcherSettings.model_fields.items():
        flag, words = f"--{name.replace('_', '-')}", (field.description or "").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(
                flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=words
            )
        else:
            parser.add_argument(flag, dest=name, metavar="VALUE", help=words)
    return parser


def build(
    settings: WatcherSettings, client: Client, metrics: Metrics, clock: Clock = time.monotonic
) -> Watcher:
    """Return a watcher with all its parts."""
    observer = Observer(
        client, settings.members, head_job=settings.head_job,
        poll_seconds=settings.poll_seconds, clock=clock, on_reconnect=metrics.reconnected,
    )  # fmt: skip
    identity = os.environ.get("HOSTNAME") or socket.gethostname()
    actor = Actor(
        client, identity=identity, now=wall_time, count=metrics.deleted, run_id=settings.job_id
    )
    return Watcher(
        settings.members, settings.limits, observer, actor, metrics,
        observe_only=settings.observe_only, teardown_seconds=settings.teardown_seconds,
        clock=clock,
    )  # fmt: skip


def _on_signals(stop: Callable[[], None]) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    settings = WatcherSettings.load(vars(_parser().parse_args(argv)))
    logs.configure("peer-watcher", level=settings.log_level)
    metrics = Metrics()
    config = replace(load_config(), namespace=settings.namespace)
    with Client(
        config, user_agent="tandem-peer-watcher", attempts=settings.attempts,
        observe=metrics.kube.observe,
    ) as client:  # fmt: skip
        watcher = build(settings, client, metrics)
        _on_signals(watcher.stop)
        with HealthServer(
            settings.health_host, settings.health_port, live=watcher.live, ready=watcher.ready
        ) as server:
            logs.get_logger().info(
                "started", port=server.port, job_id=settings.job_id,
                objects=[str(ref) for ref in settings.members.all],
                observe_only=settings.observe_only,
            )  # fmt: skip
            try:
                return watcher.run()
            finally:
                watcher.close()


def entry() -> None:
    """Run as a program."""
    run_main(main)


if __name__ == "__main__":
    entry()
