"""Jobs of slurm-launcher in a lab: a training that asks a judge, and compiled fake replicas."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.slurm_lab.lab import Lab
from support.slurm_lab.namespaces import until
from tandem.paths import BIN

SOON = 60.0
#: Stands for a replica's Python: a fake vLLM on the port that is asked for. It notes a TERM.
FAKE_PYTHON = """#!/bin/bash
notes=$1; shift
while (($#)); do [[ $1 == --port ]] && port=$2; shift; done
trap 'echo "TERM $SLURM_STEP_NODELIST" >> "$notes"; kill "$fake"' TERM
"$FAKE" --host 0.0.0.0 --ports "$port" --orphan & fake=$!
wait "$fake"; wait "$fake"
"""
#: Asks the judge until a file is there, without trying anything twice; ends with 7 when nothing
#: failed, with 8 when something did, and with 9 when it is told that time is short.
TRAINING = """
import json, os, pathlib, signal, sys, time, urllib.request
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
url, notes = sys.argv[1], pathlib.Path(sys.argv[2])
token = pathlib.Path(os.environ["TANDEM_POOLS_TOKEN_FILE"]).read_text().strip()
asked = failed = 0
while not (notes / "end").exists():
    body = json.dumps({"model": "m", "prompt": str(asked), "max_tokens": 2}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {
        "Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except Exception as error:
        failed += 1
        print("failed", time.time(), repr(error), flush=True)
    asked += 1
    (notes / "asked.new").write_text(str(asked))
    (notes / "asked.new").rename(notes / "asked")
    time.sleep(0.02)
print("asked", asked, "failed", failed, flush=True)
sys.exit(8 if failed else 7)
"""


@dataclass
class Launched:
    """A job of the launcher's."""

    lab: Lab
    id: int
    folder: Path
    config: Path

    def command(self, *words: str, check: bool = True) -> str:
        """Run a command of slurm-launcher's where jobs are submitted."""
        ran = self.lab.exec(
            [sys.executable, "-m", "slurm_launcher", *words], check=check, env=_variables()
        )
        return str(ran.stdout + ran.stderr)

    def status(self) -> dict[str, Any]:
        """Return what `status` says of it."""
        said: dict[str, Any] = json.loads(
            self.command("status", str(self.config), "--job", str(self.id), "--output", "json")
        )
        return said

    def state(self) -> dict[str, Any]:
        """Return what the launcher has written last."""
        path = self.logs / "state.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of a name."""
        return [each for each in self.state().get("events", []) if each["event"] == name]

    def wait_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event; return the last of that name."""
        until(lambda: len(self.events(name)) >= count, self._shown(f"{count} x {name}"), SOON)
        return self.events(name)[-1]

    def wait_asked(self, more: int = 20) -> None:
        """Wait until the training has asked so many times more."""
        path = self.folder / "asked"
        before = int(path.read_text()) if path.exists() else 0
        until(
            lambda: path.exists() and int(path.read_text()) >= before + more,
            self._shown("the training asks"), SOON,
        )  # fmt: skip

    def wait_rotation(self, count: int) -> None:
        """Wait until so many replicas are in rotation."""
        until(lambda: self.in_rotation() == count, self._shown(f"{count} in rotation"), SOON)

    def in_rotation(self) -> int:
        """Return how many replicas are asked."""
        ran = self.lab.exec(
            [sys.executable, "-m", "vllm_pool", "status", "--output", "json", "--url",
             self.state()["pools"]["JUDGE"]["url"]], check=False, env=_variables(),
        )  # fmt: skip
        try:
            return int(json.loads(ran.stdout)["healthy_backends"])
        except ValueError:
            return -1

    def _shown(self, what: str) -> Any:
        return lambda: f"{what}: {self.state().get('events')}\n{self.output()[-3000:]}"

    def output(self) -> str:
        """Return what the batch script has printed."""
        return "\n".join(path.read_text() for path in (self.folder / "logs").glob("*.out"))

    @property
    def logs(self) -> Path:
        """Its folder, of its first start."""
        return self.folder / "logs" / f"{self.id}-logs"

    def reason(self) -> dict[str, Any]:
        """Return how it has ended."""
        path = self.logs / "reason.json"
        until(path.exists, self._shown("it has ended"), SOON)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def end(self) -> None:
        """Let the training end by itself."""
        (self.folder / "end").touch()

    def terms(self) -> list[str]:
        """Return the nodes whose server has seen a TERM."""
        path = self.folder / "terms"
        return (
            sorted(line.split()[1] for line in path.read_text().splitlines())
            if path.exists()
            else []
        )

    def nodes(self, replica: str) -> list[str]:
        """Return where a replica is."""
        found: list[str] = self.state()["pools"]["JUDGE"]["replicas"][replica]["nodes"]
        return found

    def kill(self, node: str, words: str) -> None:
        """Kill the process on a node whose command line has some words in it."""
        number = int(node.removeprefix("n"))
        found = [each for each in self.lab.processes_of(number) if words in each.command]
        assert found, f"no {words!r} on {node}"
        for each in found:
            os.kill(each.pid, 9)


def _variables() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(sys.path), "FAKE": str(BIN / "fake-vllm")}


def launch(lab: Lab, folder: Path, **changes: Any) -> Launched:
    """Submit a job whose judge has two replicas and a spare.

    Args:
        lab: Where.
        folder: In the lab's shared folder; for its files.
        changes: Fields of the pool, or of the file's top where they are none of the pool's.
    """
    folder.mkdir()
    python, train = folder / "fake-python", folder / "train.py"
    python.write_text(FAKE_PYTHON.replace("notes=$1; shift", f"notes={folder / 'terms'}"))
    python.chmod(0o755)
    train.write_text(TRAINING)
    pool = {
        "name": "JUDGE", "model": "m", "python": str(python), "replicas": 2, "spares": 1,
        "min_ready": 1, "tensor_parallel_size": 4, "port": 9213, "placeholder": "__JUDGE_URL__",
        "pass_env": ["FAKE"],
    }  # fmt: skip
    top = {key: value for key, value in changes.items() if key in ("lease_seconds", "no_kill")}
    training = {key: value for key, value in changes.items() if key in ("start", "command")}
    pool |= {key: value for key, value in changes.items() if key not in top and key not in training}
    said = {
        "version": 1, "name": "try", "shared_root": str(lab.shared),
        "log_dir": str(folder / "logs"), "slurm": {"requeue": False},
        "training": {
            "nodes": 2, "gpus_per_node": 4, "pass_env": ["FAKE"],
            "command": [sys.executable, str(train), "__JUDGE_URL__", str(folder)], **training,
        },
        "pools": [pool], **top,
    }  # fmt: skip
    config = folder / "pools.yaml"
    config.write_text(yaml.safe_dump(said))
    ran = lab.exec(
        [sys.executable, "-m", "slurm_launcher", "submit", str(config), "--output", "json"],
        env=_variables(),
    )
    return Launched(lab, int(json.loads(ran.stdout)["job"]), folder, config)
