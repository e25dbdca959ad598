"""The driver: starts a run's training command when the Gym side is there, and tells how it ended.

It stands around the training command as its parent, not in its place: it keeps the leases in
the endpoint registry alive, passes signals on, gives the command's own exit code and writes
the run's verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from endpoint_registry.__main__ import connect, explained
from gym_server import files, link, probe
from gym_server.children import Child, Ended
from gym_server.files import Written
from gym_server.metrics import Metrics
from gym_server.phases import Phase
from gym_server.probe import Probe, Probed
from gym_server.program import Link, Program, RunFailedError
from gym_server.server import ANNOUNCED, HEAD, VLLM, vllm_urls
from gym_server.settings import DriverSettings, add_flags, read, split
from gym_server.signals import Mailbox
from gym_server.urls import UrlError, override, parse
from tandem_common import logs
from tandem_common.errors import ExitCode, Problem
from tandem_common.serve import Health, HealthServer

PHASES = ("gym-announced", "vllm-urls", "vllm-answers", "gym-ready", "training")
URLS_FILE = "TANDEM_VLLM_URLS_FILE"
_GYM_LOOK = "the pod of the Gym head and the log of gym-server in it: was it scheduled?"

_EPILOG = """\
examples:
  ENDPOINT_REGISTRY_JOB_ID=run-7 ENDPOINT_REGISTRY_RUN_OBJECT=JobSet/run-7 driver -- \\
      python -m tandem_trainer.disaggregated --output /artifacts/run-7
      wait for the Gym side of run-7, then train
  driver --gym-url https://gym.example.com/v2 --job-id run-7 --run-uid r7 -- \\
      bash -c 'set -o pipefail; python train.py "$@" | tee train.log' train
      train with a Gym that somebody else runs; the overrides arrive as "$@"

The training command gets `+env.disagg_job_id=…` and `+env.remote_gym_url=…` appended, and the
variable TANDEM_VLLM_URLS_FILE: into that file it writes the addresses of its vLLM servers, as a
JSON list, unless it writes `vllm_base_urls` into the registry itself, as NeMo RL does.

Every setting is an environment variable, and but for secrets a flag of the same name in lower
case with dashes; README.md of this package has the table.

exit codes: the training command's own (128 + number when a signal ended it); when it was never
started or was ended by the driver: 1 a peer failed, or the command ended before it had trained;
2 usage; 3 a precondition is not met; 4 a phase's deadline has passed; 143 told to stop
(130 and 129 for SIGINT and SIGHUP)
"""


class Driver(Program):
    """The program, from the first phase to the verdict."""

    def __init__(
        self, settings: DriverSettings, command: Sequence[str], *, mailbox: Mailbox, to: Link,
        metrics: Metrics, folder: Path, job_id: str,
    ) -> None:  # fmt: skip
        """Take the parts; `folder` is for files of this run."""
        super().__init__(mailbox, to, metrics, settings.progress_seconds)
        self._settings = settings
        self._job_id = job_id
        self._command = list(command)
        self._file = Path(settings.urls_file) if settings.urls_file else folder / "vllm-urls.json"
        self._written: Written | None = None
        self.child: Child | None = None

    def other(self, event: Any) -> None:
        """Take in that the training command has written its addresses."""
        if not isinstance(event, Written):
            super().other(event)
        self._written = event

    def ready(self) -> Health:
        """Whether the training has all that it needs."""
        ok = self.phase == "training"
        return Health() if ok else Health((f"in phase {self.phase or 'start'}",))

    def check(self) -> None:
        """Raise when the training command has ended before it could have trained.

        Raises:
            RunFailedError: With its last words.
        """
        ended = next(iter(self.ended.values()), None)
        if ended is not None and self.phase != "training":
            code = ended.exit_code or ExitCode.FAILURE
            raise RunFailedError(f"{self._words(ended)} (in phase {self.phase})", code)

    def run(self) -> None:
        """Do everything up to the end of the training command.

        Raises:
            StoppedError: Somebody asked for the end.
            PeerFailedError: Another program of the run has failed.
            RunFailedError: The training command has.
            UserError: A deadline has passed, or something was refused.
        """
        gym = self._await_announcement()
        self._start(gym)
        urls = self._await_urls()
        self._await_answers(urls)
        self.link.publish(VLLM, json.dumps(urls))
        self._await_gym(gym)
        self.phase = "training"
        self.metrics.enter("training")
        self.log.info("training", gym=gym, vllm=urls)
        while not self.ended:
            self.take(self.mailbox.get(self._settings.progress_seconds))
        ended = next(iter(self.ended.values()))
        self.metrics.leave("training", ended.seconds)
        if not ended.ok:
            raise RunFailedError(self._words(ended), ended.exit_code)
        self.log.info("succeeded", reason=ended.reason)
        self.link.succeed()

    def _words(self, ended: Ended) -> str:
        if not self._settings.error_lines:
            return ended.reason
        return f"{ended.cause}\n{ended.last_lines(self._settings.error_lines)}".rstrip()

    def _await_announcement(self) -> str:
        """Wait until the Gym side has said where it will be, and return that."""
        settings = self._settings
        if settings.gym_url:
            phase = self._gym_phase("gym-announced", f"answer from {settings.gym_url}/livez")
            self._ask_gym(phase, settings.gym_url, "livez")
            return settings.gym_url
        phase = self._gym_phase("gym-announced", self._key(ANNOUNCED))
        text = self.until(
            phase, lambda: self.values.get(ANNOUNCED), lambda: self.link.silence(ANNOUNCED)
        )
        try:
            return str(parse(text))
        except UrlError as error:
            raise RunFailedError(
                f"the Gym side wrote {ANNOUNCED}={text[:200]!r}: {error}"
            ) from error

    def _await_gym(self, announced: str) -> None:
        """Wait until the Gym side can be asked for rollouts."""
        settings = self._settings
        if settings.gym_url:
            phase = self._gym_phase("gym-ready", f"200 from {settings.gym_url}/readyz")
            self._ask_gym(phase, settings.gym_url, "readyz")
            return
        phase = self._gym_phase("gym-ready", self._key(HEAD))
        text = self.until(phase, lambda: self.values.get(HEAD), lambda: self.link.silence(HEAD))
        if text.rstrip("/") != announced:
            raise RunFailedError(
                f"the Gym side announced {announced}, with which the training was started, "
                f"and then published {text}"
            )

    def _ask_gym(self, phase: Phase, url: str, path: str) -> None:
        self.probed = None
        asking = Probe([url], probe.gym_head(path), self.mailbox.put).start()
        try:
            self.until(phase, lambda: self.probed, lambda: asking.last)
        finally:
            asking.stop()

    def _start(self, gym: str) -> None:
        # Of an attempt before this one: its addresses lead nowhere.
        self._file.unlink(missing_ok=True)
        overrides = [
            override("env.disagg_job_id", self._job_id),
            override("env.remote_gym_url", gym),
        ]
        self.child = Child(
            "the training command", [*self._command, *overrides],
            env={**os.environ, URLS_FILE: str(self._file)},
            out=sys.stdout.buffer, err=sys.stderr.buffer, on_end=self.mailbox.put,
        )  # fmt: skip
        self.log.info("training_command", argv=[*self._command, *overrides])
        self.child.start()

    def _await_urls(self) -> tuple[str, ...]:
        """Wait until the training command has told its vLLM addresses, in either way."""

        def told() -> tuple[str, ...] | None:
            if self._written is None:
                return vllm_urls(self.values.get(VLLM, ""))
            if self._written.problem:
                raise RunFailedError(
                    f"the training command wrote {self._file} ({URLS_FILE}), "
                    f"but {self._written.problem}"
                )
            return tuple(probe.base(parse(url)) for url in self._written.urls)

        watch = files.Watch(self._file, self.mailbox.put).start()
        phase = Phase(
            "vllm-urls", awaits=f"vLLM addresses in {self._file} or {self._key(VLLM)}",
            side="the RL side", look="the training command's output: is a model still loading?",
            seconds=self._settings.vllm_urls_seconds,
            variable=self._settings.variable("vllm_urls_seconds"),
        )  # fmt: skip
        try:
            return self.until(phase, told)
        finally:
            watch.stop()

    def _await_answers(self, urls: tuple[str, ...]) -> None:
        settings = self._settings
        self.probed = None
        self.metrics.urls.set(len(urls))
        asking = Probe(
            urls, probe.vllm(settings.model, settings.vllm_api_key), self.mailbox.put
        ).start()
        phase = Phase(
            "vllm-answers", awaits="completion from " + ", ".join(urls), side="the RL side",
            look="vLLM's log, in the training command's output",
            seconds=settings.vllm_answers_seconds,
            variable=settings.variable("vllm_answers_seconds"),
        )  # fmt: skip
        try:
            done: Probed = self.until(phase, lambda: self.probed, lambda: asking.last)
        finally:
            asking.stop()
        if done.failure:
            raise RunFailedError(f"the training command's vLLM cannot be used: {done.failure}")

    def _key(self, key: str) -> str:
        return f"key `{key}` in ConfigMap {link.name(self._job_id)}"

    def _gym_phase(self, name: str, awaits: str) -> Phase:
        field = f"{name.replace('-', '_')}_seconds"
        settings = self._settings
        return Phase(
            name, awaits=awaits, side="the Gym side", look=_GYM_LOOK,
            seconds=getattr(settings, field), variable=settings.variable(field),
        )  # fmt: skip

    def stopped(self, number: int) -> int:
        """Tell the others: without its driver a run cannot end well."""
        name = signal.Signals(number).name
        self.link.fail(f"the driver was told to stop ({name}) in phase {self.phase or 'start'}")
        return super().stopped(number)

    def close(self) -> bool:
        """End the training command if it still runs, and take back what was published."""
        clean = True
        if self.child is not None:
            clean = self.end(self.child, self._settings.grace_seconds, group=True)
        return super().close() and clean


def trouble(command: Sequence[str], urls_file: str) -> Iterator[Problem]:
    """Yield why a training command cannot be started, or could not write its addresses."""
    if not command:
        yield Problem("there is no training command", "write it behind `--`: driver -- python …")
    elif shutil.which(command[0]) is None:
        yield Problem(
            f"the training command {command[0]!r} is no program on PATH that may be run",
            "name a program, or run a script by its interpreter: driver -- bash script.sh",
        )
    folder = Path(urls_file).parent
    if urls_file and not os.access(folder, os.W_OK | os.X_OK):
        what = f"{DriverSettings.variable('urls_file')}={urls_file}: no folder to write to"
        yield Problem(what, "name a file in a folder that is there")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="driver", description="Run a training command together with the run's Gym side.",
        usage="driver [flags] -- COMMAND [ARGUMENT …]",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_flags(parser, DriverSettings)
    return parser


def main(mailbox: Mailbox, argv: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    flags, command = split(argv)
    given = vars(_parser().parse_args(flags))
    urls_file = given["urls_file"] or os.environ.get(DriverSettings.variable("urls_file"), "")
    problems = list(trouble(command, urls_file))
    settings, shared, cluster = read(DriverSettings, given, "driver", problems)
    logs.configure("driver", level=settings.log_level)
    metrics = Metrics("driver", PHASES)
    with explained():
        registry = connect(shared, cluster, observe=metrics.kube.observe)
    to = link.Registry(registry, mailbox, settings.lease_seconds)
    with tempfile.TemporaryDirectory(prefix="driver-") as folder:
        driver = Driver(
            settings, command, mailbox=mailbox, to=to, metrics=metrics, folder=Path(folder),
            job_id=shared.job_id,
        )  # fmt: skip
        with HealthServer(settings.health_host, settings.health_port, ready=driver.ready):
            mailbox.read = True
            with to:
                return driver.conclude(driver.run)
