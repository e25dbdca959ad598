"""The gate of a training that starts while its pools load: `wait-ready`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError

POOLS: Final = "TANDEM_POOLS"
_LOOK_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 5.0
_PROGRESS_SECONDS: Final = 15.0


def pools(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of the pools by name, as the launcher has told them.

    Raises:
        UserError: It has not.
    """
    try:
        said = json.loads(environment[POOLS])
        return {str(name): str(url) for name, url in said.items()}
    except (KeyError, ValueError, AttributeError):
        raise UserError(
            Problem(
                f"{POOLS} does not tell the pools",
                "run it in the training that the launcher starts",
            ),
            ExitCode.PRECONDITION,
        ) from None


def reasons(url: str) -> str:
    """Return why a pool is not ready; empty when it is."""
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/ready", timeout=_ASK_SECONDS):
            return ""
    except HTTPError as error:
        with error:
            said = error.read()
        try:
            return "; ".join(json.loads(said)["reasons"]) or f"HTTP {error.code}"
        except (ValueError, LookupError, TypeError):
            return f"HTTP {error.code}"
    except (URLError, OSError) as error:
        return str(error)


def wait(environment: Mapping[str, str], seconds: float) -> None:
    """Return when every pool is ready; tell who is waited for meanwhile.

    Raises:
        UserError: One is not in time, with why.
    """
    waiting = pools(environment)
    deadline, told = Deadline(seconds), Deadline(_PROGRESS_SECONDS)
    while True:
        found = {name: reasons(url) for name, url in waiting.items()}
        waiting = {name: url for name, url in waiting.items() if found[name]}
        if not waiting:
            return
        if deadline.passed:
            raise UserError(
                [
                    Problem(
                        f"pool {name} at {waiting[name]} is not ready in {seconds:g} s: {why}",
                        "see the logs of its replicas, or give it more time with --timeout",
                    )
                    for name, why in found.items()
                    if why
                ],
                ExitCode.TIMEOUT,
            )
        if told.passed:
            told = Deadline(_PROGRESS_SECONDS)
            print(f"waiting for {', '.join(waiting)}", file=sys.stderr, flush=True)
        time.sleep(deadline.within(_LOOK_SECONDS))
