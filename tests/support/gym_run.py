"""A run of the tests' own: Gym server and driver as real processes on a real API server."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from endpoint_registry.registry import EndpointRegistry
from support.fake_vllm import FakeVllm
from tandem.process import tool_env
from tandem_common.kube import Client, load_config

SECONDS = 60.0
_FAKE_GYM = Path(__file__).parent / "fake_gym"
#: A config that starts two servers; more keys may be put behind it.
CONFIG = """\
vowels: {resources_servers: {vowels: {entrypoint: app.py}}}
policy_model: {responses_api_models: {vllm_model: {entrypoint: app.py}}}
"""


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait until something is true and return it; fails after a minute."""
    deadline = time.monotonic() + SECONDS
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not come to pass"
        time.sleep(0.02)
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


class Program:
    """One of the two programs, running."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def code(self) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end:\n{self.output}")

    def await_output(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something."""

        def said() -> re.Match[str] | None:
            found = re.search(pattern, self.output)
            assert found or self.process.poll() is None, f"it ended:\n{self.output}"
            return found

        found: re.Match[str] = until(said, f"{pattern!r} in its output")
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=15)


class Run:
    """A run: its id, its programs, its vLLM, and a look into its registry."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path) -> None:
        self.folder = folder
        self.namespace = namespace
        self.id = f"run-{uuid.uuid4().hex[:6]}"
        self.uid = uuid.uuid4().hex
        self.vllm = FakeVllm()
        self.head_port = free_port()
        self.health_port = free_port()
        self._programs: list[Program] = []
        self._kubeconfig = kubeconfig
        self._client = Client(load_config({"KUBECONFIG": str(kubeconfig)}))

    @property
    def gym_url(self) -> str:
        return f"http://127.0.0.1:{self.head_port}"

    @property
    def config_map(self) -> str:
        return f"nemo-rl-endpoints-{self.id}"

    def env(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_FAKE_GYM), *filter(None, sys.path)]),
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(self._kubeconfig),
            "ENDPOINT_REGISTRY_JOB_ID": self.id,
            "ENDPOINT_REGISTRY_NAMESPACE": self.namespace,
            "ENDPOINT_REGISTRY_RUN_UID": self.uid,
            "ENDPOINT_REGISTRY_RUN_STARTED": "2026-01-02T00:00:00Z",
            **more,
        }

    def gym_server(self, config: str = CONFIG, *flags: str, **env: str) -> Program:
        file = self.folder / "gym.yaml"
        file.write_text(config, encoding="utf-8")
        settings = {
            "GYM_SERVER_HOST": "127.0.0.1",
            "GYM_SERVER_MODEL": "policy",
            "GYM_SERVER_CONFIG": str(file),
            "GYM_SERVER_HEAD_PORT": str(self.head_port),
            "GYM_SERVER_HEAD_LISTEN": "127.0.0.1",
            "GYM_SERVER_PORT_RANGE_LOW": "1000",
            "GYM_SERVER_PORT_RANGE_HIGH": "1001",
            "GYM_SERVER_WORK_DIR": str(self.folder / "work"),
            "GYM_SERVER_HEALTH_HOST": "127.0.0.1",
            "GYM_SERVER_HEALTH_PORT": str(self.health_port),
            "GYM_SERVER_DRAIN_SECONDS": "5",
            "GYM_SERVER_PROGRESS_SECONDS": "0.2",
        }
        argv = [sys.executable, "-m", "gym_server", *flags]
        return self._start(argv, self.env(**{**settings, **env}), "gym-server")

    def driver(self, *command: str, **env: str) -> Program:
        settings = {
            "DRIVER_HEALTH_HOST": "127.0.0.1",
            "DRIVER_HEALTH_PORT": "0",
            "DRIVER_GRACE_SECONDS": "5",
            "DRIVER_PROGRESS_SECONDS": "0.2",
        }
        argv = [sys.executable, "-m", "gym_server", "driver", "--", *command]
        return self._start(argv, self.env(**{**settings, **env}), "driver")

    def train(self, script: str, **env: str) -> Program:
        """Start the driver with a training command in bash, which gets the overrides as $@."""
        return self.driver("bash", "-c", script, "train", **env)

    def _start(self, argv: Sequence[str], env: dict[str, str], name: str) -> Program:
        program = Program(argv, env, self.folder / f"{name}-{len(self._programs)}.log")
        self._programs.append(program)
        return program

    def telling(self, *urls: str) -> str:
        """Return what a training command does to tell its vLLM's addresses."""
        listed = shlex.quote(json.dumps(list(urls) or [self.vllm.url]))
        file = '"$TANDEM_VLLM_URLS_FILE"'
        return f"echo {listed} > {file}.new && mv {file}.new {file};"

    def registry(self, writer: str = "test", uid: str = "") -> EndpointRegistry:
        """Return the registry of this run, or of a former one."""
        return EndpointRegistry(
            self.id, namespace=self.namespace, run_uid=uid or self.uid, writer=writer,
            run_started=f"2026-01-0{1 if uid else 2}T00:00:00Z", client=self._client,
        )  # fmt: skip

    def values(self) -> dict[str, str]:
        """Return the values that readers may use now."""
        return {
            key: entry.value
            for key, entry in self.registry().read().entries.items()
            if entry.value is not None
        }

    def error(self) -> str:
        return self.values().get("error", "")

    def await_value(self, key: str) -> str:
        value: str = until(lambda: self.values().get(key), f"{key} in the registry")
        return value

    def serving(self, config: str = CONFIG, **env: str) -> Program:
        """Return a Gym server that serves."""
        program = self.gym_server(config, **env)
        self.await_value("gym_server")
        self.registry("rl").publish("vllm_base_urls", json.dumps([f"{self.vllm.url}/v1"]))
        self.await_value("gym_head_server")
        return program

    def servers(self) -> dict[str, int]:
        """Return the process ids of NeMo Gym's servers."""
        url = f"http://127.0.0.1:{self.head_port}/server_instances"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return {one["name"]: one["pid"] for one in json.load(answer)}

    def get(self, path: str) -> tuple[int, str]:
        """Ask the Gym server's own health server."""
        try:
            url = f"http://127.0.0.1:{self.health_port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def powerless(self) -> str:
        """Return a kubeconfig of an account of the namespace that may do nothing."""
        kubectl = ["kubectl", "-n", self.namespace]
        env = {**tool_env(), "KUBECONFIG": str(self._kubeconfig)}
        subprocess.run(
            [*kubectl, "create", "serviceaccount", "powerless"], check=True, timeout=30, env=env,
            capture_output=True,
        )  # fmt: skip
        token = subprocess.run(
            [*kubectl, "create", "token", "powerless"], check=True, timeout=30, env=env,
            capture_output=True, text=True,
        )  # fmt: skip
        config = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))
        for user in config["users"]:
            user["user"] = {"token": token.stdout.strip()}
        file = self.folder / "powerless.kubeconfig"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return str(file)

    def patch(self, data: dict[str, str]) -> None:
        """Write as a client does that knows nothing of writers and leases."""
        done = subprocess.run(
            ["kubectl", "patch", "configmap", self.config_map, "-n", self.namespace,
             "--type=merge", "-p", json.dumps({"data": data})],
            check=False, capture_output=True, text=True, timeout=30,
            env={**tool_env(), "KUBECONFIG": str(self._kubeconfig)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        for program in self._programs:
            program.end()
        self.vllm.close()
        self._client.close()
