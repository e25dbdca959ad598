"""The workers: learner and vLLM server share a GPU, a pod, a folder of weights."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tandem_trainer.errors import PreconditionError, TrainerError
from tandem_trainer.gym_source import GymSource
from tandem_trainer.http_api import JsonApi
from tandem_trainer.learner import Learner
from tandem_trainer.loop import TrainingStep
from tandem_trainer.metrics import StepMetrics
from tandem_trainer.refit import RefitClient
from tandem_trainer.rewards import VOWEL_WORD, TokenClassReward, tokens_matching
from tandem_trainer.rollouts import RolloutSource
from tandem_trainer.vllm_server import ServerSettings, VllmServer, command
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
    """What a worker needs to know."""

    model: Path
    seed: int
    samples: int = 8
    tokens: int = 16
    rate: float = 5e-3
    port: int = 8000
    ready_seconds: float = 300.0
    #: Under which name vLLM serves the model; "" for one that nobody else has.
    served_name: str = ""
    #: Whether other pods may reach vLLM, as far as `gate` lets them.
    public: bool = False
    #: How many of the prompts are used.
    prompts: int = len(PROMPTS)
    #: Memory-backed where there is one: weights never touch a disk.
    scratch: Path = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


class PolicyWorker:
    """Owns the GPU: starts vLLM, learns, refits; a subclass says where rollouts come from."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Take the settings; nothing is started yet."""
        self._settings = settings
        self._prompts = PROMPTS[: settings.prompts]
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-", dir=settings.scratch)
        folder = Path(self._folder.name)
        server = ServerSettings(
            model=settings.model,
            log=folder / "vllm.log",
            host="0.0.0.0" if settings.public else "127.0.0.1",  # noqa: S104 - see gate
            port=settings.port,
            max_sequences=len(self._prompts) * settings.samples,
            ready_seconds=settings.ready_seconds,
        )
        if settings.served_name:
            server = replace(server, name=settings.served_name)
        self._server = VllmServer(server)
        # Ours is the way that every route is open to.
        self._server.url = f"http://127.0.0.1:{settings.port}"
        self._learner: Learner | None = None
        self._step: TrainingStep | None = None

    def command(self) -> list[str]:
        """Return the command line of the server, with the gate when others may reach it."""
        gate = ["--middleware", "tandem_trainer.gate.PublicRoutes"] if self._settings.public else []
        return [*command(self._server.settings), *gate]

    def launch(self) -> float:
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

        self._server.start(self.command())
        self._learner = TorchLearner(settings.model, seed=settings.seed, rate=settings.rate)
        return self._server.wait_ready()

    def train_on(self, source: RolloutSource) -> None:
        """Make the training step, now that there is a source of rollouts.

        Raises:
            TrainerError: The learner was not loaded.
        """
        if self._learner is None:
            raise TrainerError("the worker was not started")
        weights = Path(self._folder.name) / "weights"
        self._step = TrainingStep(source, self._learner, RefitClient(self._api()), weights)

    def _api(self) -> JsonApi:
        return JsonApi(self._server.url, timeout=120.0)

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

    def check(self) -> None:
        """Return when vLLM lives.

        Raises:
            TrainerError: It has ended; the message says how.
        """
        self._server.check_alive()

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


class ColocatedWorker(PolicyWorker):
    """Samples through vLLM's HTTP API and scores the answers itself."""

    def start(self) -> float:
        """Start everything; return the seconds until vLLM answered.

        Raises:
            PreconditionError: The model is not there, or vLLM's port is taken.
            TrainerError: vLLM did not come up.
        """
        settings = self._settings
        seconds = self.launch()
        self.train_on(
            VllmSource(
                self._api(),
                model=self._server.settings.name,
                prompts=encode(settings.model, self._prompts),
                reward=TokenClassReward(tokens_matching(vocabulary(settings.model), VOWEL_WORD)),
                samples=settings.samples,
                tokens=settings.tokens,
                seed=settings.seed,
            )
        )
        return seconds


class GymWorker(PolicyWorker):
    """Has NeMo Gym sample and score; Gym reaches our vLLM over the network."""

    def start(self) -> float:
        """Start vLLM and the learner; return the seconds until vLLM answered.

        Raises:
            PreconditionError: The model is not there, or vLLM's port is taken.
            TrainerError: vLLM did not come up.
        """
        return self.launch()

    def url(self) -> str:
        """Return where other pods reach our vLLM."""
        import ray  # noqa: PLC0415 - exists in the image only

        return f"http://{ray.util.get_node_ip_address()}:{self._settings.port}"

    def connect(self, head: str, agent: str, seconds: float) -> None:
        """Take rollouts from the Gym whose head server has this URL.

        Raises:
            TrainerError: Gym does not answer, or has no such agent.
        """
        settings = self._settings
        self.train_on(
            GymSource(
                JsonApi(head, timeout=30.0),
                agent=agent,
                prompts=self._prompts,
                samples=settings.samples,
                tokens=settings.tokens,
                seed=settings.seed,
                seconds=seconds,
                check=self.check,
            )
        )


def vocabulary(model: Path) -> dict[str, int]:
    """Return the tokens of a model's tokenizer and their ids."""
    loaded = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    return {str(token): int(number) for token, number in loaded["model"]["vocab"].items()}


def encode(model: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of prompts."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - exists in the image only

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [list(tokenizer.encode(prompt).ids) for prompt in prompts]
