"""Whether a vLLM server really answers: a completion of one token, not a health check.

`/health` of vLLM says 200 while its engine is dead or paused. NeMo RL's own server has neither
`/health` nor `/v1/models`, and refuses completions whose sampling values are not those of the
training; of that one an answer to `/tokenize` is all that can be asked.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import httpx

from gym_server.signals import thread
from gym_server.urls import Url

#: Seconds for one request at most: the first completion of a server imports lazily.
ATTEMPT_SECONDS = 30.0
#: Seconds between two rounds. There is nothing to watch: the server is not there yet.
PERIOD_SECONDS = 0.5
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one request; status 0 when nothing did."""

    status: int
    body: Any = None
    error: str = ""

    def __str__(self) -> str:
        """Return it in a few words."""
        if not self.status:
            return self.error or "no answer"
        said = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return f"HTTP {self.status}: {said[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round of requests says about a server."""

    ready: bool = False
    #: Why not.
    reason: str = ""
    #: More waiting will not help.
    final: bool = False


class Ask(Protocol):
    """Sends one request: method, path below the server's root, and a body."""

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Return what came back."""


def base(url: Url) -> str:
    """Return the base of the OpenAI routes: a URL without a path means `/v1`."""
    return str(url) if url.path else url.at("v1")


def look(ask: Ask, model: str) -> Verdict:
    """Return whether a server answers.

    Args:
        ask: Sends a request to a path below the base of the OpenAI routes.
        model: Name that the policy is asked for by; "" takes the first that the server has.
    """
    models = ask("GET", "models")
    if models.status == HTTPStatus.NOT_FOUND:
        return _look_at_tokenizer(ask, model)
    if models.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Verdict(reason=f"it asks for a key ({models})", final=True)
    names = _names(models.body) if models.status == HTTPStatus.OK else None
    if not names:
        return Verdict(reason=f"/models: {models}")
    if model and model not in names:
        return Verdict(reason=f"it serves {', '.join(names)}, not {model!r}", final=True)
    body = {"model": model or names[0], "prompt": "a", "max_tokens": 1}
    done = ask("POST", "completions", body)
    ready = (
        done.status == HTTPStatus.OK and isinstance(done.body, dict) and done.body.get("choices")
    )
    return Verdict(ready=True) if ready else Verdict(reason=f"/completions: {done}")


def _look_at_tokenizer(ask: Ask, model: str) -> Verdict:
    """Take any word of NeMo RL's server for an answer; a path that nobody knows is none."""
    body = {"prompt": "a", **({"model": model} if model else {})}
    answer = ask("POST", "../tokenize", body)
    unknown = answer.status == HTTPStatus.NOT_FOUND and _is_no_route(answer.body)
    if not answer.status or unknown or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Verdict(reason=f"neither /models nor /tokenize: {answer}")
    return Verdict(ready=True)


def _is_no_route(body: Any) -> bool:
    return not isinstance(body, dict) or body.get("detail") == "Not Found"


def _names(body: Any) -> list[str] | None:
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        return None
    return [str(one.get("id")) for one in data]


class Http:
    """Asks one server over HTTP; proxies of the environment are for the outside world."""

    def __init__(self, url: str, *, key: str = "", seconds: float = ATTEMPT_SECONDS) -> None:
        """Take the base that paths are below."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._base = url.rstrip("/")
        self._client = httpx.Client(timeout=seconds, trust_env=False, headers=headers)

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send one request and return what came back."""
        base_url = self._base
        while path.startswith("../"):
            base_url, path = base_url.rpartition("/")[0], path[3:]
        try:
            answer = self._client.request(method, f"{base_url}/{path}", json=body)
        except httpx.HTTPError as error:
            return Answer(
                0, error=f"{type(error).__name__}: {error}" if str(error) else repr(error)
            )
        try:
            return Answer(answer.status_code, answer.json())
        except ValueError:
            return Answer(answer.status_code, answer.text)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


@dataclass(frozen=True, slots=True)
class Probed:
    """Every server has answered, or one has said that it never will."""

    urls: tuple[str, ...]
    #: "" when all have answered.
    failure: str = ""


class Probe:
    """Asks servers in a thread until each has answered; the news goes to a callback."""

    def __init__(
        self, urls: Sequence[str], look_at: Callable[[str], Verdict],
        tell: Callable[[Any], None], period: float = PERIOD_SECONDS,
    ) -> None:  # fmt: skip
        """Take what to ask; `start` begins."""
        self._urls = tuple(urls)
        self._look = look_at
        self._tell = tell
        self._period = period
        self._stop = threading.Event()
        #: What the last round said, for messages.
        self.last = ""

    def start(self) -> Probe:
        """Begin."""
        thread("probe", self._run, self._tell).start()
        return self

    def stop(self) -> None:
        """End without news, after the request that is under way."""
        self._stop.set()

    def _run(self) -> None:
        waiting = list(self._urls)
        while not self._stop.is_set():
            began = time.monotonic()
            for url in tuple(waiting):
                verdict = self._look(url)
                if verdict.ready:
                    waiting.remove(url)
                    continue
                self.last = f"{url}: {verdict.reason}"
                if verdict.final:
                    self._finish(self.last)
                    return
            if not waiting:
                self._finish("")
                return
            self._stop.wait(max(0.0, self._period - (time.monotonic() - began)))

    def _finish(self, failure: str) -> None:
        if not self._stop.is_set():
            self._tell(Probed(self._urls, failure))


def vllm(model: str, key: str = "") -> Callable[[str], Verdict]:
    """Return the question to a vLLM server, by the base of its OpenAI routes."""

    def ask(url: str) -> Verdict:
        http = Http(url, key=key)
        try:
            return look(http, model)
        finally:
            http.close()

    return ask


def gym_head(path: str = "readyz") -> Callable[[str], Verdict]:
    """Return the question to NeMo Gym's head; `/readyz` is 200 once every server answers."""

    def ask(url: str) -> Verdict:
        http = Http(url, seconds=5.0)
        try:
            answer = http("GET", path)
        finally:
            http.close()
        ready = answer.status == HTTPStatus.OK
        return Verdict(ready, "" if ready else f"/{path}: {answer}")

    return ask
