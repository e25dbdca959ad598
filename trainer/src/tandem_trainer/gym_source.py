"""Rollouts sampled and scored by NeMo Gym, which runs somewhere else.

Gym's head server says once where its servers are; each rollout is then one POST to the
environment server in front of the agent. Gym asks our vLLM for the answer, has its resources
server score it, and sends back token ids and log-probabilities with the reward.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from math import isfinite
from typing import Any

import yaml

from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.rollouts import Rollout

#: How often the callback looks whether our own vLLM lives while Gym works. Gym asks a vLLM
#: that is gone again and again and tells nobody.
CHECK_SECONDS = 1.0


def read_config(head: JsonApi) -> dict[str, Any]:
    """Return the configuration that Gym's head server hands out: YAML in a JSON string.

    Raises:
        TrainerError: The head does not answer, or with something else.
    """
    text = head.get("/global_config_dict_yaml")
    try:
        config = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError as error:
        raise TrainerError(
            f"Gym's head {head.base_url} sent no YAML as configuration: {error}"
        ) from error
    if not isinstance(config, dict):
        raise TrainerError(f"Gym's head {head.base_url} sent no configuration")
    return config


def _servers(config: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the servers of a kind: name -> kind -> implementation -> settings."""
    for name, entry in config.items():
        if isinstance(entry, dict) and isinstance(entry.get(kind), dict):
            for settings in entry[kind].values():
                if isinstance(settings, dict):
                    yield name, settings


def environment_url(config: Mapping[str, Any], agent: str) -> str:
    """Return the URL of the environment server that stands in front of an agent.

    Raises:
        TrainerError: There is none, or it has no address.
    """
    found = {}
    for name, settings in _servers(config, "environment_servers"):
        served = settings.get("agent_server")
        if isinstance(served, dict) and served.get("name"):
            found[str(served["name"])] = (name, settings)
    if agent not in found:
        raise TrainerError(
            f"Gym serves no agent {agent!r}; it serves: {', '.join(sorted(found)) or 'none'}"
        )
    name, settings = found[agent]
    host, port = settings.get("host"), settings.get("port")
    if not host or not port:
        raise TrainerError(f"Gym gave its environment server {name!r} no host and port")
    bracketed = f"[{host}]" if ":" in str(host) else host
    return f"http://{bracketed}:{port}"


def parse_answer(answer: Any, group: int) -> list[Rollout]:
    """Return the rollouts of one answer to `/run`: one for each time the model was called.

    A sample that Gym marks as no valid measurement gives none.

    Raises:
        TrainerError: The reward is not a number, or token ids or log-probabilities are missing.
    """
    if not isinstance(answer, dict):
        raise TrainerError(f"Gym answered a rollout with {type(answer).__name__}, not an object")
    if answer.get("mask_sample"):
        return []
    reward = answer.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not isfinite(reward):
        raise TrainerError(f"Gym gave a rollout the reward {reward!r}: not a number")
    rollouts = []
    for item in (answer.get("response") or {}).get("output") or []:
        # The last item of each call to the model carries its tokens; the others carry none.
        if item.get("generation_token_ids") is None:
            continue
        prompt = tuple(item.get("prompt_token_ids") or ())
        tokens = tuple(item["generation_token_ids"])
        logprobs = tuple(item.get("generation_log_probs") or ())
        if not prompt or not tokens or len(tokens) != len(logprobs):
            raise TrainerError(
                f"Gym gave {len(prompt)} token ids of a prompt, {len(tokens)} of its answer and "
                f"{len(logprobs)} log-probabilities"
            )
        rollouts.append(Rollout(group, prompt, tokens, logprobs, float(reward)))
    if not rollouts:
        reason = answer.get("failure_reason") or answer.get("failure_kind") or "no reason given"
        raise TrainerError(f"Gym's answer to a rollout has no token ids ({reason})")
    return rollouts


class GymSource:
    """Has Gym sample several answers to each of the same prompts, every step."""

    def __init__(
        self,
        head: JsonApi,
        *,
        agent: str,
        prompts: Sequence[str],
        samples: int,
        tokens: int,
        seed: int,
        seconds: float,
        check: Callable[[], None],
    ) -> None:
        """Ask Gym's head where its servers are.

        Args:
            head: Gym's head server.
            agent: Name of the agent in Gym's configuration.
            prompts: What the policy answers to.
            samples: Answers to each prompt.
            tokens: Tokens of an answer.
            seed: Seed of the sampling.
            seconds: What one rollout may take.
            check: Raises when rollouts cannot come any more; called while waiting for them.

        Raises:
            TrainerError: Gym does not answer, or has no such agent.
        """
        self._environment = JsonApi(environment_url(read_config(head), agent), timeout=seconds)
        self._agent = agent
        self._prompts = list(prompts)
        self._samples = samples
        self._tokens = tokens
        self._seed = seed
        self._check = check

    def request(self, step: int, index: int) -> dict[str, Any]:
        """Return the body of one rollout's `/run`.

        The same seed, step and index give the same answer to the same weights.
        """
        count = len(self._prompts) * self._samples
        # What Gym's own parameters have no name for goes to vLLM as it is.
        extra = {
            "ignore_eos": True, "top_k": -1,
            "seed": (self._seed * 100_003 + step) * count + index,
        }  # fmt: skip
        return {
            "responses_create_params": {
                "input": [{"role": "user", "content": self._prompts[index // self._samples]}],
                "max_output_tokens": self._tokens,
                # The policy's own distribution, so that the log-probabilities are its too.
                "temperature": 1.0,
                "top_p": 1.0,
                "metadata": {"extra_body": json.dumps(extra)},
            },
            "agent_ref": {"type": "responses_api_agents", "name": self._agent},
            "_rowidx": index,
        }

    def collect(self, step: int) -> list[Rollout]:
        """Sample one batch.

        Raises:
            TrainerError: A rollout failed, or Gym measured none of them validly.
        """
        count = len(self._prompts) * self._samples
        pool = ThreadPoolExecutor(count, thread_name_prefix="rollout")
        try:
            futures = [
                pool.submit(self._environment.post, "/run", self.request(step, index))
                for index in range(count)
            ]
            self._wait(futures)
            rollouts = [
                rollout
                for index, future in enumerate(futures)
                for rollout in parse_answer(future.result(), index // self._samples)
            ]
        except TrainerError as error:
            raise TrainerError(f"rollouts through Gym: {error}") from error
        finally:
            # What is still under way ends with its own deadline; nobody waits for it.
            pool.shutdown(wait=False, cancel_futures=True)
        if not rollouts:
            raise TrainerError(f"Gym marked all {count} rollouts of step {step} as not measured")
        return rollouts

    def _wait(self, futures: Sequence[Future[Any]]) -> None:
        pending: set[Future[Any]] = set(futures)
        while pending:
            done, pending = wait(pending, timeout=CHECK_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending:
                self._check()
