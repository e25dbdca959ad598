"""Rollouts sampled through vLLM's HTTP API and scored here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.rollouts import Reward, Rollout


def parse_completions(
    answer: Mapping[str, Any], prompts: Sequence[Sequence[int]], samples: int, reward: Reward
) -> list[Rollout]:
    """Return the rollouts of vLLM's answer to `/v1/completions`.

    Choices come numbered: the samples of the first prompt, those of the second, and so on.

    Raises:
        TrainerError: There are not as many choices as were asked for, or one lacks token ids
            or log-probabilities.
    """
    choices = answer.get("choices") or []
    if len(choices) != len(prompts) * samples:
        raise TrainerError(
            f"vLLM gave {len(choices)} completions, {len(prompts) * samples} were asked for"
        )
    rollouts = []
    for choice in choices:
        group = int(choice["index"]) // samples
        tokens = tuple(choice.get("token_ids") or ())
        logprobs = tuple((choice.get("logprobs") or {}).get("token_logprobs") or ())
        if not tokens or len(tokens) != len(logprobs):
            raise TrainerError(
                f"vLLM gave {len(tokens)} token ids and {len(logprobs)} log-probabilities "
                f"in choice {choice['index']}"
            )
        rollouts.append(
            Rollout(group, tuple(prompts[group]), tokens, logprobs, reward.score(tokens))
        )
    return rollouts


class VllmSource:
    """Asks a vLLM server for several answers to each of the same prompts, every step."""

    def __init__(
        self,
        api: JsonApi,
        *,
        model: str,
        prompts: Sequence[Sequence[int]],
        reward: Reward,
        samples: int,
        tokens: int,
        seed: int,
    ) -> None:
        """Take the server, the served model's name, and how much to sample of what."""
        self._api = api
        self._model = model
        self._prompts = [list(prompt) for prompt in prompts]
        self._reward = reward
        self._samples = samples
        self._tokens = tokens
        self._seed = seed

    def collect(self, step: int) -> list[Rollout]:
        """Sample one batch; the same seed and step give the same answers to the same weights."""
        answer = self._api.post(
            "/v1/completions",
            {
                "model": self._model,
                "prompt": self._prompts,
                "n": self._samples,
                "max_tokens": self._tokens,
                # Every answer is as long as the next: the reward is about tokens, not length.
                "ignore_eos": True,
                # The policy's own distribution, so that the log-probabilities are its too.
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": -1,
                "logprobs": 0,
                "return_token_ids": True,
                "seed": self._seed * 100_003 + step,
            },
        )
        return parse_completions(answer, self._prompts, self._samples, self._reward)
