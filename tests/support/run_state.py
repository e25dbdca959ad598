"""What of a run is on the cluster, and waiting for it to be whole."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from endpoint_registry.records import object_name
from peer_watcher.convert import RUN_ID_LABEL
from tandem.run.kube import kubectl
from tandem.run.phases import states_of
from tandem.run.remove import names_of, things_of
from tandem.run.shapes import (
    BELONGINGS,
    NAME_LABEL,
    WATCHER,
    WORKLOADS,
    made_by_nobody,
    pods_in,
    workloads_of,
)
from tandem_common.kube.resources import PODS

WATCHERS = f"{NAME_LABEL}={WATCHER}"


def _kinds() -> str:
    return names_of((*WORKLOADS, *BELONGINGS, PODS))


def left_of(namespace: str, run_id: str) -> list[str]:
    """Return what there is of a run, as kind/name."""
    said = kubectl(
        "get", _kinds(), "-n", namespace, f"--selector={RUN_ID_LABEL}={run_id}", "-o", "name",
        "--ignore-not-found",
    )  # fmt: skip
    registry = kubectl(
        "get", "configmap", object_name(run_id), "-n", namespace, "--ignore-not-found", "-o", "name"
    )
    return [*said.split(), *registry.split()]


def namespace_holds(namespace: str) -> Counter[str]:
    """Return how many objects of each kind are in a namespace, whatever they are labelled."""
    said = kubectl("get", _kinds(), "-n", namespace, "-o", "name", "--ignore-not-found")
    return Counter(name.partition("/")[0] for name in said.split())


def wait_until_up(namespace: str, run_id: str, seconds: float = 300.0) -> None:
    """Wait until every pod of a run is there and Ready, its watchers' too."""
    deadline = time.monotonic() + seconds
    while not _is_up(things_of(namespace, run_id)):
        assert time.monotonic() < deadline, f"run {run_id} is not up after {seconds:g} s"
        time.sleep(1)


def _is_up(things: list[dict[str, Any]]) -> bool:
    states = states_of(made_by_nobody(workloads_of(things)), pods_in(things))
    roles = {state.group.role for state in states}
    ready = all(state.phase == "Running" and state.ready == state.wanted for state in states)
    return ready and roles >= {"rl", "gym", "driver", "watcher"}


def wait_for_gym(namespace: str, run_id: str) -> None:
    """Wait until Gym serves, and everything that has to be Ready is: an absence is a death now."""
    registry = f"configmap/{object_name(run_id)}"
    kubectl("wait", "-n", namespace, "--for=create", registry, "--timeout=300s", timeout=310)
    kubectl(
        "wait", "-n", namespace, registry, "--for=jsonpath={.data.gym_head_server}",
        "--timeout=300s", timeout=310,
    )  # fmt: skip
    for more in (WATCHERS, "tandem.dev/role=rl", "tandem.dev/role=gym"):
        kubectl(
            "wait", "-n", namespace, "--for=condition=Ready", "pods",
            f"--selector={more},{RUN_ID_LABEL}={run_id}", "--timeout=300s", timeout=310,
        )  # fmt: skip
