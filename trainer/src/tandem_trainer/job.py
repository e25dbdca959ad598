"""What the drivers of a run share: command line, waiting for the GPU, errors, the end.

A driver runs as a Ray job on the head. It starts an actor on a GPU node, asks it for one step
after the other, writes metrics and curve, and ends with the run's true exit code.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tandem_trainer.curve import draw
from tandem_trainer.errors import FAILURE, OK, PRECONDITION, PreconditionError, TrainerError
from tandem_trainer.loop import train
from tandem_trainer.metrics import RunFiles, Verdict, judge

#: Seconds that one training step may take, however slow the machine.
STEP_SECONDS = 300.0
STOP_SECONDS = 30.0
#: The same when somebody has told us to end: he waits, and the GPU node may be gone already.
TOLD_SECONDS = 3.0
#: Seconds for everything that is done when somebody has told us to end.
END_SECONDS = 8.0


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0, such as 24")
    return number


def whole(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 7") from None


def above_zero(text: str) -> float:
    """Parse a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 0.5")
    return number


def base_parser(
    program: str, description: str, epilog: str, *, rate: float
) -> argparse.ArgumentParser:
    """Return a command line with the options that every driver has."""
    made = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--output", type=Path, required=True, help="folder for metrics and curve")
    made.add_argument(
        "--model",
        type=Path,
        default=Path(os.environ.get("TANDEM_MODEL", "/opt/tandem/tiny-model")),
        help="model folder on the GPU node (default: TANDEM_MODEL, else %(default)s)",
    )
    made.add_argument("--steps", type=positive, default=24, help="training steps (%(default)s)")
    made.add_argument("--seed", type=whole, default=0, help="seed of everything (%(default)s)")
    made.add_argument("--rate", type=above_zero, default=rate, help="learning rate (%(default)s)")
    made.add_argument(
        "--min-gain", type=above_zero, default=2.0,
        help="how many times higher the reward of the last steps must be (%(default)s)",
    )  # fmt: skip
    made.add_argument("--port", type=positive, default=8000, help="vLLM's port (%(default)s)")
    made.add_argument(
        "--worker-timeout", type=above_zero, default=180.0,
        help="seconds until a GPU node must be there (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--vllm-timeout", type=above_zero, default=300.0,
        help="seconds until vLLM must answer (%(default)s)",
    )  # fmt: skip
    made.add_argument("--local", action="store_true", help="start a Ray of its own")
    return made


def say(text: str) -> None:
    """Print a line for a person; stdout is for metrics."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say_error(error: Exception) -> None:
    """Print an error with its cause as the last line.

    A RayJob's message holds only the last lines of what the driver said: the first line of
    ours, which names the cause, has to be among them.
    """
    cause, _, details = str(error).partition("\n")
    if details:
        say(details)
    say(f"error: {cause}")


def wait_for_gpu(ray: Any, seconds: float) -> None:
    """Wait until a live node offers a GPU.

    Raises:
        PreconditionError: None does in time.
    """
    deadline = time.monotonic() + seconds
    while ray.cluster_resources().get("GPU", 0) < 1:
        if time.monotonic() > deadline:
            raise PreconditionError(
                f"no node offered a GPU within {seconds:.0f} s; "
                f"the cluster has {ray.cluster_resources()}"
            )
        time.sleep(0.5)


@contextmanager
def errors_of_actor(ray: Any) -> Iterator[None]:
    """Turn what Ray raises for a failed actor into the actor's own error."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, TrainerError):
            raise type(cause)(str(cause)) from None
        raise
    except ray.exceptions.GetTimeoutError as error:
        raise TrainerError(f"the GPU worker gave no answer in time: {error}") from error
    except ray.exceptions.RayActorError as error:
        raise TrainerError(f"the GPU worker is gone: {error}") from error


def run(
    args: argparse.Namespace, worker: type, settings: object, prepare: Callable[[Any, Any], None]
) -> Verdict:
    """Run a training and return its verdict.

    Args:
        args: The parsed command line.
        worker: Class of the actor that holds the GPU: `pid`, `step`, `log`, `stop`.
        settings: What the actor is made with.
        prepare: Brings the actor to where it can take steps; is given ray and the actor.

    Raises:
        TrainerError: It failed.
    """
    import ray  # noqa: PLC0415 - exists in the image only

    try:
        files = RunFiles(args.output)
    except OSError as error:
        raise PreconditionError(f"cannot write to {args.output}: {error}") from error
    if args.local:
        ray.init(num_cpus=1, num_gpus=1, include_dashboard=False, logging_level="warning")
    else:
        ray.init(logging_level="warning")
    # Not before: ray.init puts a handler of its own there, with another exit code.
    signal.signal(signal.SIGTERM, _terminated)
    wait_for_gpu(ray, args.worker_timeout)
    # A whole GPU, as on real hardware: nothing else may be placed beside it.
    actor = ray.remote(worker).options(num_gpus=1, num_cpus=0).remote(settings)
    patience = STOP_SECONDS
    try:
        with errors_of_actor(ray):
            ray.get(actor.pid.remote(), timeout=args.worker_timeout)
            prepare(ray, actor)
            rewards = train(
                lambda step: ray.get(actor.step.remote(step), timeout=STEP_SECONDS),
                files,
                args.steps,
            )
        draw(rewards, args.output / "reward.png")
        return judge(rewards, args.min_gain)
    except SystemExit:
        patience = TOLD_SECONDS
        raise
    finally:
        stop(ray, actor, args.output / "vllm.log", patience)


def start_policy(ray: Any, actor: Any, seconds: float) -> None:
    """Have the actor start vLLM and the learner, and say how long it took."""
    say("starting vLLM and the learner on the GPU node")
    took = ray.get(actor.start.remote(), timeout=seconds + STEP_SECONDS)
    say(f"vLLM answered after {took:.1f} s")


def stop(ray: Any, actor: Any, log: Path, seconds: float = STOP_SECONDS) -> None:
    """Keep vLLM's log, end the actor and with it vLLM; one that is gone is as good as ended."""
    deadline = time.monotonic() + seconds
    try:
        log.write_text(ray.get(actor.log.remote(), timeout=seconds), encoding="utf-8")
        ray.get(actor.stop.remote(), timeout=max(0.0, deadline - time.monotonic()))
    except (ray.exceptions.RayError, TimeoutError):
        say("the GPU worker did not end by itself")
    ray.kill(actor)


def finish(work: Callable[[], Verdict]) -> int:
    """Do the work and return the exit code that fits how it went."""
    try:
        verdict = work()
    except PreconditionError as error:
        say_error(error)
        return PRECONDITION
    except TrainerError as error:
        say_error(error)
        return FAILURE
    say(str(verdict))
    return OK if verdict.passed else FAILURE


def parse(made: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse a command line and check what goes beyond one option."""
    args = made.parse_args(argv)
    if args.steps < 2:  # noqa: PLR2004
        made.error("--steps: the verdict compares first and last steps, so at least 2")
    return args


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    # Ray's own calls wait a minute for a head that is gone, its exit handler among them.
    last = threading.Timer(END_SECONDS, os._exit, (128 + number,))
    last.daemon = True
    last.start()
    # As an exception it runs the `finally` that ends the actor and vLLM.
    raise SystemExit(128 + number)
