"""The program as a process: starts, tells, ends when told to, and finishes what it began."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fault_proxy import Answer, FaultProxy
from support.stage import DRIVER, GYM, RL, Stage
from tandem.paths import ROOT
from tandem_common.clock import Deadline

pytestmark = pytest.mark.api_server

SOURCES = os.pathsep.join(
    str(ROOT / "sidecars" / name / "src")
    for name in ("common", "endpoint-registry", "peer-watcher")
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Process:
    """A running peer-watcher."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, **settings: str) -> None:
        self.port = free_port()
        self.log = log
        named = {f"PEER_WATCHER_{name.upper()}": value for name, value in settings.items()}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "peer_watcher"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={
                    "PATH": os.environ["PATH"], "PYTHONPATH": SOURCES,
                    "KUBECONFIG": str(kubeconfig),
                    "PEER_WATCHER_JOB_ID": "run-7", "PEER_WATCHER_NAMESPACE": namespace,
                    "PEER_WATCHER_SELF": str(RL), "PEER_WATCHER_PEER": str(GYM),
                    "PEER_WATCHER_DRIVER": str(DRIVER),
                    "PEER_WATCHER_HEALTH_HOST": "127.0.0.1",
                    "PEER_WATCHER_HEALTH_PORT": str(self.port), **named,
                },
            )  # fmt: skip

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text; status 0 when nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until(self, path: str, status: int = 200, seconds: float = 30.0) -> str:
        deadline = Deadline(seconds)
        while True:
            found, text = self.get(path)
            if found == status:
                return text
            assert not deadline.passed, f"{path}: {found} {text}; {self.log.read_text()}"
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def until_logged(self, event: str, word: str = "", seconds: float = 30.0) -> None:
        deadline = Deadline(seconds)
        while not any(e["event"] == event and word in json.dumps(e) for e in self.events()):
            assert not deadline.passed, self.log.read_text()
            time.sleep(0.05)

    def events(self) -> list[dict[str, object]]:
        """Return the log: one JSON object a line, and nothing else."""
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 20.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@pytest.fixture
def start(
    proxy: FaultProxy, namespace: str, stage: Stage, tmp_path: Path
) -> Iterator[Callable[..., Process]]:
    """Start watchers as processes, through the proxy."""
    del stage  # the kinds are there
    kubeconfig = proxy.kubeconfig(tmp_path, namespace)
    made: list[Process] = []

    def make(**settings: str) -> Process:
        log = tmp_path / f"watcher-{len(made)}.log"
        made.append(Process(kubeconfig, namespace, log, **settings))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.wait()


def test_it_is_live_at_once_and_ready_when_it_has_seen_everything(
    stage: Stage, start: Callable[..., Process], proxy: FaultProxy
) -> None:
    with proxy.outage():
        watcher = start()
        watcher.until("/healthz")
        assert "not everything has been read" in watcher.until("/readyz", 503)
    watcher.until("/readyz")
    stage.run_up()
    watcher.until_logged("wait", '"RayCluster/gym": "up"')
    metrics = watcher.until("/metrics")
    health = r'peer_watcher_health\{health="healthy",object="RayCluster/gym"\} 1.0'
    assert re.search(health, metrics)
    assert "peer_watcher_staleness_seconds 0.0" in metrics
    assert 'peer_watcher_kube_requests_total{status="200",verb="watch"}' in metrics


def test_told_to_stop_it_ends_without_acting(
    stage: Stage, start: Callable[..., Process], proxy: FaultProxy
) -> None:
    stage.run_up()
    watcher = start()
    watcher.until_logged("wait", '"RayCluster/gym": "up"')
    assert watcher.end() == 0
    assert proxy.count("delete") == 0
    assert stage.events() == []
    assert stage.get(RL)
    assert stage.get(GYM)
    assert watcher.events()[-1]["event"] == "stopped"


def test_a_death_ends_the_run_and_then_the_program(
    stage: Stage, start: Callable[..., Process]
) -> None:
    heads = stage.run_up()
    watcher = start()
    watcher.until_logged("wait", '"RayCluster/gym": "up"')
    stage.pod(heads[GYM], phase="Failed", reason="Evicted")
    assert watcher.process.wait(60) == 0
    assert stage.gone(RL, GYM, DRIVER)
    names = [event["event"] for event in watcher.events()]
    assert names.index("teardown_started") < names.index("deleted") < names.index("teardown_done")


def test_killed_amid_a_teardown_it_finishes_when_it_is_back(
    stage: Stage, start: Callable[..., Process]
) -> None:
    stage.run_up()
    stage.hold(GYM)
    first = start()
    first.until_logged("wait", '"RayCluster/gym": "up"')
    stage.write_error("out of memory")
    first.until_logged("deleted", "RayCluster/gym")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = start()
    second.until_logged("teardown_started")
    stage.drop_finalizers(GYM)
    assert second.process.wait(60) == 0
    assert stage.gone(RL, GYM, DRIVER)
    assert len(stage.events()) == 4


def test_what_does_not_go_in_time_is_an_error_and_not_forgotten(
    stage: Stage, start: Callable[..., Process]
) -> None:
    stage.run_up()
    stage.hold(GYM)
    watcher = start(teardown_seconds="2")
    watcher.until_logged("wait", '"RayCluster/gym": "up"')
    stage.write_error("out of memory")
    assert watcher.process.wait(60) == 1
    [said] = [event for event in watcher.events() if event["event"] == "teardown_unfinished"]
    assert said["left"] == ["RayCluster/gym"]
    stage.drop_finalizers(GYM)


def test_an_expired_token_kills_nothing_and_a_new_one_goes_on(
    stage: Stage, start: Callable[..., Process], proxy: FaultProxy
) -> None:
    heads = stage.run_up()
    watcher = start()
    watcher.until_logged("wait", '"RayCluster/gym": "up"')
    # An expired token: 401 for everything, and open watches end.
    with proxy.outage(Answer(401)):
        watcher.until_logged("wait", "Unauthorized")
        stage.pod(heads[GYM], phase="Failed")
        time.sleep(2)
        assert proxy.count("delete") == 0
        assert watcher.process.poll() is None
    assert watcher.process.wait(90) == 0
    assert stage.gone(RL, GYM, DRIVER)
