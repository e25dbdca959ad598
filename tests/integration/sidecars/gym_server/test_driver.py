from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support.gym_run import Run, gone, until

pytestmark = pytest.mark.api_server

#: Stands for a training that goes on until it is told to stop.
GO_ON = "echo going on; while :; do sleep 0.1; done"


def announce(run: Run) -> None:
    run.registry("gym-server").publish("gym_server", run.gym_url)


def ready(run: Run) -> None:
    run.registry("gym-server").publish("gym_head_server", run.gym_url)


def both(run: Run) -> None:
    announce(run)
    ready(run)


def test_a_whole_run_ends_with_a_verdict(run: Run) -> None:
    gym = run.gym_server()
    driver = run.train(f'{run.telling()} printf "[%s]\\n" "$@"; while [ ! -e go ]; do sleep 0.1; '
                       f"done".replace("go ]", f"{run.folder}/go ]"))  # fmt: skip
    driver.await_output('"training"')
    values = run.values()
    assert values["gym_head_server"] == values["gym_server"] == run.gym_url
    assert json.loads(values["vllm_base_urls"]) == [f"{run.vllm.url}/v1"]
    assert f"[+env.disagg_job_id={run.id}]\n[+env.remote_gym_url={run.gym_url}]" in driver.output
    assert ("POST", "/v1/completions") in {call[:2] for call in run.vllm.seen}
    (run.folder / "go").touch()
    assert driver.code() == 0, driver.output
    values = run.values()
    assert values["verdict"] == "succeeded"
    assert "error" not in values
    # Withdrawn: nobody may start to use a vLLM that is gone.
    assert "vllm_base_urls" not in values
    assert gym.process.poll() is None


def test_without_a_gym_side_nothing_is_started(run: Run) -> None:
    started = run.folder / "started"
    driver = run.train(f"touch {started}", DRIVER_GYM_ANNOUNCED_SECONDS="1")
    assert driver.code() == 4
    message = (
        f"phase gym-announced: the Gym side: no key `gym_server` in ConfigMap {run.config_map}"
    )
    assert message in driver.output
    assert message in run.error()
    assert "DRIVER_GYM_ANNOUNCED_SECONDS" in driver.output
    assert not started.exists()


def test_an_announcement_of_a_former_run_is_none(run: Run) -> None:
    run.registry("gym-server", uid="before").publish("gym_server", "http://10.0.0.1:1")
    driver = run.train("true", DRIVER_GYM_ANNOUNCED_SECONDS="1")
    assert driver.code() == 4


def test_the_wait_is_told_while_it_lasts(run: Run) -> None:
    driver = run.train("true", DRIVER_GYM_ANNOUNCED_SECONDS="100")
    driver.await_output(r"gym-announced: waiting for key `gym_server`.*\(the Gym side\)")


def test_a_training_that_tells_no_vllm_is_ended_at_the_deadline(run: Run) -> None:
    announce(run)
    driver = run.train(f"echo pid $$; {GO_ON}", DRIVER_VLLM_URLS_SECONDS="1")
    pid = int(driver.await_output(r"pid (\d+)")[1])
    assert driver.code() == 4
    assert "phase vllm-urls: the RL side: no vLLM addresses" in run.error()
    assert gone(pid)


def test_a_vllm_that_answers_no_completion_is_not_published(run: Run) -> None:
    announce(run)
    run.vllm.answers["POST", "/v1/completions"] = (500, "EngineDeadError")
    driver = run.train(f"{run.telling()} {GO_ON}", DRIVER_VLLM_ANSWERS_SECONDS="1")
    assert driver.code() == 4
    assert "phase vllm-answers: the RL side: no completion from" in run.error()
    assert "EngineDeadError" in run.error()
    assert "vllm_base_urls" not in run.values()


def test_addresses_that_are_none_end_it_at_once(run: Run) -> None:
    announce(run)
    driver = run.train(f'echo "[\\"ftp://x\\"]" > "$TANDEM_VLLM_URLS_FILE"; {GO_ON}')
    assert driver.code() == 1
    assert "neither http nor https" in run.error()


def test_a_gym_side_that_never_gets_ready_ends_the_training(run: Run) -> None:
    announce(run)
    driver = run.train(f"echo pid $$; {run.telling()} {GO_ON}", DRIVER_GYM_READY_SECONDS="1")
    pid = int(driver.await_output(r"pid (\d+)")[1])
    assert driver.code() == 4
    message = (
        f"phase gym-ready: the Gym side: no key `gym_head_server` in ConfigMap {run.config_map}"
    )
    assert message in run.error()
    assert gone(pid)


def test_a_gym_side_elsewhere_than_announced_ends_the_training(run: Run) -> None:
    announce(run)
    run.registry("gym-server").publish("gym_head_server", "http://10.0.0.9:1")
    driver = run.train(f"{run.telling()} {GO_ON}")
    assert driver.code() == 1
    assert "and then published http://10.0.0.9:1" in run.error()


def test_the_training_may_write_its_addresses_into_the_registry_itself(run: Run) -> None:
    both(run)
    driver = run.train(GO_ON)
    driver.await_output(r"(?m)^going on$")
    # As NeMo RL's client does, whose entries name no writer and have no lease.
    run.patch({"vllm_base_urls": json.dumps([f"{run.vllm.url}/v1"])})
    driver.await_output('"training"')


def test_a_peers_error_ends_the_training_with_its_message(run: Run) -> None:
    both(run)
    stubborn = f"trap 'echo asked' TERM; {run.telling()} {GO_ON}"
    driver = run.train(stubborn, DRIVER_GRACE_SECONDS="0.5")
    driver.await_output('"training"')
    run.registry("gym-server").error("server vowels was ended by signal 9")
    assert driver.code() == 1
    assert "server vowels was ended by signal 9" in driver.output
    assert "\nasked\n" in driver.output
    assert "killing" in driver.output
    assert run.error() == "server vowels was ended by signal 9"


def test_a_peers_error_before_the_start_means_no_start(run: Run) -> None:
    run.registry("gym-server").error("the Gym config is wrong: a.b")
    started = run.folder / "started"
    driver = run.train(f"touch {started}")
    assert driver.code() == 1
    assert "the Gym config is wrong: a.b" in driver.output
    assert not started.exists()


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("echo last words; exit 3", 3, "the training command ended with code 3"),
        ("set -e; echo last words; false; echo never", 1, "ended with code 1"),
        ("set -o pipefail; (echo last words; exit 7) | cat", 7, "ended with code 7"),
        ("echo last words >&2; kill -9 $$", 137, "was ended by signal 9 (Killed)"),
    ],
)
def test_the_trainings_exit_code_is_the_drivers(
    run: Run, script: str, code: int, message: str
) -> None:
    both(run)
    wait = f"while [ ! -e {run.folder}/go ]; do sleep 0.1; done;"
    driver = run.train(f"{run.telling()} {wait} {script}")
    driver.await_output('"training"')
    (run.folder / "go").touch()
    assert driver.code() == code
    first, _, rest = run.error().partition("\n")
    assert message in first
    # Lists of Events show the first line alone.
    assert first.endswith(": last words")
    assert rest.endswith("last words")
    assert "verdict" not in run.values()


def test_nothing_that_the_training_said_is_told_on_where_it_must_not(run: Run) -> None:
    both(run)
    driver = run.train(
        f"{run.telling()} while [ ! -e {run.folder}/go ]; do sleep 0.1; done; echo secret; exit 3",
        DRIVER_ERROR_LINES="0",
    )
    driver.await_output('"training"')
    (run.folder / "go").touch()
    assert driver.code() == 3
    assert "ended with code 3" in run.error()
    assert "secret" not in run.error()


def test_a_training_that_ends_well_before_it_has_trained_has_failed(run: Run) -> None:
    announce(run)
    driver = run.train("echo usage")
    assert driver.code() == 1
    assert "ended with code 0" in run.error()
    assert "(in phase vllm-urls)" in run.error()


def test_a_stop_is_passed_on_and_told(run: Run) -> None:
    both(run)
    saving = f"trap 'echo saved; exit 0' TERM; {run.telling()} {GO_ON}"
    driver = run.train(saving)
    driver.await_output('"training"')
    driver.process.send_signal(signal.SIGTERM)
    assert driver.code() == 143
    assert "\nsaved\n" in driver.output
    assert "the driver was told to stop (SIGTERM) in phase training" in run.error()
    assert "vllm_base_urls" not in run.values()


def test_a_second_stop_does_not_wait_for_the_grace(run: Run) -> None:
    both(run)
    driver = run.train(
        f"trap 'echo asked' TERM; {run.telling()} {GO_ON}", DRIVER_GRACE_SECONDS="1000"
    )
    driver.await_output('"training"')
    driver.process.send_signal(signal.SIGTERM)
    driver.await_output(r"(?m)^asked$")
    driver.process.send_signal(signal.SIGINT)
    assert driver.code() == 143


def test_the_training_does_not_outlive_a_killed_driver(run: Run) -> None:
    both(run)
    driver = run.train(f"echo pid $$; {run.telling()} {GO_ON}")
    pid = int(driver.await_output(r"pid (\d+)")[1])
    driver.await_output('"training"')
    driver.process.kill()
    until(lambda: gone(pid), "the end of the training")


def test_a_gym_that_somebody_else_runs_needs_no_announcement(run: Run) -> None:
    run.vllm.answers["GET", "/gym/livez"] = (200, {})
    run.vllm.answers["GET", "/gym/readyz"] = (503, {})
    driver = run.train(f"{run.telling()} {GO_ON}", DRIVER_GYM_URL=f"{run.vllm.url}/gym/")
    driver.await_output(f'env.remote_gym_url={run.vllm.url}/gym"')
    driver.await_output(r"gym-ready: waiting .*/readyz: HTTP 503")
    run.vllm.answers["GET", "/gym/readyz"] = (200, {})
    driver.await_output('"training"')


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_written(run: Run) -> None:
    driver = run.driver(
        "not-a-program", DRIVER_GYM_URL="ftp://x", DRIVER_URLS_FILE="/not/there/x",
        DRIVER_GRACE_SECONDS="-1", ENDPOINT_REGISTRY_JOB_ID="Not_A_Label",
    )  # fmt: skip
    assert driver.code() == 2
    for part in ("not-a-program", "ftp", "/not/there", "DRIVER_GRACE_SECONDS", "Not_A_Label"):
        assert part in driver.output
    assert not run.registry().read().exists


def test_the_urls_file_is_that_of_this_attempt(run: Run, tmp_path: Path) -> None:
    both(run)
    file = tmp_path / "urls.json"
    file.write_text('["http://10.0.0.1:1"]', encoding="utf-8")
    driver = run.train(f"{run.telling()} {GO_ON}", DRIVER_URLS_FILE=str(file))
    driver.await_output('"training"')
    assert json.loads(run.await_value("vllm_base_urls")) == [f"{run.vllm.url}/v1"]
