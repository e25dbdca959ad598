"""JSON over HTTP with the standard library: every call has a deadline and a clear error."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from tandem_trainer.errors import TrainerError

#: Characters of an error's body that the message repeats.
BODY_SHOWN = 500


class JsonApi:
    """One server's HTTP API."""

    def __init__(self, base_url: str, timeout: float = 60.0) -> None:
        """Take the URL without path, and the seconds that a call may take."""
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        # Never through a proxy: the server is this pod or a neighbour.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:
        """Return the answer to a GET."""
        return self._call("GET", path, None)

    def post(self, path: str, body: object | None = None) -> Any:
        """Return the answer to a POST."""
        return self._call("POST", path, body)

    def status(self, path: str) -> int | None:
        """Return the HTTP status of a GET, or None when there is no answer."""
        request = urllib.request.Request(self.base_url + path)  # noqa: S310 - as below
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except (OSError, HTTPException):
            return None

    def _call(self, method: str, path: str, body: object | None) -> Any:
        """Make one request.

        Raises:
            TrainerError: The server cannot be reached, takes too long, answers with another
                status than 2xx, or with something that is not JSON.
        """
        url = self.base_url + path
        request = urllib.request.Request(  # noqa: S310 - the URL is ours, always http
            url,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            shown = error.read()[:BODY_SHOWN].decode(errors="replace")
            raise TrainerError(f"{method} {url}: HTTP {error.code}: {shown}") from error
        except (OSError, HTTPException) as error:
            raise TrainerError(f"{method} {url}: {error}") from error
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            shown = content[:BODY_SHOWN].decode(errors="replace")
            raise TrainerError(f"{method} {url}: not JSON: {shown}") from error
