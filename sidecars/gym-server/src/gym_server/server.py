"""The standalone Gym server: waits for the policy's vLLM, runs NeMo Gym, tells when it is ready.

Order of things: judge the config, announce where the head will answer, wait for the vLLM
addresses and for a real answer from each, start NeMo Gym, publish the head's address once it
is ready, and from then on watch everything until the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from endpoint_registry.__main__ import connect, explained
from gym_server import config, gym_child, link, probe
from gym_server.children import Child, Ended
from gym_server.config import Judges, Loaded, Run
from gym_server.metrics import Metrics
from gym_server.phases import Phase
from gym_server.probe import Probe
from gym_server.program import Link, Program, RunFailedError
from gym_server.settings import GymServerSettings, add_flags, read
from gym_server.signals import Mailbox
from gym_server.urls import UrlError, parse
from tandem_common import logs
from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.serve import Health, HealthServer

T = TypeVar("T")

PHASES = ("gym-config", "vllm-urls", "vllm-answers", "judge-urls", "gym-ready", "serving")
#: Behind the name of a pool: where it is.
JUDGE = "_base_url"
ANNOUNCED, VLLM, HEAD = "gym_server", "vllm_base_urls", "gym_head_server"
#: Stands for the vLLM addresses while a config is judged before they are known.
_PLACEHOLDER = ("http://127.0.0.1:9/v1",)
#: Lines of NeMo Gym's output that go into the registry's `error`.
_ERROR_LINES = 12
#: Seconds for the environment's servers when one of them has died: the run is over.
_REST_SECONDS = 2.0
#: Seconds for NeMo Gym when the run has failed.
_FAILED_SECONDS = 5.0
#: Seconds for Ray when everything that used it has ended.
_RAY_SECONDS = 3.0
_FIND_SECONDS = 30.0
_FIND_GYM = (
    "import importlib.util, pathlib; spec = importlib.util.find_spec('nemo_gym'); "
    "print(pathlib.Path(list(spec.submodule_search_locations)[0]).parent if spec else '')"
)

_EPILOG = """\
examples:
  ENDPOINT_REGISTRY_JOB_ID=run-7 ENDPOINT_REGISTRY_RUN_OBJECT=JobSet/run-7 \\
  GYM_SERVER_HOST=10.0.0.7 GYM_SERVER_MODEL=policy GYM_SERVER_CONFIG=/etc/gym/gym.yaml \\
  gym-server
      serve the environments of run-7
  gym-server --check --config gym.yaml --model policy --host 127.0.0.1
      judge a Gym config, with NeMo Gym's own parser, and end

Every setting is an environment variable, and but for secrets a flag of the same name in lower
case with dashes; README.md of this package has the table.

exit codes: 0 told to stop (SIGTERM) while serving, and everything ended in good order; 143 told
to stop before that, or something had to be killed (130 and 129 for SIGINT and SIGHUP);
1 NeMo Gym, one of its servers or a peer failed; 2 usage or a wrong Gym config; 3 a precondition
is not met (no cluster, no rights, port in use, no NeMo Gym); 4 a phase's deadline has passed
"""


class GymServer(Program):
    """The program, from a config that has been judged to the end."""

    def __init__(
        self, settings: GymServerSettings, loaded: Loaded, *, mailbox: Mailbox, to: Link,
        metrics: Metrics, python: str, job_id: str,
    ) -> None:  # fmt: skip
        """Take the parts."""
        super().__init__(mailbox, to, metrics, settings.progress_seconds)
        self._settings = settings
        self._job_id = job_id
        self._loaded = loaded
        self._work = Path(settings.work_dir)
        self._endpoint_file = self._work / "vllm-endpoint"
        self._run = Run(
            host=settings.host, head_listen=settings.head_listen, head_port=settings.head_port,
            port_low=settings.port_range_low, port_high=settings.port_range_high,
            model=settings.model, api_key=settings.vllm_api_key,
            ray_address=settings.ray_address, endpoint_file=str(self._endpoint_file),
            venvs=settings.venv_dir,
        )  # fmt: skip
        self._checker = self._child("the check of the Gym config", python, checking=True)
        self._gym = self._child("NeMo Gym", python, checking=False)
        # Once Ray has begun it is as much a part of the Gym side as the servers are: NeMo Gym
        # itself goes on without it until it next needs it.
        self._ray: Child | None = None
        if settings.ray_command:
            self._ray = self._ours(
                "Ray's head of the Gym side", ["bash", "-c", settings.ray_command]
            )
        self._urls: tuple[str, ...] = ()
        self.serving = False

    def _child(self, name: str, python: str, *, checking: bool) -> Child:
        file = self._config_file(checking=checking)
        # By its file: NeMo Gym's Python need not have this package, and with -P it does not
        # take our modules for its own.
        argv = [python, "-P", gym_child.__file__, *(["--check"] if checking else []), str(file)]
        return self._ours(name, argv)

    def _ours(self, name: str, argv: Sequence[str]) -> Child:
        return Child(
            name, argv, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            out=sys.stdout.buffer, err=sys.stderr.buffer, on_end=self.mailbox.put,
            rest_seconds=_REST_SECONDS,
        )  # fmt: skip

    def _config_file(self, *, checking: bool) -> Path:
        return self._work / ("gym-check.json" if checking else "gym.json")

    def ready(self) -> Health:
        """Whether rollouts can be had from here."""
        return Health() if self.serving else Health((f"in phase {self.phase or 'start'}",))

    def check(self) -> None:
        """Raise when a child has ended that must not have.

        Raises:
            RunFailedError: With the child's last words.
            UserError: NeMo Gym refuses the config.
        """
        checked = self.ended.get(self._checker.name)
        if checked is not None and not checked.ok:
            raise refusal(checked)
        for child in (self._ray, self._gym):
            ended = self.ended.get(child.name) if child else None
            if ended is not None:
                raise RunFailedError(f"{ended.cause}\n{ended.last_words(_ERROR_LINES)}".rstrip())

    def start_check(self) -> None:
        """Let NeMo Gym's own parser judge the config, beside everything else."""
        placeholders = dict.fromkeys(self._settings.judges, _PLACEHOLDER[0])
        composed = config.compose(self._loaded, self._run, _PLACEHOLDER, Judges(placeholders))
        config.write(self._config_file(checking=True), composed)
        self._start(self._checker)

    def await_check(self) -> None:
        """Wait for that judgement."""
        self.until(self._gym_phase("gym-config"), lambda: self.ended.get(self._checker.name))

    def run(self) -> None:
        """Do everything up to serving, and serve; returns only by an exception.

        Raises:
            StoppedError: Somebody asked for the end.
            PeerFailedError: Another program of the run has failed.
            RunFailedError: NeMo Gym or one of its servers has.
            UserError: A deadline has passed, or something was refused.
        """
        if self._ray is not None:
            self._start(self._ray)
        self.link.publish(ANNOUNCED, str(self._settings.url))
        self.start_check()
        self._urls = self.until(
            self._vllm_phase("vllm-urls"), self._published, lambda: self.link.silence(VLLM)
        )
        self._await_answers()
        judges = self._await_judges()
        self.await_check()
        composed = config.compose(self._loaded, self._run, self._urls, judges)
        config.write(self._config_file(checking=False), composed)
        if len(self._urls) == 1:
            config.write_atomically(self._endpoint_file, self._urls[0] + "\n")
        self._start(self._gym)
        self._await_head()
        self.link.publish(HEAD, str(self._settings.url))
        self.serving = True
        self.phase = "serving"
        self.metrics.enter("serving")
        self.log.info("serving", url=str(self._settings.url), vllm=self._urls)
        while True:
            self.check()
            self.take(self.mailbox.get(self._settings.progress_seconds))
            self._follow()

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:
            raise UserError(
                Problem(f"{child.name} cannot be started: {error}", "set GYM_SERVER_GYM_PYTHON")
            ) from error

    def _published(self) -> tuple[str, ...] | None:
        """Return the vLLM addresses that the registry holds."""
        return vllm_urls(self.values.get(VLLM, ""))

    def _await_judges(self) -> Judges:
        """Wait until every judge that the config asks for is in the registry.

        Who writes an address there has asked the pool itself, so it is not asked again here.
        """
        settings, token = self._settings, ""
        urls: dict[str, str] = {}
        for name in settings.judges:
            key = f"{name}{JUDGE}"
            urls[name] = self.until(
                self._judge_phase(name),
                partial(self._value, key),
                partial(self.link.silence, key),
            )
        if urls and settings.judge_token_file:
            try:
                token = Path(settings.judge_token_file).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise UserError(
                    Problem(
                        f"{settings.variable('judge_token_file')}={settings.judge_token_file}:"
                        f" {error}",
                        "mount the Secret of the pool there",
                    ),
                    ExitCode.PRECONDITION,
                ) from None
        return Judges(urls, token) if token else Judges(urls)

    def _value(self, key: str) -> str | None:
        return self.values.get(key)

    def _await_answers(self) -> None:
        settings = self._settings
        asking = Probe(
            self._urls, probe.vllm(settings.model, settings.vllm_api_key), self.mailbox.put
        ).start()
        self.metrics.urls.set(len(self._urls))
        try:
            done = self.until(
                self._vllm_phase("vllm-answers"), lambda: self.probed, lambda: asking.last
            )
        finally:
            asking.stop()
        if done.failure:
            raise RunFailedError(
                f"the RL side's vLLM is not the one that Gym needs: {done.failure}"
            )

    def _await_head(self) -> None:
        self.probed = None
        head = f"http://127.0.0.1:{self._settings.head_port}"
        asking = Probe([head], probe.gym_head(), self.mailbox.put).start()
        try:
            self.until(self._gym_phase("gym-ready"), lambda: self.probed, lambda: asking.last)
        finally:
            asking.stop()

    def _follow(self) -> None:
        """Hand a new vLLM address on to NeMo Gym's model server, which reads it from a file."""
        now = self._published()
        if now is None or now == self._urls:
            return
        followed = self._loaded.follows_file and len(now) == len(self._urls) == 1
        self.metrics.changes.labels(str(followed).lower()).inc()
        if followed:
            config.write_atomically(self._endpoint_file, now[0] + "\n")
            self.log.info("vllm_url_followed", before=self._urls[0], now=now[0])
        else:
            self.log.error(
                "vllm_urls_not_followed", before=self._urls, now=now,
                reason="NeMo Gym follows one address of a vllm_model, not a list",
            )  # fmt: skip
        self._urls = now

    def stopped(self, number: int) -> int:
        """Return 0 when there was something to stop in good order; the peers see us withdraw."""
        return ExitCode.OK if self.serving else super().stopped(number)

    def close(self) -> bool:
        """Take everything back and end NeMo Gym; return whether nothing had to be killed."""
        self.serving = False
        super().close()
        self.end(self._checker, 0.0, group=False)
        # NeMo Gym's process ends its servers by itself, in its order. They wait for rollouts that
        # are under way: for long when vLLM is gone, and for nobody when the run has failed.
        clean = self.end(
            self._gym, self._settings.drain_seconds, group=False, failed_grace=_FAILED_SECONDS
        )
        if self._ray is not None:
            clean = self.end(self._ray, _RAY_SECONDS, group=True) and clean
        return clean

    def _vllm_phase(self, name: str) -> Phase:
        settings = self._settings
        told = name == "vllm-urls"
        registry = link.name(self._job_id)
        return Phase(
            name,
            awaits=f"key `{VLLM}` in ConfigMap {registry}"
            if told
            else "completion from " + ", ".join(self._urls),
            side="the RL side",
            look="the driver's log and the training command's: is a model still loading?"
            if told
            else "vLLM's log on the RL side, and whether a NetworkPolicy lets this pod reach it",
            seconds=settings.vllm_urls_seconds if told else settings.vllm_answers_seconds,
            variable=settings.variable("vllm_urls_seconds" if told else "vllm_answers_seconds"),
        )

    def _judge_phase(self, name: str) -> Phase:
        settings = self._settings
        return Phase(
            "judge-urls",
            awaits=f"key `{name}{JUDGE}` in ConfigMap {link.name(self._job_id)}",
            side=f"the pool {name}",
            look="the pods of the pool (label tandem.dev/role=pool): is a model still loading?",
            seconds=settings.judge_urls_seconds,
            variable=settings.variable("judge_urls_seconds"),
        )

    def _gym_phase(self, name: str) -> Phase:
        settings = self._settings
        judging = name == "gym-config"
        return Phase(
            name,
            awaits="judgement of the Gym config" if judging else "200 from /readyz of the head",
            side="the Gym side, this pod",
            look="this log: NeMo Gym's servers tell there what they do",
            seconds=settings.config_seconds if judging else settings.gym_ready_seconds,
            variable=settings.variable("config_seconds" if judging else "gym_ready_seconds"),
        )


def vllm_urls(value: str) -> tuple[str, ...] | None:
    """Return the addresses of a registry value, as bases of the OpenAI routes.

    Raises:
        RunFailedError: It is there, but holds no addresses.
    """
    if not value:
        return None
    try:
        listed = json.loads(value)
        urls = tuple(probe.base(parse(str(url))) for url in listed if url is not None)
    except (ValueError, TypeError, UrlError) as error:
        raise RunFailedError(f"the RL side wrote {VLLM}={value[:200]!r}: {error}") from error
    return urls or None


def refusal(ended: Ended) -> UserError:
    """Return the error of a config that NeMo Gym refuses."""
    if ended.status == gym_child.REFUSED:
        what = f"NeMo Gym refuses the config: {ended.last_words(_ERROR_LINES)}"
        return UserError(Problem(what, "mend the key that is named"), ExitCode.USAGE)
    what = f"{ended.cause}\n{ended.last_words(_ERROR_LINES)}"
    return UserError(Problem(what, "is NeMo Gym installed for GYM_SERVER_GYM_PYTHON?"))


def install_root(python: str) -> Path | None:
    """Return the folder that holds NeMo Gym's own files, None when it is not installed.

    Raises:
        UserError: There is no such Python.
    """
    try:
        done = subprocess.run(
            [python, "-P", "-c", _FIND_GYM], check=False, capture_output=True, text=True,
            timeout=_FIND_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            Problem(f"{python} does not run: {error}", "set GYM_SERVER_GYM_PYTHON")
        ) from error
    found = done.stdout.strip()
    return Path(found) if found else None


def load(settings: GymServerSettings, python: str, environ: Mapping[str, str]) -> Loaded:
    """Read and judge the Gym config, and tell what was dropped from it.

    Raises:
        UserError: With everything that is wrong with it.
    """
    loaded = config.load(
        [Path(file) for file in settings.config], key=settings.config_key, strict=settings.strict,
        roots=config.search_roots(environ, install_root(python)), environ=environ,
        judges=settings.judges,
    )  # fmt: skip
    log = logs.get_logger()
    for one in loaded.dropped:
        log.warning("key_dropped", path=one.path, value=one.value, reason=one.reason)
    if loaded.replaced:
        log.warning("keys_replaced", keys=loaded.replaced, reason="the run sets them")
    return loaded


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gym-server", description="Serve NeMo Gym's environments to the RL side of a run.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="judge the config and end; nothing is published"
    )
    add_flags(parser, GymServerSettings)
    return parser


def main(mailbox: Mailbox, argv: Sequence[str]) -> int:
    """Run the program and return its exit code."""
    flags = vars(_parser().parse_args(argv))
    if flags.pop("check"):
        return _check(mailbox, flags)
    settings, shared, cluster = read(GymServerSettings, flags, "gym-server")
    logs.configure("gym-server", level=settings.log_level)
    python = settings.gym_python or sys.executable
    metrics = Metrics("gym_server", PHASES)
    with explained():
        registry = connect(shared, cluster, observe=metrics.kube.observe)
    to = link.Registry(registry, mailbox, settings.lease_seconds)
    try:
        loaded = load(settings, python, os.environ)
    except UserError as error:
        to.fail("; ".join(problem.what for problem in error.problems))
        raise
    server = GymServer(
        settings, loaded, mailbox=mailbox, to=to, metrics=metrics, python=python,
        job_id=shared.job_id,
    )  # fmt: skip
    with HealthServer(settings.health_host, settings.health_port, ready=server.ready):
        mailbox.read = True
        with to:
            return server.conclude(server.run)


def _check(mailbox: Mailbox, flags: dict[str, Any]) -> int:
    """Judge the config and nothing else."""
    settings = GymServerSettings.load({k: flags.get(k) for k in GymServerSettings.model_fields})
    logs.configure("gym-server", level=settings.log_level)
    python = settings.gym_python or sys.executable
    loaded = load(settings, python, os.environ)
    server = GymServer(
        settings, loaded, mailbox=mailbox, to=link.Nobody(),
        metrics=Metrics("gym_server", PHASES), python=python, job_id="check",
    )  # fmt: skip
    mailbox.read = True
    return server.conclude(lambda: _only_check(server))


def _only_check(server: GymServer) -> None:
    server.start_check()
    server.await_check()
    print("the config is right")
