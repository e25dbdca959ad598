"""Training metrics of a run: a line of JSON a step, printed while the run works."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tandem.console import console
from tandem.paths import BIN
from tandem.run.kube import kubeconfig
from tandem_trainer.metrics import LINE_PREFIX

#: Where the training command writes (kustomize/components/smoke), and its file of steps.
RESULTS = "/artifacts/run"
HEAD_FILE = f"{RESULTS}/metrics.jsonl"
#: Steps at each end whose mean tells whether the reward rose.
WINDOW = 5


def metrics_of(line: str) -> dict[str, Any] | None:
    """Return one step's metrics from a line of metrics.jsonl, None when it is no such line."""
    try:
        loaded = json.loads(line)
    except ValueError:
        return None
    if not isinstance(loaded, dict):
        return None
    numbers = (loaded.get("step"), loaded.get("mean_reward"))
    # Other trainers print lines of JSON of their own.
    return loaded if all(isinstance(each, int | float) for each in numbers) else None


def steps_in(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the steps that a training command has told of in its output."""
    told = (line.partition(LINE_PREFIX)[2] for line in lines)
    return [step for record in told if record and (step := metrics_of(record))]


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of a metrics.jsonl; none when there is no such file."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [step for line in lines if (step := metrics_of(line))]


def first_and_last_reward(steps: Iterable[dict[str, Any]]) -> tuple[float, float] | None:
    """Return the mean reward of the first and of the last five steps, None without steps."""
    rewards = [float(step["mean_reward"]) for step in steps]
    if not rewards:
        return None
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    return sum(first) / len(first), sum(last) / len(last)


class StepTeller:
    """Tells a person each training step, once."""

    def __init__(self) -> None:
        """Nothing is told yet."""
        self._last_step = -1

    @property
    def any(self) -> bool:
        """Whether there was a step."""
        return self._last_step >= 0

    def take(self, line: str) -> None:
        """Take a line of a training command's output."""
        self.tell(metrics_of(line.partition(LINE_PREFIX)[2]))

    def tell(self, step: dict[str, Any] | None) -> None:
        """Tell of a step unless it was told of."""
        if step and int(step["step"]) > self._last_step:
            self._last_step = int(step["step"])
            console.note(
                f"step {step['step']:>3}  mean reward {step['mean_reward']:.3f}  "
                f"weight version {step.get('weight_version')}"
            )


class MetricsTail(threading.Thread):
    """Prints each training step while the run works; ends by itself with the head pod."""

    def __init__(self, namespace: str, pod: str, path: str) -> None:
        """Take the head pod and the file on it that grows by a line a step."""
        super().__init__(daemon=True, name="metrics")
        self._tail = subprocess.Popen(
            [str(BIN / "kubectl"), f"--kubeconfig={kubeconfig()}", "exec", "-n", namespace,
             pod, "-c", "ray-head", "--", "tail", "-n", "+1", "-F", path],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._teller = StepTeller()

    def run(self) -> None:
        """Print each step as it comes."""
        if self._tail.stdout is None:
            return
        with self._tail.stdout as lines:
            for line in lines:
                self._teller.tell(metrics_of(line))

    @property
    def ended(self) -> bool:
        """Whether the connection to the pod is gone."""
        return self._tail.poll() is not None

    def stop(self) -> None:
        """End the connection."""
        self._tail.terminate()
        try:
            self._tail.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._tail.kill()
            self._tail.wait(timeout=5)
        self.join(timeout=5)
