"""The sidecar's policy, and its settings."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from endpoint_registry.records import joined
from endpoint_registry.settings import RegistrySettings, SidecarSettings
from endpoint_registry.sidecar import Action, Phase, Standing, decide, http_probe
from tandem_common.errors import ExitCode, UserError

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
    text = wrong(
        RegistrySettings, job_id="job", run_object="RayJob/x", run_started="2026-01-01T00:00:00Z"
    )
    assert "RUN_STARTED is set beside" in text
    assert "RUN_STARTED" not in wrong(RegistrySettings, run_started="2026-01-01T00:00:00Z")
    assert "--run-started='yesterday'" in wrong(
        RegistrySettings, job_id="job", run_uid="u", run_started="yesterday"
    )


@pytest.mark.parametrize(
    ("probe", "timeout", "lease", "right"),
    [
        ("5", "5", "20", True), ("10", "10", "30", True), ("10.1", "10", "30", False),
        ("5", "30", "20", False), ("30", "5", "20", False), ("5", "5", "10", False),
    ],
)  # fmt: skip
def test_a_probe_leaves_time_to_renew_the_lease(
    probe: str, timeout: str, lease: str, *, right: bool
) -> None:
    times = {"probe_seconds": probe, "probe_timeout_seconds": timeout, "lease_seconds": lease}
    if right:
        settings(**times)
        return
    text = wrong(SidecarSettings, **{**BASE, **times})
    for part in (f"PROBE_SECONDS={probe}", f"PROBE_TIMEOUT_SECONDS={timeout}", "two thirds"):
        assert part in text


def test_all_that_is_wrong_with_a_sidecar_is_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        SidecarSettings.load(
            {**BASE, "job_id": "A_B", "urls": "gym:1", "lease_seconds": "5", "http_port": "-1"}
        )
    assert caught.value.code == ExitCode.USAGE
    text = str(caught.value)
    for part in ("--job-id='A_B'", "gym_head_server='gym:1'", "two thirds", "--http-port='-1'"):
        assert part in text
    assert len(caught.value.problems) == 4
    assert "'no/key'" in wrong(SidecarSettings, **{**BASE, "key": "no/key"})


def test_one_limit_holds_for_all_addresses_of_a_probe() -> None:
    """Slow ones, one after the other, must not outlast the lease."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            released.wait(0.4)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    released = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        how = {"key": "vllm_base_urls", "probe_timeout_seconds": "1"}
        few, many = (settings(urls=",".join([url] * count), **how) for count in (1, 4))
        assert http_probe(few)() == ""
        assert "Timeout" in http_probe(many)()
        released.set()
        server.shutdown()


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
