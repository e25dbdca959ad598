"""Colocated RL as one Ray job: the driver, which runs on the head.

    python -m tandem_trainer.colocated --output /artifacts/run

An actor on a GPU node owns the learner and the vLLM server, and scores the answers itself.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tandem_trainer import job
from tandem_trainer.metrics import Verdict
from tandem_trainer.worker import ColocatedWorker, WorkerSettings

_EPILOG = """\
examples:
  python -m tandem_trainer.colocated --output /artifacts/run
  python -m tandem_trainer.colocated --output run --steps 30 --seed 7 --min-gain 3
  python -m tandem_trainer.colocated --output run --local      a Ray of its own, this machine

exit codes: 0 the reward rose enough, 1 training failed or the reward did not rise, 2 usage,
            3 nothing was started: no GPU node in time, no model, no writable output folder
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return job.base_parser(
        "tandem_trainer.colocated",
        "Train a tiny policy with real Ray, real vLLM and real torch, on CPU.",
        _EPILOG,
        rate=5e-3,
    )


def run(args: argparse.Namespace) -> Verdict:
    """Run the training and return its verdict.

    Raises:
        TrainerError: It failed.
    """
    settings = WorkerSettings(
        model=args.model, seed=args.seed, rate=args.rate, port=args.port,
        ready_seconds=args.vllm_timeout,
    )  # fmt: skip

    def prepare(ray: Any, actor: Any) -> None:
        job.start_policy(ray, actor, args.vllm_timeout)

    return job.run(args, ColocatedWorker, settings, prepare)


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit code."""
    args = job.parse(parser(), argv)
    return job.finish(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
