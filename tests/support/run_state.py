"""What of a run is on the cluster, and waiting for it to be whole."""

from __future__ import annotations

from collections import Counter

from endpoint_registry.records import object_name
from tandem.run.kube import kubectl
from tandem.run.remove import served
from tandem.run.shapes import BELONGINGS, RUN_ID_LABEL, WORKLOADS

WATCHERS = "app.kubernetes.io/name=peer-watcher"


def _kinds() -> str:
    return ",".join([*(each.words for each in served((*WORKLOADS, *BELONGINGS))), "pods"])


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
