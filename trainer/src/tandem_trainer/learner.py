"""The policy: a transformers model that torch updates from rollouts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tandem_trainer.errors import TrainerError
from tandem_trainer.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one update has done."""

    #: Of the last pass: below 0 when answers better than their siblings became likelier.
    loss: float
    #: Mean distance of our log-probabilities from those that came with the rollouts.
    logprob_gap: float


class Learner(Protocol):
    """Learns from rollouts and writes its weights."""

    def update(self, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> UpdateReport:
        """Take one step of training."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights in a form that vLLM loads."""
        ...


class TorchLearner:
    """Clipped policy gradient (GRPO without a reference model) with Adam, on CPU."""

    def __init__(
        self, model: Path, *, seed: int, rate: float, clip: float = 0.2, passes: int = 2
    ) -> None:
        """Load the model.

        Args:
            model: Folder of the model.
            seed: Seed of torch's random numbers.
            rate: Adam's learning rate.
            clip: How far a token's probability may move in one step.
            passes: Passes over one batch.
        """
        import torch  # noqa: PLC0415 - the numeric libraries exist in the image only
        from transformers import AutoModelForCausalLM  # noqa: PLC0415

        # Two cores in all, and vLLM wants one.
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=rate)
        self._clip = clip
        self._passes = passes

    def _logprobs(self, rollouts: Sequence[Rollout]) -> tuple[Any, Any]:
        """Return the log-probability of every answer token and a mask of the real ones."""
        torch = self._torch
        longest = max(len(r.prompt) + len(r.tokens) for r in rollouts)
        ids = torch.zeros(len(rollouts), longest, dtype=torch.long)
        mask = torch.zeros(len(rollouts), longest - 1)
        for row, r in enumerate(rollouts):
            end = len(r.prompt) + len(r.tokens)
            # Padding comes last: a causal model never looks at it.
            ids[row, :end] = torch.tensor(r.prompt + r.tokens)
            mask[row, len(r.prompt) - 1 : end - 1] = 1.0
        logits = self._model(input_ids=ids).logits[:, :-1]
        chosen = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:].unsqueeze(-1))
        return chosen.squeeze(-1), mask

    def update(self, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> UpdateReport:
        """Take one step of training.

        Raises:
            TrainerError: The loss is not a number.
        """
        torch = self._torch
        advantage = torch.tensor(list(advantages)).unsqueeze(-1)
        sampled = None
        gap, loss = 0.0, 0.0
        for _ in range(self._passes):
            current, mask = self._logprobs(rollouts)
            if sampled is None:
                sampled = torch.zeros_like(current)
                for row, r in enumerate(rollouts):
                    start = len(r.prompt) - 1
                    sampled[row, start : start + len(r.tokens)] = torch.tensor(r.logprobs)
                gap = float(((current.detach() - sampled).abs() * mask).sum() / mask.sum())
            ratio = torch.exp((current - sampled) * mask)
            clipped = ratio.clamp(1 - self._clip, 1 + self._clip)
            objective = torch.minimum(ratio * advantage, clipped * advantage)
            value = -(objective * mask).sum() / mask.sum()
            if not torch.isfinite(value):
                raise TrainerError(f"the loss is {value.item()}: not a number")
            self._optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            loss = float(value.detach())
        return UpdateReport(loss=loss, logprob_gap=gap)

    def save(self, folder: Path) -> None:
        """Write the weights as safetensors; the folder appears whole or not at all."""
        from safetensors.torch import save_file  # noqa: PLC0415

        draft = folder.with_name(folder.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in self._model.state_dict().items()},
            draft / "model.safetensors",
            metadata={"format": "pt"},
        )
        draft.rename(folder)
