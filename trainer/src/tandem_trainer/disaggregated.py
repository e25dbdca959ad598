r"""Disaggregated RL: trainer and vLLM here, NeMo Gym on a cluster of its own.

    python -m tandem_trainer.disaggregated --output /artifacts/run \
        +env.remote_gym_url=http://10.0.0.7:9090 +env.disagg_job_id=run-1

Runs on the head of the RL side. An actor on a GPU node owns the learner and the vLLM server;
Gym asks that server for answers, scores them and hands both back. The overrides are those that
NeMo RL's own training program takes, so that a wrapper may start either.

TANDEM_VLLM_URLS_FILE names a file that gets the URLs of our vLLM as a JSON list as soon as it
has answered: whoever started us tells Gym.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tandem_trainer import job
from tandem_trainer.errors import TrainerError
from tandem_trainer.http_api import JsonApi
from tandem_trainer.metrics import Verdict
from tandem_trainer.worker import GymWorker, WorkerSettings

URLS_FILE = "TANDEM_VLLM_URLS_FILE"
GYM_URL, JOB_ID = "env.remote_gym_url", "env.disagg_job_id"
OVERRIDE = re.compile(r"\+{0,2}(?P<key>[^=+]+)=(?P<value>.*)", re.DOTALL)
#: How often Gym is asked whether it is ready, and vLLM whether it still lives.
POLL_SECONDS = 1.0
READY = 200

_EPILOG = f"""\
overrides:
  +{GYM_URL}=URL   Gym's head server: http or https, with or without port and path
  +{JOB_ID}=ID     name of the run, for the log

examples:
  python -m tandem_trainer.disaggregated --output /artifacts/run \\
      +{GYM_URL}=http://10.0.0.7:9090 +{JOB_ID}=run-1

environment:
  {URLS_FILE}   file that gets the URLs of our vLLM, a JSON list, once it has answered

exit codes: 0 the reward rose enough, 1 training failed or the reward did not rise, 2 usage,
            3 nothing was started: no GPU node in time, no model, no writable output folder
"""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says in the manner of Hydra."""

    gym_url: str
    job_id: str


def _unquoted(value: str) -> str:
    """Return a value without the quotes that Hydra needs around some characters."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def checked_url(text: str) -> str:
    """Return the URL of Gym's head server without a slash at the end.

    Raises:
        ValueError: It is none that could work.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no URL of a server: http://HOST:PORT is wanted")
    if parts.query or parts.fragment:
        raise ValueError(f"{text!r}: a query or fragment has no place in a server's URL")
    return text.rstrip("/")


def parse_overrides(words: Sequence[str]) -> Overrides:
    """Return what the overrides say.

    Raises:
        ValueError: Some are wrong or missing; the message names all of them.
    """
    problems: list[str] = []
    values: dict[str, str] = {}
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if match is None:
            problems.append(f"{word!r} is no override: +KEY=VALUE is wanted")
        elif match["key"] not in (GYM_URL, JOB_ID):
            problems.append(f"{match['key']!r} is not known: +{GYM_URL}=, +{JOB_ID}= are")
        else:
            values[match["key"]] = _unquoted(match["value"])
    problems += [f"+{key}= is missing" for key in (GYM_URL, JOB_ID) if not values.get(key)]
    url = values.get(GYM_URL, "")
    if url:
        try:
            url = checked_url(url)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return Overrides(url, values[JOB_ID])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = job.base_parser(
        "tandem_trainer.disaggregated",
        "Train a tiny policy with rollouts from NeMo Gym.",
        _EPILOG,
        rate=5e-3,
    )
    made.add_argument("--prompts", type=job.positive, default=4, help="groups (%(default)s)")
    made.add_argument("--samples", type=job.positive, default=8, help="of a group (%(default)s)")
    made.add_argument("--tokens", type=job.positive, default=16, help="of an answer (%(default)s)")
    made.add_argument(
        "--agent", default="vowels_agent", help="agent in Gym's configuration (%(default)s)"
    )
    made.add_argument(
        "--served-name", default="policy", help="name of the model in vLLM (%(default)s)"
    )
    made.add_argument(
        "--gym-timeout", type=job.above_zero, default=300.0,
        help="seconds until Gym must be ready, once vLLM answers (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--rollout-timeout", type=job.above_zero, default=120.0,
        help="seconds that one rollout may take (%(default)s)",
    )  # fmt: skip
    made.add_argument("overrides", nargs="*", metavar="+KEY=VALUE", help="see below")
    return made


def publish(urls: Sequence[str], file: Path) -> None:
    """Write the URLs of our vLLM; the file is there whole or not at all.

    Raises:
        TrainerError: It cannot be written.
    """
    draft = file.with_name(f".{file.name}.new")
    try:
        draft.write_text(json.dumps(list(urls)), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise TrainerError(f"cannot write vLLM's URLs to {file} ({URLS_FILE}): {error}") from error


def wait_for_gym(url: str, seconds: float, check: Callable[[], None]) -> float:
    """Wait until Gym's head server says that it is ready; return the seconds it took.

    Args:
        url: Of Gym's head server.
        seconds: Until it must be ready.
        check: Raises when there is nothing to wait for any more: our vLLM has ended.

    Raises:
        TrainerError: It is not ready in time.
    """
    api = JsonApi(url, timeout=5.0)
    started = time.monotonic()
    while (status := api.status("/readyz")) != READY:
        if time.monotonic() - started >= seconds:
            last = "no answer" if status is None else f"HTTP {status}"
            raise TrainerError(
                f"the Gym side was not ready within {seconds:.0f} s: {url}/readyz gave {last}; "
                "look at the log of the Gym server"
            )
        check()
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


def run(args: argparse.Namespace, overrides: Overrides) -> Verdict:
    """Run the training and return its verdict.

    Raises:
        TrainerError: It failed.
    """
    settings = WorkerSettings(
        model=args.model, seed=args.seed, rate=args.rate, port=args.port,
        ready_seconds=args.vllm_timeout, served_name=args.served_name, public=True,
        samples=args.samples, tokens=args.tokens, prompts=args.prompts,
    )  # fmt: skip

    def prepare(ray: Any, actor: Any) -> None:
        job.say(f"run {overrides.job_id}: rollouts from Gym at {overrides.gym_url}")
        job.start_policy(ray, actor, args.vllm_timeout)
        url = ray.get(actor.url.remote(), timeout=job.STOP_SECONDS)
        if file := os.environ.get(URLS_FILE):
            publish([url], Path(file))
        job.say(f"waiting for Gym, which is to ask {url}")
        seconds = wait_for_gym(
            overrides.gym_url,
            args.gym_timeout,
            lambda: ray.get(actor.check.remote(), timeout=job.STOP_SECONDS),
        )
        ray.get(
            actor.connect.remote(overrides.gym_url, args.agent, args.rollout_timeout),
            timeout=job.STEP_SECONDS,
        )
        job.say(f"Gym was ready after {seconds:.1f} s")

    return job.run(args, GymWorker, settings, prepare)


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    made = parser()
    args = job.parse(made, argv)
    try:
        overrides = parse_overrides(args.overrides)
    except ValueError as error:
        made.error(str(error))
    return job.finish(lambda: run(args, overrides))


if __name__ == "__main__":
    sys.exit(main())
