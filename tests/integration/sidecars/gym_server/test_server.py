from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from support.fake_vllm import FakeVllm
from support.gym_run import CONFIG, Run, gone, until

pytestmark = pytest.mark.api_server


def publish(run: Run, *urls: str) -> None:
    run.registry("rl").publish("vllm_base_urls", json.dumps(urls or [f"{run.vllm.url}/v1"]))


def test_it_serves_once_everything_answers_and_not_before(run: Run) -> None:
    go = run.folder / "ready"
    gym = run.gym_server(f"{CONFIG}ready_file: {go}\n")
    assert run.await_value("gym_server") == run.gym_url
    publish(run)
    gym.await_output("fake Gym: servers started")
    gym.await_output(r"gym-ready: waiting .*/readyz: HTTP 503")
    assert "gym_head_server" not in run.values()
    assert run.get("/readyz") == (503, '{"ok": false, "reasons": ["in phase gym-ready"]}\n')
    assert run.get("/healthz")[0] == 200
    go.touch()
    assert run.await_value("gym_head_server") == run.gym_url
    assert run.get("/readyz")[0] == 200
    metrics = run.get("/metrics")[1]
    assert 'gym_server_phase{phase="serving"} 1.0' in metrics
    assert re.search(r'gym_server_phase_seconds\{phase="gym-ready"\} \d', metrics)
    assert "gym_server_vllm_urls 1.0" in metrics


def test_told_to_stop_it_withdraws_and_ends_everything_in_good_order(run: Run) -> None:
    gym = run.serving()
    pids = run.servers().values()
    gym.process.send_signal(signal.SIGTERM)
    assert gym.code() == 0, gym.output
    assert "fake Gym: ended in good order" in gym.output
    assert all(gone(pid) for pid in pids)
    assert not {"gym_server", "gym_head_server", "error"} & run.values().keys()


def test_a_stop_before_it_serves_is_obeyed_at_once(run: Run) -> None:
    gym = run.gym_server()
    run.await_value("gym_server")
    gym.process.send_signal(signal.SIGTERM)
    assert gym.code() == 143
    assert "gym_server" not in run.values()


def test_a_stop_while_it_still_imports_is_obeyed(run: Run) -> None:
    gym = run.gym_server()
    # From the moment on at which the handler is there, which is long before the imports' end.
    until(lambda: _catches_term(gym.process.pid), "the handler")
    gym.process.send_signal(signal.SIGTERM)
    assert gym.code() == 143
    assert "Traceback" not in gym.output
    assert not run.registry().read().exists


def _catches_term(pid: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:  # noqa: PTH123
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


def test_a_wrong_config_is_told_before_anything_is_waited_for(run: Run) -> None:
    gym = run.gym_server(CONFIG + "config_paths: [gym/not-there.yaml]\nx: {y: [1, '${gone}']}\n")
    assert gym.code() == 2
    assert "config_paths[0]: 'gym/not-there.yaml' was not found" in gym.output
    assert "config_paths[0]: 'gym/not-there.yaml' was not found" in run.error()
    assert "gym_server" not in run.values()


def test_strict_names_what_cannot_be_resolved(run: Run) -> None:
    gym = run.gym_server(CONFIG + "x: {y: [1, '${gone}']}\n", "--strict")
    assert gym.code() == 2
    assert "x.y[1]: ${gone} cannot be resolved here" in run.error()


def test_without_strict_it_is_dropped_and_logged(run: Run) -> None:
    gym = run.gym_server(CONFIG + "x: {y: [1, '${gone}']}\n")
    gym.await_output(r'"path": "x.y\[1\]".*"key_dropped"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("refused: 1\n", "ConfigError: 'refused' must not be 1"),
        ("unresolved: 1\n", "unresolved: Interpolation key 'x' not found"),
    ],
)
def test_a_config_that_gym_refuses_ends_it_while_it_waits(
    run: Run, text: str, message: str
) -> None:
    gym = run.gym_server(CONFIG + text)
    assert gym.code() == 2
    assert message in gym.output
    assert message in run.error()


def test_check_judges_a_config_and_publishes_nothing(run: Run) -> None:
    right = run.gym_server(CONFIG, "--check")
    assert right.code() == 0, right.output
    assert "the config is right" in right.output
    wrong = run.gym_server(CONFIG + "refused: 1\n", "--check")
    assert wrong.code() == 2
    assert not run.registry().read().exists


def test_an_rl_side_that_never_comes_is_named_at_the_deadline(run: Run) -> None:
    gym = run.gym_server(GYM_SERVER_VLLM_URLS_SECONDS="1")
    assert gym.code() == 4
    message = f"phase vllm-urls: the RL side: no key `vllm_base_urls` in ConfigMap {run.config_map}"
    assert message in gym.output
    assert message in run.error()


def test_a_judge_is_waited_for_and_told_to_gym(run: Run) -> None:
    token = run.folder / "token"
    token.write_text("bearer\n")
    gym = run.gym_server(
        GYM_SERVER_JUDGES="judge", GYM_SERVER_JUDGE_TOKEN_FILE=str(token),
    )  # fmt: skip
    publish(run)
    gym.await_output(r'"phase": "judge-urls"')
    assert "gym_head_server" not in run.values()
    run.registry("judge").publish("judge_base_url", "http://judge:8000/v1")
    run.await_value("gym_head_server")
    [written] = run.folder.rglob("gym.json")
    told = json.loads(written.read_text())
    assert told["judge_base_url"] == "http://judge:8000/v1"
    assert (told["judge_api_key"], told["judge_model_name"]) == ("bearer", "judge")


def test_a_judge_that_never_comes_is_named_at_the_deadline(run: Run) -> None:
    gym = run.gym_server(GYM_SERVER_JUDGES="judge", GYM_SERVER_JUDGE_URLS_SECONDS="1")
    publish(run)
    assert gym.code() == 4
    message = (
        f"phase judge-urls: the pool judge: no key `judge_base_url` in ConfigMap {run.config_map}"
    )
    assert message in run.error()


def test_a_vllm_that_does_not_answer_is_named_at_the_deadline(run: Run) -> None:
    run.vllm.answers["POST", "/v1/completions"] = (500, "EngineDeadError")
    gym = run.gym_server(GYM_SERVER_VLLM_ANSWERS_SECONDS="1")
    publish(run)
    assert gym.code() == 4
    assert f"phase vllm-answers: the RL side: no completion from {run.vllm.url}/v1" in run.error()
    assert "EngineDeadError" in run.error()


def test_a_vllm_with_another_model_ends_it_at_once(run: Run) -> None:
    gym = run.gym_server(GYM_SERVER_MODEL="big")
    publish(run)
    assert gym.code() == 1
    assert "it serves policy, other, not 'big'" in run.error()


def test_a_gym_that_never_gets_ready_is_named_at_the_deadline(run: Run) -> None:
    gym = run.gym_server(CONFIG + "start: hang\n", GYM_SERVER_GYM_READY_SECONDS="2")
    publish(run)
    assert gym.code() == 4
    assert "phase gym-ready: the Gym side, this pod: no 200 from /readyz" in run.error()
    assert "fake Gym: ended in good order" in gym.output


def test_a_gym_that_does_not_start_ends_it_with_its_last_words(run: Run) -> None:
    gym = run.gym_server(CONFIG + "start: fail\n")
    publish(run)
    assert gym.code() == 1
    assert "NeMo Gym ended with code 1" in run.error()
    assert "Process `vowels` finished unexpectedly!" in run.error()


def test_the_death_of_one_server_ends_everything_with_its_name(run: Run) -> None:
    gym = run.serving()
    pids = run.servers()
    os.kill(pids["vowels"], signal.SIGKILL)
    assert gym.code() == 1
    first = run.error().partition("\n")[0]
    assert "NeMo Gym: server vowels was ended by signal 9 (Killed)" in first
    assert all(gone(pid) for pid in pids.values())


def test_the_death_of_gym_itself_ends_everything(run: Run) -> None:
    gym = run.serving()
    pids = run.servers()
    (parent,) = {_parent(pid) for pid in pids.values()}
    os.kill(parent, signal.SIGKILL)
    assert gym.code() == 1
    assert "NeMo Gym was ended by signal 9 (Killed)" in run.error()
    assert all(gone(pid) for pid in pids.values())


def test_the_death_of_ray_ends_everything_in_every_phase(run: Run) -> None:
    file = run.folder / "ray-pid"
    command = f"echo $$ > {file}.new && mv {file}.new {file}; echo GCS is up; exec sleep 300"
    waiting = run.gym_server(GYM_SERVER_RAY_COMMAND=command)
    run.await_value("gym_server")
    os.kill(int(until(file.exists) and file.read_text(encoding="utf-8")), signal.SIGKILL)
    assert waiting.code() == 1
    assert "Ray's head of the Gym side was ended by signal 9 (Killed)" in run.error()
    assert "GCS is up" in run.error()


def test_ray_is_there_until_gym_has_ended(run: Run) -> None:
    gym = run.serving(
        GYM_SERVER_RAY_COMMAND="trap 'echo Ray ended; exit 0' TERM; while :; do sleep 0.1; done"
    )
    gym.process.send_signal(signal.SIGTERM)
    assert gym.code() == 0, gym.output
    assert gym.output.index("fake Gym: ended in good order") < gym.output.index("Ray ended")


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123
        return int(stat.read().rpartition(")")[2].split()[1])


def test_a_peers_error_ends_it_in_every_phase(run: Run) -> None:
    waiting = run.gym_server()
    run.await_value("gym_server")
    run.registry("driver").error("no GPU in sight")
    assert waiting.code() == 1
    assert "no GPU in sight" in waiting.output
    assert run.error() == "no GPU in sight"


def test_a_peers_error_ends_a_serving_one_in_good_order(run: Run) -> None:
    gym = run.serving()
    run.registry("driver").error("the training command ended with code 3")
    assert gym.code() == 1
    assert "fake Gym: ended in good order" in gym.output


def test_a_run_that_has_failed_does_not_wait_for_rollouts(run: Run) -> None:
    gym = run.serving(CONFIG + "stop: hang\n", GYM_SERVER_DRAIN_SECONDS="300")
    pids = run.servers()
    run.registry("driver").error("the training command ended with code 3")
    assert gym.code() == 1
    assert "fake Gym: ended in good order" not in gym.output
    assert all(gone(pid) for pid in pids.values())


def test_a_run_that_fails_while_gym_drains_cuts_that_short(run: Run) -> None:
    gym = run.serving(CONFIG + "stop: hang\n", GYM_SERVER_DRAIN_SECONDS="300")
    gym.process.send_signal(signal.SIGTERM)
    gym.await_output("stop_requested")
    # As a driver does that is ended with its run.
    run.registry("driver").error("the driver was told to stop")
    assert gym.code() == 143
    assert "fake Gym: ended in good order" not in gym.output


def test_a_new_vllm_address_is_handed_on(run: Run) -> None:
    gym = run.serving()
    file = run.folder / "work" / "vllm-endpoint"
    assert file.read_text(encoding="utf-8") == f"{run.vllm.url}/v1\n"
    config = json.loads((run.folder / "work" / "gym.json").read_text(encoding="utf-8"))
    model = config["policy_model"]["responses_api_models"]["vllm_model"]
    assert model["endpoint_file"] == str(file)
    other = FakeVllm()
    other.close()
    publish(run, f"{other.url}/v1")
    until(lambda: file.read_text(encoding="utf-8") == f"{other.url}/v1\n", "the new address")
    publish(run, "http://10.0.0.1:1/v1", "http://10.0.0.2:1/v1")
    gym.await_output("vllm_urls_not_followed")
    assert file.read_text(encoding="utf-8") == f"{other.url}/v1\n"


def test_what_it_published_is_believed_while_it_lives_and_not_for_long_after(run: Run) -> None:
    gym = run.serving(GYM_SERVER_LEASE_SECONDS="3")
    first = run.registry().read().entries["gym_head_server"].record
    assert first is not None

    def renewed() -> bool:
        now = run.registry().read().entries["gym_head_server"].record
        return now is not None and now.beat > first.beat + 2

    until(renewed, "a renewal")
    pids = run.servers()
    (parent,) = {_parent(pid) for pid in pids.values()}
    gym.process.kill()
    until(lambda: "gym_head_server" not in run.values(), "the end of the lease")
    # NeMo Gym hears of it too.
    until(lambda: gone(parent), "the end of NeMo Gym")
    until(lambda: all(gone(pid) for pid in pids.values()), "the end of its servers")


def test_it_answers_health_checks_while_it_waits(run: Run) -> None:
    run.gym_server()
    run.await_value("gym_server")
    deadline = time.monotonic() + 30
    while run.get("/readyz")[0] != 503:
        assert time.monotonic() < deadline
    assert run.get("/healthz")[0] == 200


def test_without_rights_it_ends_and_says_which_are_missing(run: Run) -> None:
    gym = run.gym_server(KUBECONFIG=run.powerless())
    assert gym.code() == 3
    assert "configmaps" in gym.output
    assert "fix:" in gym.output
    assert "Traceback" not in gym.output
