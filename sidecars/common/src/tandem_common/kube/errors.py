"""What can go wrong with a request, as types: a caller decides by class, never by text."""

# ruff: noqa: N818 - these are the words of the API

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked for, in the words of RBAC."""

    verb: str
    resource: str
    group: str
    namespace: str
    name: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        """Return it as a person would say it: `patch configmaps/x in namespace y`."""
        kind = self.resource + (f"/{self.subresource}" if self.subresource else "")
        what = f"{kind} {self.name}" if self.name else kind
        return f"{self.verb} {what} in namespace {self.namespace}"

    @property
    def rule(self) -> str:
        """The rule of a Role that allows it."""
        kind = self.resource + (f"/{self.subresource}" if self.subresource else "")
        rule = f'apiGroups: ["{self.group}"], resources: ["{kind}"], verbs: ["{self.verb}"]'
        return rule + (f', resourceNames: ["{self.name}"]' if self.name else "")


class KubeError(Exception):
    """A request that did not do what was asked.

    Attributes:
        call: What was asked for.
        status: HTTP status; 0 when there was no answer.
        reason: The API's word for it, such as `AlreadyExists`; may be empty.
    """

    def __init__(self, call: Call, message: str, *, status: int = 0, reason: str = "") -> None:
        """Keep what was asked and what came back."""
        self.call = call
        self.status = status
        self.reason = reason
        super().__init__(f"{call}: {message}")


class Unauthorized(KubeError):
    """401, also with the token read anew: the API server does not know who we are."""


class Forbidden(KubeError):
    """403: the message names the rule that the account's Role lacks."""


class NamespaceTerminating(KubeError):
    """403 or 409 because the namespace is being deleted: nothing can be made in it."""


class NotFound(KubeError):
    """404: the object, its kind, or its namespace is not there."""


class Conflict(KubeError):
    """409: a precondition (UID, resourceVersion) does not hold, or another writer won."""


class AlreadyExists(Conflict):
    """409 of a create: there is an object of this name."""


class OwnedByAnother(Conflict):
    """409 of an apply: another manager owns a field with another value; again is no help."""


class OtherObject(Conflict):
    """The object has another UID than the one that was meant; again is no help."""


class Expired(KubeError):
    """410: the resourceVersion is too old; list again."""


class Invalid(KubeError):
    """400, 405, 413, 415, 422 and the like: the request itself is wrong; again is no help."""


class Transient(KubeError):
    """A fault that may be gone at the next attempt: it says nothing about the object.

    Attributes:
        retry_after: Seconds that the server asks us to wait; None when it does not say.
    """

    retry_after: float | None = None


class TooManyRequests(Transient):
    """429: the server protects itself."""


class ServerError(Transient):
    """5xx."""


class NetworkError(Transient):
    """No answer: refused, reset, timed out, not resolved, TLS."""


class DeadlineExceeded(KubeError):
    """The caller's deadline came before an answer that counts.

    Attributes:
        last: The fault of the last attempt.
        attempts: How many there were.
    """

    def __init__(self, call: Call, last: KubeError | None, attempts: int, seconds: float) -> None:
        """Keep the last fault, the attempts and the time."""
        self.last = last
        self.attempts = attempts
        said = f"; the last said: {last}" if last is not None else ""
        super().__init__(
            call, f"no answer in {seconds:.1f} s and {attempts} attempts{said}",
            status=last.status if last is not None else 0,
        )  # fmt: skip


def from_answer(
    call: Call, status: int, body: Mapping[str, Any], *, retry_after: float | None = None
) -> KubeError:
    """Return the error for an answer that is none of 2xx.

    Args:
        call: What was asked for.
        status: HTTP status.
        body: The API's `Status` object; empty when the answer was something else.
        retry_after: Seconds of the header Retry-After.
    """
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or f"HTTP {status}")
    details = body.get("details")
    causes = (details or {}).get("causes") or [] if isinstance(details, Mapping) else []
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return NamespaceTerminating(call, message, status=status, reason=reason)
    if status == HTTPStatus.FORBIDDEN:
        # Quotas and admission say 403 too; only RBAC says what the user cannot do.
        if " cannot " in message:
            message += f"; allow it in the Role of this account: {call.rule}"
        return Forbidden(call, message, status=status, reason=reason)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        many = status == HTTPStatus.TOO_MANY_REQUESTS
        kind = TooManyRequests if many else ServerError
        transient = kind(call, message, status=status, reason=reason)
        transient.retry_after = retry_after
        return transient
    if any(cause.get("reason") == "FieldManagerConflict" for cause in causes):
        return OwnedByAnother(call, message, status=status, reason=reason)
    if any(cause.get("field") == "metadata.uid" for cause in causes):
        # The server calls another object's UID an invalid change (422) where we mean a
        # precondition.
        return OtherObject(call, message, status=status, reason=reason)
    kinds: dict[int, type[KubeError]] = {
        HTTPStatus.UNAUTHORIZED: Unauthorized,
        HTTPStatus.NOT_FOUND: NotFound,
        HTTPStatus.CONFLICT: AlreadyExists if reason == "AlreadyExists" else Conflict,
        HTTPStatus.GONE: Expired,
    }
    return kinds.get(status, Invalid)(call, message, status=status, reason=reason)
