"""Training, NeMo Gym and driver as one run on the real cluster: real Ray, vLLM and NeMo Gym."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import object_name
from peer_watcher.convert import VERDICT_ANNOTATION
from tandem.errors import UserError
from tandem.run.kube import get, kubectl
from tandem.run.metrics import first_and_last_reward, metrics_of
from tandem.run.start import has_ended, remove, start_driver
from tandem_trainer.metrics import LINE_PREFIX

pytestmark = pytest.mark.cluster

VARIANT = "disagg-rayclusters"
NAMESPACE = "tandem"
SIDES = ("rl", "gym")
RUN_ID = "disagg"
REGISTRY = object_name(RUN_ID)


@pytest.fixture
def run(platform: Path) -> Iterator[None]:
    """A run of the variant; gone afterwards."""
    assert platform.is_file()
    assert start_driver(VARIANT) == (NAMESPACE, "driver")
    yield
    remove(VARIANT)


def until(met: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds:g} s\n{story()}")
        time.sleep(1)


def story() -> str:
    """What a person would look at."""
    told = []
    for words in (
        ["get", "pods,jobs,rayclusters", "-n", NAMESPACE],
        ["get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp"],
        ["logs", "-n", NAMESPACE, "job/driver", "--tail=30"],
        ["logs", "-n", NAMESPACE, "--selector=ray.io/cluster=gym", "--tail=30"],
    ):
        try:
            told.append(kubectl(*words))
        except UserError as error:
            told.append(str(error))
    return "\n".join(told)


def driver() -> dict[str, Any]:
    return get("jobs.batch", NAMESPACE, name="driver") or {}


def ended() -> bool:
    return has_ended(driver())


def pods_that_run() -> list[str]:
    found = get("pods", NAMESPACE, selector=f"tandem.dev/run-id={RUN_ID}") or {"items": []}
    return [
        pod["metadata"]["name"]
        for pod in found["items"]
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]


def sides_there() -> list[str]:
    return [name for name in SIDES if get("rayclusters.ray.io", NAMESPACE, name=name)]


def test_it_trains_with_gym_and_leaves_nothing_but_its_verdict(run: None) -> None:
    assert run is None
    until(ended, "the driver's end", 900)
    log = kubectl("logs", "-n", NAMESPACE, "job/driver")
    assert driver()["status"].get("succeeded") == 1, log[-4000:]

    lines = [
        line.removeprefix(LINE_PREFIX) for line in log.splitlines() if line.startswith(LINE_PREFIX)
    ]
    steps = [step for line in lines if (step := metrics_of(line))]
    assert len(steps) >= 15
    versions = [step["weight_version"] for step in steps]
    assert len(set(versions)) == len(versions), "each step trains on weights of its own"
    rewards = first_and_last_reward(steps)
    assert rewards is not None
    assert rewards[1] >= 2 * rewards[0]

    until(lambda: not (sides_there() or pods_that_run()), "both sides and all pods gone", 90)
    assert get("configmaps", NAMESPACE, name=REGISTRY) is None
    verdict = json.loads(driver()["metadata"]["annotations"][VERDICT_ANNOTATION])
    assert verdict["rule"] == "succeeded"

    # What it has left makes room for the next one.
    before = driver()["metadata"]["uid"]
    start_driver(VARIANT)
    assert driver()["metadata"]["uid"] != before


def test_the_death_of_one_side_ends_the_other_and_is_told(run: None) -> None:
    assert run is None
    until(lambda: len(sides_there()) == len(SIDES), "both sides", 60)
    with pytest.raises(UserError, match=f"a run of {VARIANT} is still there"):
        start_driver(VARIANT)
    until(lambda: bool(get("configmaps", NAMESPACE, name=REGISTRY)), "Gym's announcement", 300)
    # The watchers have seen both sides up: from here on an absence is a death.
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=HeadPodReady", "raycluster/rl", "raycluster/gym",
        "--timeout=300s", timeout=310,
    )  # fmt: skip
    kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Ready", "pods",
        "--selector=app.kubernetes.io/name=peer-watcher", "--timeout=120s", timeout=130,
    )  # fmt: skip
    kubectl("delete", "raycluster", "gym", "-n", NAMESPACE, "--wait=false")
    until(lambda: not (sides_there() or pods_that_run()), "all of the run gone", 120)
    assert not (driver().get("status") or {}).get("succeeded")
    events = get("events", NAMESPACE, selector="") or {"items": []}
    told = [each["message"] for each in events["items"] if each.get("reason") == "RunFailed"]
    assert any("RayCluster/gym" in message for message in told), told
