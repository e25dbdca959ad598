"""One request to a balancer, and its answer or a clear error."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from tandem_common.errors import ExitCode, Problem, UserError
from vllm_pool.settings import ClientSettings, read_token

_SECONDS: Final = 30.0
_SHOWN: Final = 300


class Balancer:
    """A balancer, as a person's command asks it."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        """Take where it is.

        Raises:
            UserError: The token's file cannot be used.
        """
        self.url = url.rstrip("/")
        self._token = read_token(token_file, ClientSettings.variable("token_file"))
        # Pools are inside: a proxy of the environment is for the world outside.
        self._opener = build_opener(ProxyHandler({}))

    def ask(
        self, method: str, path: str, body: Any = None, *, also: tuple[int, ...] = (),
        seconds: float = _SECONDS,
    ) -> Any:  # fmt: skip
        """Return the JSON of an answer.

        Args:
            method: Method.
            path: Path and query.
            body: JSON to send.
            also: Statuses, besides 2xx, whose body is an answer too.
            seconds: How long it may take.

        Raises:
            UserError: It does not answer, or refuses.
        """
        request = Request(  # noqa: S310 - the settings allow http and https only
            self.url + path, method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                raw = answer.read()
        except HTTPError as error:
            with error:
                raw = error.read()
            if error.code not in also:
                raise UserError(self._refused(error.code, raw)) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(
                Problem(
                    f"no balancer answers at {self.url}: {reason}",
                    f"set {ClientSettings.variable('url')} or --url to where the pool is",
                ),
                ExitCode.PRECONDITION,
            ) from None
        try:
            return json.loads(raw)
        except ValueError:
            text = raw[:_SHOWN].decode(errors="replace")
            raise UserError(
                Problem(f"{self.url} is no balancer: it says {text!r}", "name the pool's address")
            ) from None

    def _refused(self, status: int, raw: bytes) -> Problem:
        try:
            message = str(json.loads(raw)["error"]["message"])
        except (ValueError, LookupError, TypeError):
            message = raw[:_SHOWN].decode(errors="replace")
        fixes = {
            HTTPStatus.UNAUTHORIZED: f"set {ClientSettings.variable('token_file')} to its file",
            HTTPStatus.NOT_FOUND: "see `vllm-pool status` for those that there are",
            HTTPStatus.CONFLICT: "give a higher --epoch",
        }
        fix = fixes.get(HTTPStatus(status), "mend what it says")
        return Problem(f"{self.url} refuses ({status}): {message}", fix)
