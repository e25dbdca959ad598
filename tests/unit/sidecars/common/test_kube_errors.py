"""What an answer that is none of 2xx becomes."""

from __future__ import annotations

from typing import Any

import pytest

from tandem_common.kube import errors
from tandem_common.kube.client import wait_seconds
from tandem_common.kube.errors import Call, KubeError, from_answer

CALL = Call("patch", "configmaps", "", "tandem", "endpoints")


def status(reason: str = "", message: str = "no", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": message, "details": details}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Expired),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_each_status_has_its_type(code: int, reason: str, kind: type[KubeError]) -> None:
    error = from_answer(CALL, code, status(reason))
    assert type(error) is kind
    assert error.status == code


def test_only_faults_that_say_nothing_about_the_object_are_transient() -> None:
    transient = {
        code
        for code in (400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504)
        if isinstance(from_answer(CALL, code, {}), errors.Transient)
    }
    assert transient == {429, 500, 502, 503, 504}


def test_a_403_of_rbac_names_the_rule_that_is_missing() -> None:
    message = 'configmaps "endpoints" is forbidden: User "gym" cannot patch resource "configmaps"'
    error = from_answer(CALL, 403, status("Forbidden", message))
    assert message in str(error)
    assert (
        'apiGroups: [""], resources: ["configmaps"], verbs: ["patch"], '
        'resourceNames: ["endpoints"]' in str(error)
    )


def test_a_403_of_a_quota_names_no_rule() -> None:
    error = from_answer(CALL, 403, status("Forbidden", "exceeded quota: small"))
    assert isinstance(error, errors.Forbidden)
    assert "Role" not in str(error)


def test_a_namespace_that_is_being_deleted_is_no_matter_of_rights() -> None:
    body = status("Forbidden", "being terminated", causes=[{"reason": "NamespaceTerminating"}])
    assert type(from_answer(CALL, 403, body)) is errors.NamespaceTerminating


def test_a_field_that_another_owns_is_told_from_a_busy_object() -> None:
    body = status("Conflict", "conflict with x", causes=[{"reason": "FieldManagerConflict"}])
    assert type(from_answer(CALL, 409, body)) is errors.OwnedByAnother


def test_an_answer_without_a_status_object_still_has_a_message() -> None:
    assert "HTTP 503" in str(from_answer(CALL, 503, {}))


def test_waits_grow_to_a_limit_and_never_undercut_retry_after() -> None:
    assert all(0 <= wait_seconds(1) <= 0.1 for _ in range(200))
    assert max(wait_seconds(50) for _ in range(200)) <= 3.0
    assert max(wait_seconds(50) for _ in range(200)) > 1.0
    told = from_answer(CALL, 429, {}, retry_after=2.0)
    waits = [wait_seconds(4, told) for _ in range(200)]
    assert min(waits) >= 2.0
    assert max(waits) - min(waits) > 0.1, "who was told the same must not come back at once"


@pytest.mark.parametrize("code", [409, 504])
def test_writers_in_each_others_way_spread_further(code: int) -> None:
    waits = [wait_seconds(50, from_answer(CALL, code, {})) for _ in range(200)]
    assert 3.0 < max(waits) <= 12.0
