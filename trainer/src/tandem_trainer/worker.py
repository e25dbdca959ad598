"""The colocated worker: learner and vLLM server share a GPU, a pod, a folder of weights."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem_trainer.errors import PreconditionError, TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.loop import TrainingStep
from tandem_trainer.metrics import StepMetrics
from tandem_trainer.refit import RefitClient
from tandem_trainer.rewards import VOWEL_WORD, TokenClassReward, tokens_matching
from tandem_trainer.vllm_server import ServerSettings, VllmServer
from tandem_trainer.vllm_source import VllmSource

#: What the policy answers to. Eight different beginnings, one group of answers each.
PROMPTS = (
    "hello world,",
    "what is the weather in Paris today?",
    "The quick brown fox",
    "user assistant",
    "this is a tiny",
    "system tool 0123",
    "jumps over the lazy",
    '{"name": "get_weather"',
)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a colocated worker needs to know."""

    model: Path
    seed: int
    samples: int = 8
    tokens: int = 16
    rate: float = 5e-3
    port: int = 8000
    ready_seconds: float = 300.0
    #: Memory-backed where there is one: weights never touch a disk.
    scratch: Path = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


class ColocatedWorker:
    """Owns the GPU: starts vLLM, samples through its HTTP API, learns, refits."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Take the settings; nothing is started yet."""
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-", dir=settings.scratch)
        folder = Path(self._folder.name)
        self._server = VllmServer(
            ServerSettings(
                model=settings.model,
                log=folder / "vllm.log",
                port=settings.port,
                max_sequences=len(PROMPTS) * settings.samples,
                ready_seconds=settings.ready_seconds,
            )
        )
        self._step: TrainingStep | None = None

    def start(self) -> float:
        """Start vLLM, load the learner meanwhile; return the seconds until vLLM answered.

        Raises:
            PreconditionError: The model is not there, or vLLM's port is taken.
            TrainerError: vLLM did not come up.
        """
        settings = self._settings
        if not (settings.model / "config.json").is_file():
            raise PreconditionError(f"no model in {settings.model} of the GPU node")
        # Imports torch here and not above: this module is read by the driver too, on a node
        # that has no use for it.
        from tandem_trainer.learner import TorchLearner  # noqa: PLC0415

        self._server.start()
        learner = TorchLearner(settings.model, seed=settings.seed, rate=settings.rate)
        seconds = self._server.wait_ready()
        api = JsonApi(self._server.url, timeout=120.0)
        source = VllmSource(
            api,
            model=self._server.settings.name,
            prompts=encode(settings.model, PROMPTS),
            reward=TokenClassReward(tokens_matching(vocabulary(settings.model), VOWEL_WORD)),
            samples=settings.samples,
            tokens=settings.tokens,
            seed=settings.seed,
        )
        weights = Path(self._folder.name) / "weights"
        self._step = TrainingStep(source, learner, RefitClient(api), weights)
        return seconds

    def step(self, number: int) -> StepMetrics:
        """Run one training step.

        Raises:
            TrainerError: A part failed; when vLLM has ended, that is what the message says.
        """
        if self._step is None:
            raise TrainerError("the worker was not started")
        try:
            return self._step.run(number)
        except TrainerError:
            # A connection that broke is the symptom; the server's end is the cause.
            self._server.settle()
            self._server.check_alive()
            raise

    def log(self) -> str:
        """Return what vLLM has said so far."""
        return self._server.log()

    def stop(self) -> None:
        """End vLLM and remove the weights."""
        self._server.stop()
        self._folder.cleanup()

    def pid(self) -> int:
        """Return the process id; an answer proves that the worker is placed and running."""
        return os.getpid()


def vocabulary(model: Path) -> dict[str, int]:
    """Return the tokens of a model's tokenizer and their ids."""
    loaded = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    return {str(token): int(number) for token, number in loaded["model"]["vocab"].items()}


def encode(model: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of prompts."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - exists in the image only

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [list(tokenizer.encode(prompt).ids) for prompt in prompts]
