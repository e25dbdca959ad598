"""Who may do what, asked of a real API server with RBAC on: all that is needed, and no more.

The rights are those of the chart and the components as they render, for two runs side by side
in one namespace. Every verb on every resource is asked for each account and each run, so a
right too many fails like one too few.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import fake_disagg
from support.fault_proxy import FaultProxy
from support.stage import DRIVER, GYM, MEMBERS, RL, Hands, Stage
from tandem.paths import ROOT
from tandem.process import run
from tandem.render import OVERLAYS, kustomize, render_variant
from tandem.yamls import dump, load_all
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode
from tandem_common.kube import CONFIGMAPS, JOBS, RAYCLUSTERS, Client, Forbidden
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

VERBS = (
    "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
)  # fmt: skip
NAMED = ("get", "list", "watch", "patch", "delete")
#: Everything that could tempt: group, resource, subresource.
RESOURCES = (
    ("", "configmaps", ""), ("", "pods", ""), ("", "pods", "log"), ("", "pods", "exec"),
    ("", "secrets", ""), ("", "serviceaccounts", ""), ("", "serviceaccounts", "token"),
    ("", "services", ""), ("", "events", ""), ("events.k8s.io", "events", ""),
    ("batch", "jobs", ""), ("ray.io", "rayclusters", ""), ("ray.io", "rayclusters", "status"),
    ("ray.io", "rayjobs", ""), ("jobset.x-k8s.io", "jobsets", ""),
    ("rbac.authorization.k8s.io", "roles", ""),
    ("rbac.authorization.k8s.io", "rolebindings", ""),
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Right:
    """One thing that may be done to one object."""

    verb: str
    resource: str
    name: str


def rights(resource: str, verbs: tuple[str, ...], *names: str) -> set[Right]:
    return {Right(verb, resource, name) for verb in verbs for name in names}


#: Rights that say nothing about names: asked for with one, they hold for any.
def unnamed(resource: str, *verbs: str) -> set[Right]:
    return {Right(verb, resource, "") for verb in verbs}


REGISTRY = "nemo-rl-endpoints-run-7"
TRAINING = (
    rights("configmaps", NAMED, REGISTRY)
    | unnamed("configmaps", "create")
    | rights("rayclusters.ray.io", ("get",), "rl")
)
JOBSET_REGISTRY = "nemo-rl-endpoints-disagg-jobset"
JOBSET_TRAINING = (
    rights("configmaps", NAMED, JOBSET_REGISTRY)
    | unnamed("configmaps", "create")
    | rights("jobsets.jobset.x-k8s.io", ("get",), "run")
)
ALLOWED: dict[str, set[Right]] = {
    "run-rl": TRAINING,
    "run-gym": TRAINING,
    "run-driver": TRAINING,
    "peer-watcher-rayclusters": (
        rights("configmaps", ("get", "list", "watch", "delete"), REGISTRY)
        | rights("rayclusters.ray.io", NAMED, "rl", "gym")
        | rights("jobs.batch", NAMED, "driver")
        | unnamed("pods", "list", "watch")
        | unnamed("events.events.k8s.io", "create")
    ),
    "peer-watcher-rayjob": (
        rights("configmaps", ("get", "list", "watch", "delete"), "nemo-rl-endpoints-monolithic")
        | rights("rayjobs.ray.io", NAMED, "monolithic")
        | unnamed("pods", "list", "watch")
        | unnamed("events.events.k8s.io", "create")
    ),
    "endpoint-registry-rayjob": (
        rights("configmaps", NAMED, "nemo-rl-endpoints-monolithic")
        | unnamed("configmaps", "create")
        | rights("rayjobs.ray.io", ("get",), "monolithic")
    ),
    "rl-jobset": JOBSET_TRAINING,
    "gym-jobset": JOBSET_TRAINING,
    "driver-jobset": JOBSET_TRAINING,
    "peer-watcher-jobset": (
        rights("configmaps", ("get", "list", "watch", "delete"), JOBSET_REGISTRY)
        | rights("jobsets.jobset.x-k8s.io", NAMED, "run")
        | unnamed("pods", "list", "watch")
        | unnamed("events.events.k8s.io", "create")
    ),
    # Fills the empty Secret that it is given, and no other.
    "ray-token": rights("secrets", ("get", "patch"), "ray-token"),
    # The chart's accounts, for runs that do not talk to the API at all.
    "rl": set(), "gym": set(), "driver": set(), "pool": set(), "default": set(),
}  # fmt: skip
OBJECTS = {
    "configmaps": [
        REGISTRY, "nemo-rl-endpoints-run-8", "nemo-rl-endpoints-monolithic", "kube-root-ca.crt",
        JOBSET_REGISTRY,
    ],
    "jobsets.jobset.x-k8s.io": ["run", "run-two"],
    "secrets": ["ray-token", "ray-token-two"],
    "rayjobs.ray.io": ["monolithic", "other"],
    "rayclusters.ray.io": ["rl", "gym", "rl-two", "gym-two"],
    "jobs.batch": ["driver", "driver-two", "peer-watcher-rl"],
}  # fmt: skip


def rayjob_variant(folder: Path) -> list[dict[str, Any]]:
    """Return a variant with one RayJob and both components for it."""
    folder.mkdir()
    paths = (
        OVERLAYS / "monolithic-rayjob",
        fake_disagg.COMPONENTS / "peer-watcher" / "rayjob",
        fake_disagg.COMPONENTS / "endpoint-registry" / "rayjob",
    )
    variant, *components = (os.path.relpath(path, folder.resolve()) for path in paths)
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "namespace": "tandem", "resources": [variant], "components": components,
    }  # fmt: skip
    (folder / "kustomization.yaml").write_text(dump(overlay))
    return kustomize(folder)


@pytest.fixture
def granted(api_server: ControlPlane, namespace: str, kinds: None, tmp_path: Path) -> str:
    """The namespace with the accounts and rights of four runs in it."""
    assert kinds is None
    chart = run(
        ["helm", "template", "rl-platform", str(ROOT / "charts" / "rl-platform"),
         "--set", f"namespace={namespace}", "--show-only", "templates/roles.yaml",
         "--show-only", "templates/serviceaccounts.yaml"],
        timeout=60,
    )  # fmt: skip
    components = ["peer-watcher/rayclusters", "run-accounts"]
    one = fake_disagg.render(tmp_path / "one", components)
    two = fake_disagg.render_renamed(tmp_path / "two", components, "-two")
    rayjob = rayjob_variant(tmp_path / "rayjob")
    jobset = render_variant("disagg-jobset")
    kinds_of_rights = ("ServiceAccount", "Role", "RoleBinding")
    objects = [
        obj for obj in [*load_all(chart), *one, *two, *rayjob, *jobset]
        if obj["kind"] in kinds_of_rights
    ]  # fmt: skip
    for obj in objects:
        obj["metadata"]["namespace"] = namespace
        for subject in obj.get("subjects", []):
            assert subject["namespace"] == "tandem"
            subject["namespace"] = namespace
        # The second run has another id, too.
        if obj["metadata"]["name"].endswith("-two"):
            obj.update(json.loads(json.dumps(obj).replace("endpoints-run-7", "endpoints-run-8")))
    bundle = {"apiVersion": "v1", "kind": "List", "items": objects}
    run(
        ["kubectl", f"--kubeconfig={api_server.kubeconfig}", "apply", "-n", namespace, "-f", "-"],
        timeout=60, stdin=json.dumps(bundle),
    )  # fmt: skip
    return namespace


def may(plane: ControlPlane, account: str, namespace: str, **attributes: str) -> bool:
    """Ask the API server itself."""
    answer = plane.api.call(
        "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}",
                           "system:authenticated"],
                "resourceAttributes": {"namespace": namespace, **attributes},
            },
        },
    )  # fmt: skip
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("account", sorted(ALLOWED))
def test_an_account_may_do_what_it_needs_and_nothing_else(
    api_server: ControlPlane, granted: str, account: str
) -> None:
    found: set[Right] = set()
    asked = 0
    for (group, resource, subresource), verb in itertools.product(RESOURCES, VERBS):
        full = ".".join(filter(None, (resource, group)))
        part = f"{full}/{subresource}" if subresource else full
        attributes = {"group": group, "resource": resource, "verb": verb}
        if subresource:
            attributes["subresource"] = subresource
        asked += 1
        if may(api_server, account, granted, **attributes):
            found.add(Right(verb, part, ""))
            continue
        for name in OBJECTS.get(part, ["any"]):
            asked += 1
            if may(api_server, account, granted, name=name, **attributes):
                found.add(Right(verb, part, name))
    assert asked > 150
    assert found == ALLOWED[account]


@pytest.mark.parametrize("account", sorted(ALLOWED))
def test_beyond_the_namespace_there_is_only_its_own_object(
    api_server: ControlPlane, granted: str, account: str
) -> None:
    for verb in VERBS:
        for name in (granted, "kube-system"):
            allowed = may(
                api_server, account, granted if name == granted else "kube-system",
                group="", resource="namespaces", verb=verb, name=name,
            )  # fmt: skip
            mine = account.startswith("peer-watcher-") and (verb, name) == ("get", granted)
            assert allowed is mine, f"{verb} namespace {name}"
    for group, resource, _ in RESOURCES:
        assert not may(
            api_server, account, "kube-system", group=group, resource=resource, verb="list"
        )


@pytest.fixture
def as_account(
    api_server: ControlPlane, granted: str, proxy: FaultProxy
) -> Iterator[Callable[[str], Client]]:
    """Return a function that makes a client with an account's own token."""
    clients: list[Client] = []

    def make(account: str) -> Client:
        answer: Any = api_server.api.call(
            "POST", f"/api/v1/namespaces/{granted}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )  # fmt: skip
        clients.append(Client(proxy.config(granted, token=str(answer["status"]["token"]))))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_a_watcher_can_do_all_its_work_with_its_own_account(
    stage: Stage, hands: Callable[..., Hands], as_account: Callable[[str], Client],
    proxy: FaultProxy,
) -> None:  # fmt: skip
    heads = stage.run_up()
    account = as_account("peer-watcher-rayclusters")
    watcher = hands(through=account)
    watcher.until_up(RL, GYM, DRIVER)
    # A registry that goes brings an alert, which is an Event.
    stage.client.delete(CONFIGMAPS, MEMBERS.registry)
    watcher.until(lambda: "registry-missing" in watcher.alerts(), "alert")
    watcher.until(lambda: len(stage.events()) == 1, "told")
    stage.registry()
    watcher.until(lambda: not watcher.alerts(), "withdrawn")
    stage.pod(heads[GYM], phase="Failed")
    watcher.until(lambda: not watcher.alive, "torn down")
    assert watcher.code is ExitCode.OK
    assert stage.gone(RL, GYM, DRIVER)
    assert proxy.count("watch", "pods") >= 1, "it polled: watching was denied"


@pytest.mark.parametrize("account", ["run-rl", "run-gym", "run-driver"])
def test_training_code_can_neither_delete_clusters_nor_read_other_runs(
    stage: Stage, as_account: Callable[[str], Client], account: str
) -> None:
    stage.run_up()
    other = "nemo-rl-endpoints-run-8"
    stage.client.create(CONFIGMAPS, {"metadata": {"name": other}, "data": {"secret": "x"}})
    client = as_account(account)
    # Rights reach the authorizer's cache within a moment.
    deadline = Deadline(10)
    while True:
        try:
            assert client.get(CONFIGMAPS, MEMBERS.registry)["metadata"]["name"]
            break
        except Forbidden:
            assert not deadline.passed
            time.sleep(0.1)
    for attempt in (
        lambda: client.delete(RAYCLUSTERS, "gym"),
        lambda: client.delete(RAYCLUSTERS, "rl"),
        lambda: client.delete(JOBS, "driver"),
        lambda: client.get(CONFIGMAPS, other),
        lambda: client.list(CONFIGMAPS),
        lambda: client.delete(CONFIGMAPS, other),
    ):
        with pytest.raises(Forbidden):
            attempt()
    assert stage.get(GYM)
    assert stage.get(RL)
