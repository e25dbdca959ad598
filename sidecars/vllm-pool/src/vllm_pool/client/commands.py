"""The commands that people give to a pool that runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError
from vllm_pool.client import show
from vllm_pool.client.http import Balancer
from vllm_pool.settings import ClientSettings

_LOOK_SECONDS: Final = 0.25
_CANARY_SECONDS: Final = 120.0
_ALL: Final = "--all"

_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "status": (
        "Show a pool: each replica with its state, why it is out, its load and its weights.",
        """\
examples:
  vllm-pool status
  vllm-pool status --url http://judge:8000 --output json

exit codes: 0 ready, 1 not ready, 2 usage, 3 no answer or refused""",
    ),
    "drain": (
        "Give a replica nothing new; with --wait until it has finished what it has.",
        """\
examples:
  vllm-pool drain judge-0 --wait 600
  vllm-pool drain --all                 the balancer itself: not ready, nothing refused

exit codes: 0 done, 2 usage, 3 no answer or refused, 4 not drained in time""",
    ),
    "undrain": (
        "Take a drain back.",
        """\
examples:
  vllm-pool undrain judge-0
  vllm-pool undrain --all

exit codes: 0 done, 2 usage, 3 no answer or refused""",
    ),
    "add": (
        "Register a replica that has no agent; it is a member until it is removed.",
        """\
example:
  vllm-pool add judge-7 http://10.0.0.7:8100 --wait 60

exit codes: 0 done, 2 usage, 3 no answer or refused, 4 not in rotation in time""",
    ),
    "remove": (
        "Take a replica out at once; drain it first to lose nothing.",
        """\
example:
  vllm-pool drain judge-7 --wait 600 && vllm-pool remove judge-7

exit codes: 0 done, 2 usage, 3 no answer or refused""",
    ),
    "canary": (
        "Ask a replica, or all, for one token now.",
        """\
examples:
  vllm-pool canary
  vllm-pool canary judge-0 --output json

exit codes: 0 each has generated, 1 one has not, 2 usage, 3 no answer or refused""",
    ),
}


def _parser(command: str) -> argparse.ArgumentParser:
    text, epilog = _TEXTS[command]
    parser = argparse.ArgumentParser(
        prog=f"vllm-pool {command}", description=text, allow_abbrev=False,
        epilog=f"{epilog}\n\nWhere: --url or VLLM_POOL_URL; token: VLLM_POOL_TOKEN_FILE.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if command in ("drain", "undrain"):
        parser.add_argument("id", nargs="?", help="id of the replica")
        parser.add_argument(_ALL, action="store_true", help="the balancer itself")
    if command == "canary":
        parser.add_argument("id", nargs="?", help="id of the replica; all without")
    if command in ("add", "remove"):
        parser.add_argument("id", help="id of the replica")
        parser.add_argument("--epoch", type=int, help="number of the launch that is meant")
    if command == "add":
        parser.add_argument("replica", metavar="URL", help="where it is: http://host:port")
        parser.add_argument("--weight-version", help="version of its weights")
    if command in ("add", "drain"):
        parser.add_argument(
            "--wait", type=float, metavar="SECONDS", default=0.0, help="wait until it is so"
        )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    for name, field in ClientSettings.model_fields.items():
        parser.add_argument(ClientSettings.flag(name), dest=name, help=field.description)
    return parser


def _run(command: str, argv: Sequence[str]) -> int:
    """Run one command; return its exit code.

    Raises:
        UserError: No answer, a refusal, or wrong arguments.
    """
    given = _parser(command).parse_args(argv)
    fields = {name: getattr(given, name) for name in ClientSettings.model_fields}
    settings = ClientSettings.load(fields)
    if command in ("drain", "undrain") and bool(given.id) == given.all:
        raise UserError(
            Problem("one replica's id or --all is needed, not both", "name one"), ExitCode.USAGE
        )
    return _ACTIONS[command](Balancer(settings.url, settings.token_file), given)


def _print(given: argparse.Namespace, said: Any, text: str) -> None:
    print(json.dumps(said, indent=2) if given.output == "json" else text)


def _path(name: str, rest: str = "") -> str:
    return f"/pool/replicas/{quote(name, safe='')}{rest}"


def _status(pool: Balancer, given: argparse.Namespace) -> int:
    said = pool.ask("GET", "/health", also=(503,))
    _print(given, said, show.status(said, colour=sys.stdout.isatty()))
    return ExitCode.OK if said.get("ready") else ExitCode.FAILURE


def _drain(pool: Balancer, given: argparse.Namespace) -> int:
    if given.all:
        said = pool.ask("POST", "/pool/drain")
        _print(given, said, f"{pool.url} is not ready any more; what comes is still served")
        return ExitCode.OK
    said = pool.ask("POST", _path(given.id, "/drain"))
    said = _wait(pool, given, said, lambda each: each["state"] in ("drained", "lost"))
    _print(given, said, f"{given.id}: {said['state']}, {said['inflight'] or 0} in flight")
    return ExitCode.OK


def _undrain(pool: Balancer, given: argparse.Namespace) -> int:
    if given.all:
        said = pool.ask("POST", "/pool/undrain", also=(503,))
        _print(given, said, f"{pool.url} is {'ready' if said['ready'] else 'not ready'} again")
        return ExitCode.OK
    said = pool.ask("POST", _path(given.id, "/undrain"))
    _print(given, said, f"{given.id}: {said['state']}")
    return ExitCode.OK


def _add(pool: Balancer, given: argparse.Namespace) -> int:
    body = {"url": given.replica, "epoch": given.epoch, "weight_version": given.weight_version}
    said = pool.ask("PUT", _path(given.id), {k: v for k, v in body.items() if v is not None})
    said = _wait(pool, given, said, lambda each: each["weight"] > 0)
    _print(given, said, f"{given.id}: {said['state']} at {said['url']}, epoch {said['epoch']}")
    return ExitCode.OK


def _remove(pool: Balancer, given: argparse.Namespace) -> int:
    query = "" if given.epoch is None else f"?epoch={given.epoch}"
    said = pool.ask("DELETE", _path(given.id, query))
    _print(given, said, f"{given.id}: gone")
    return ExitCode.OK


def _canary(pool: Balancer, given: argparse.Namespace) -> int:
    query = "" if given.id is None else f"?id={quote(given.id, safe='')}"
    said = pool.ask("POST", f"/pool/canary{query}", also=(502,), seconds=_CANARY_SECONDS)
    _print(given, said, show.canaries(said, colour=sys.stdout.isatty()))
    return ExitCode.OK if said["ok"] else ExitCode.FAILURE


def _wait(
    pool: Balancer, given: argparse.Namespace, said: Any, so: Callable[[Any], bool]
) -> Any:  # fmt: skip
    """Return a replica's row once something is so of it, and at once when nobody waits.

    Raises:
        UserError: It was not so in time.
    """
    deadline = Deadline(given.wait)
    while given.wait and not so(said):
        if deadline.passed:
            reasons = ", ".join(said["reasons"]) or "no reason is told"
            raise UserError(
                Problem(
                    f"{said['id']} is {said['state']} after {given.wait:g} s: {reasons}, "
                    f"{said['inflight'] or 0} in flight",
                    "give it more time with --wait, or see `vllm-pool status`",
                ),
                ExitCode.TIMEOUT,
            )
        time.sleep(deadline.within(_LOOK_SECONDS))
        said = pool.ask("GET", _path(given.id))
    return said


_ACTIONS: Final[Mapping[str, Callable[[Balancer, argparse.Namespace], int]]] = {
    "status": _status,
    "drain": _drain,
    "undrain": _undrain,
    "add": _add,
    "remove": _remove,
    "canary": _canary,
}

status = partial(_run, "status")
drain = partial(_run, "drain")
undrain = partial(_run, "undrain")
add = partial(_run, "add")
remove = partial(_run, "remove")
canary = partial(_run, "canary")
