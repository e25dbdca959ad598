"""The sidecar's policy, and its settings."""

from __future__ import annotations

from typing import Any

import pytest

from endpoint_registry.__main__ import joined
from endpoint_registry.settings import RegistrySettings, SidecarSettings
from endpoint_registry.sidecar import Action, Phase, Standing, decide
from tandem_common.errors import UserError

BASE: dict[str, Any] = {
    "job_id": "job", "run_uid": "run-1", "key": "gym_head_server", "urls": "http://gym:1",
    "lease_seconds": "30", "probe_failures": "3", "timeout_seconds": "100",
}  # fmt: skip


def settings(**more: Any) -> SidecarSettings:
    return SidecarSettings.load({**BASE, **more})


@pytest.mark.parametrize(
    ("phase", "failures", "since_write", "silent", "action"),
    [
        (Phase.STARTING, 0, 0, 0, Action.PUBLISH),
        (Phase.STARTING, 1, 10, 0, Action.ANNOUNCE),
        (Phase.STARTING, 1, 9, 0, Action.NOTHING),
        (Phase.STARTING, 1, 10, 100, Action.GIVE_UP),
        (Phase.STARTING, 0, 10, 100, Action.PUBLISH),
        (Phase.PUBLISHED, 0, 9, 0, Action.NOTHING),
        (Phase.PUBLISHED, 0, 10, 0, Action.RENEW),
        (Phase.PUBLISHED, 2, 10, 500, Action.RENEW),
        (Phase.PUBLISHED, 3, 0, 500, Action.WITHDRAW),
        (Phase.WITHDRAWN, 0, 0, 0, Action.PUBLISH),
        (Phase.WITHDRAWN, 9, 10, 99, Action.ANNOUNCE),
        (Phase.WITHDRAWN, 9, 0, 100, Action.GIVE_UP),
        (Phase.TAKEN, 0, 99, 500, Action.NOTHING),
    ],
)
def test_the_policy(
    phase: Phase, failures: int, since_write: float, silent: float, action: Action
) -> None:
    assert decide(Standing(phase, failures, since_write, silent), settings()) is action


def wrong(kind: type[RegistrySettings], **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        kind.load(flags)
    return str(caught.value)


def test_a_run_is_named_once() -> None:
    text = wrong(RegistrySettings, job_id="job")
    assert "RUN_OBJECT and ENDPOINT_REGISTRY_RUN_UID are both missing" in text
    text = wrong(RegistrySettings, job_id="job", run_uid="u", run_object="RayJob/x")
    assert "both set" in text


@pytest.mark.parametrize("word", ["x", "Pod/x", "RayJob/", "/x"])
def test_a_top_object_has_a_kind_and_a_name(word: str) -> None:
    assert "names no object" in wrong(RegistrySettings, job_id="job", run_object=word)


@pytest.mark.parametrize(
    ("key", "words", "value"),
    [
        ("gym_head_server", ["http://a"], "http://a"),
        ("vllm_base_urls", ["http://a"], '["http://a"]'),
        ("vllm_base_urls", ["http://a", "http://b"], '["http://a", "http://b"]'),
        ("vllm_base_urls", ['["http://a"]'], '["http://a"]'),
        ("other", ["a", "b"], '["a", "b"]'),
        ("other", ["a"], "a"),
    ],
)
def test_words_become_what_nemo_rl_reads(key: str, words: list[str], value: str) -> None:
    assert joined(key, words) == value
