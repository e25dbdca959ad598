"""What the API server refuses of runs, and in which words: those of `make explain`.

A control plane of its own: the policy is that of a cluster with KAI, and other suites share one
without. Nothing of KAI is there, and nothing of it is needed to refuse.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from support.kai_cluster import admission_lifted
from support.kai_crds import FAKE_PODGROUPS
from tandem import crds
from tandem.explain.facts import Facts, read_platform
from tandem.explain.report import report_of
from tandem.explain.words import rules
from tandem.paths import ROOT
from tandem.policy import pods_of
from tandem.process import run, tool_env
from tandem.render import render_variant, variants
from tandem.yamls import dump, load_all
from tandem_host.control_plane import ControlPlane

pytestmark = pytest.mark.api_server

Object = dict[str, Any]

CHART = ROOT / "charts" / "rl-platform"
TEAM = "team-b"
ENDLESS = {"gpu": -1, "cpu": -1, "memory": -1}
VALUES: Object = {
    "queues": {
        "enabled": True,
        "runs": ["high-prio", "low-prio"],
        "namespaces": {TEAM: ["low-prio"]},
        "tree": [
            {"name": name, **({"parent": parent} if parent else {}),
             "quota": ENDLESS, "limit": ENDLESS}
            for name, parent in (("top", ""), ("research", "top"), ("alone", ""),
                                 ("high-prio", "research"), ("low-prio", "research"))
        ],
    },
    "limits": {"gpusPerNode": 8},
}  # fmt: skip
RUN = {"tandem.dev/run-id": "r1"}
LOW = {**RUN, "kai.scheduler/queue": "low-prio"}
#: Of the API server; a policy that it was just told of takes a moment.
ACTIVE_SECONDS = 30


def platform_objects(values: Object, folder: Path) -> list[Object]:
    """The chart's objects, but for those whose CRDs are KAI's."""
    path = folder / "values.yaml"
    path.write_text(dump(values), encoding="utf-8")
    said = run(["helm", "template", "x", CHART, "-f", path], timeout=60)
    return [o for o in load_all(said) if o["kind"] not in ("Queue", "Topology")]


def apply(*objects: Object) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    run(["kubectl", "apply", "-f", "-"], timeout=60, stdin=json.dumps(listed))


def send(obj: Object, *verb: str) -> subprocess.CompletedProcess[str]:
    words = verb or ("create", "--dry-run=server")
    return subprocess.run(
        ["kubectl", *words, "-f", "-"], check=False, input=json.dumps(obj),
        capture_output=True, text=True, env=tool_env(), timeout=60,
    )  # fmt: skip


def await_rule(obj: Object, refused: bool) -> None:  # noqa: FBT001 - what is awaited
    """Wait until the API server goes by a policy; it tells nobody when it does."""
    deadline = time.monotonic() + ACTIVE_SECONDS
    while (send(obj).returncode != 0) is not refused:
        assert time.monotonic() < deadline, "the API server does not go by the policy"
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Object]]:
    before = os.environ.get("KUBECONFIG")
    folder = tmp_path_factory.mktemp("admission")
    with ControlPlane(folder / "plane") as plane:
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        crds.apply(crds.sources("default"))
        apply(FAKE_PODGROUPS)
        run(["kubectl", "wait", "--for=condition=Established", "--timeout=30s",
             "crd/podgroups.scheduling.run.ai"], timeout=40)  # fmt: skip
        objects = platform_objects(VALUES, folder)
        team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
        accounts = [
            {"apiVersion": "v1", "kind": "ServiceAccount",
             "metadata": {"name": "default", "namespace": namespace}}
            for namespace in ("tandem", TEAM)
        ]  # fmt: skip
        apply(*objects, team, *accounts)
        await_rule(pod({}), refused=True)
        yield objects
    if before is None:
        del os.environ["KUBECONFIG"]
    else:
        os.environ["KUBECONFIG"] = before


@pytest.fixture(scope="module")
def offered(platform: list[Object]) -> Facts:
    """What explain knows of the same platform."""
    found = read_platform([VALUES | {"namespace": "tandem"}])
    assert found.namespaces == read_platform(platform).namespaces
    topologies = load_all((CHART / "values.yaml").read_text())[0]["topologies"]
    return read_platform([VALUES | {"namespace": "tandem", "topologies": topologies}])


def template(labels: dict[str, str], gpus: int = 0, scheduler: str = "kai-scheduler",
             **annotations: str) -> Object:  # fmt: skip
    notes = {f"kai.scheduler/{key.replace('_', '-')}": value for key, value in annotations.items()}
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {
        "metadata": {"labels": labels, "annotations": notes},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {"name": "main", "image": "x", "securityContext": secure, "resources": resources}
            ],
        },
    }


def about(labels: dict[str, str], namespace: str = "tandem", **notes: str) -> Object:
    return {"name": "it", "namespace": namespace, "labels": labels, "annotations": notes}


def pod(labels: dict[str, str], namespace: str = "tandem", **more: Any) -> Object:
    made = template(labels, **more)
    made["metadata"] |= {"name": "it", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", **made}


def job(labels: dict[str, str], inner: Object, namespace: str = "tandem") -> Object:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about(labels, namespace),
            "spec": {"template": inner}}  # fmt: skip


def jobset(labels: dict[str, str], inner: Object, namespace: str = "tandem") -> Object:
    replicated = [{"name": "w", "template": {"spec": {"template": inner}}}]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": about(labels, namespace), "spec": {"replicatedJobs": replicated},
    }  # fmt: skip


def ray(inner: Object) -> Object:
    worker = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
              "rayStartParams": {}, "template": inner}  # fmt: skip
    head = deepcopy(inner)
    head["spec"]["containers"][0]["resources"] = {}
    return {"headGroupSpec": {"rayStartParams": {}, "template": head},
            "workerGroupSpecs": [worker]}  # fmt: skip


def raycluster(labels: dict[str, str], inner: Object, namespace: str = "tandem") -> Object:
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": about(labels, namespace), "spec": ray(inner)}  # fmt: skip


def rayjob(labels: dict[str, str], inner: Object, namespace: str = "tandem") -> Object:
    spec = {"entrypoint": "true", "submissionMode": "HTTPMode", "rayClusterSpec": ray(inner)}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": about(labels, namespace),
            "spec": spec}  # fmt: skip


def podgroup(labels: dict[str, str], queue: str, **constraint: str) -> Object:
    leaf = {"name": "w", "minMember": 1, "topologyConstraint": constraint}
    return {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {**about(labels), "name": "gang"},
            "spec": {"queue": queue, "minSubGroup": 1, "subGroups": [leaf]}}  # fmt: skip


OWNERS: tuple[Callable[..., Object], ...] = (job, jobset, raycluster, rayjob)


def queue(name: str) -> dict[str, str]:
    return {**RUN, "kai.scheduler/queue": name}


def of_each(labels: dict[str, str], namespace: str = "tandem", **more: Any) -> list[Object]:
    """An object of each kind, of which all and all pods have some labels."""
    return [make(labels, template(labels, **more), namespace) for make in OWNERS]


def allowed() -> list[Object]:
    return [
        *of_each(LOW), *of_each(queue("high-prio")), *of_each(LOW, TEAM), *of_each(LOW, gpus=8),
        *of_each(LOW, topology="rack", topology_required_placement="topology.kubernetes.io/rack"),
        pod(LOW), pod(queue("high-prio")), pod(LOW, TEAM), pod(LOW, gpus=8),
        # Not by KAI, and without a GPU, as the watchers of a run.
        pod(LOW, scheduler="default-scheduler"),
        # On the pods it is enough for KAI.
        job(RUN, template(LOW)),
        podgroup(RUN, "low-prio", topology="rack", preferredTopologyLevel="kubernetes.io/hostname"),
    ]  # fmt: skip


def forbidden() -> list[tuple[str, Object]]:
    found = []
    for rule, namespace, labels, more in (
        ("run-id-missing", "tandem", {"kai.scheduler/queue": "low-prio"}, {}),
        ("queue-missing", "tandem", RUN, {}),
        ("queue-unknown", "tandem", queue("mid-prio"), {}),
        ("queue-not-a-leaf", "tandem", queue("research"), {}),
        ("queue-not-a-leaf", "tandem", queue("top"), {}),
        ("queue-not-a-leaf", "tandem", queue("alone"), {}),
        ("queue-not-of-namespace", TEAM, queue("high-prio"), {}),
        ("no-node-for-pod", "tandem", LOW, {"gpus": 16}),
        ("gpus-outside-queues", "tandem", LOW, {"gpus": 1, "scheduler": "default-scheduler"}),
        ("unknown-topology", "tandem", LOW, {"topology": "hall"}),
        (
            "unknown-topology", "tandem", LOW,
            {"topology": "rack", "topology_required_placement": "row"},
        ),
    ):  # fmt: skip
        owners = of_each(labels, namespace, **more)
        found += [(rule, obj) for obj in (*owners, pod(labels, namespace, **more))]
    # Only the pods, of which the object says something else.
    found += [("queue-unknown", make(LOW, template(queue("mid-prio")))) for make in OWNERS]
    found += [("queue-missing", make(LOW, template(RUN))) for make in OWNERS]
    found += [("run-id-missing", make(LOW, template(queue("low-prio") | {"tandem.dev/run-id": ""})))
              for make in OWNERS]  # fmt: skip
    found += [
        ("queue-unknown", podgroup(LOW, "mid-prio")),
        ("queue-missing", podgroup(LOW, "")),
        ("run-id-missing", podgroup({}, "low-prio")),
        ("unknown-topology", podgroup(LOW, "low-prio", topology="hall")),
    ]
    return found


def named(case: Object | tuple[str, Object]) -> str:
    if isinstance(case, tuple):
        return f"{case[0]}-{case[1]['kind']}"
    return str(case["kind"])


@pytest.mark.parametrize("obj", allowed(), ids=named)
def test_what_is_labelled_well_is_taken(obj: Object) -> None:
    done = send(obj)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", forbidden(), ids=named)
def test_a_fault_is_refused_by_its_rule_with_its_fix(case: tuple[str, Object]) -> None:
    rule, obj = case
    done = send(obj)
    assert done.returncode != 0
    assert "ValidatingAdmissionPolicy 'tandem-runs'" in done.stderr
    said = done.stderr.partition("denied request: ")[2]
    assert {each.partition(": ")[0] for each in said.split(" | ")} == {rule}, said
    assert f"{obj['kind']}/{obj['metadata']['name']}" in said
    assert "; fix: " in said


def test_each_rule_has_its_case() -> None:
    assert {rule for rule, _ in forbidden()} == set(rules())


def test_explain_says_the_same_words(offered: Facts) -> None:
    compared = set()
    for rule, obj in forbidden():
        # A PodGroup is looked at with its pods, and explain takes an object's label for theirs.
        if obj["kind"] == "PodGroup":
            continue
        said = send(obj).stderr
        for found in report_of("run", [obj], offered).findings:
            if found.rule == rule:
                assert f"{found.what}; fix: {found.fix}" in said
                compared.add(rule)
    # Pods of another scheduler's are no fault to explain: it tells where they go.
    assert compared == set(rules()) - {"gpus-outside-queues"}


def test_all_faults_are_told_at_once() -> None:
    wrong = template(queue("mid-prio"), gpus=16, scheduler="default-scheduler")
    said = send(jobset({}, wrong)).stderr.partition("denied request: ")[2]
    assert [each.partition(": ")[0] for each in said.split(" | ")] == [
        "run-id-missing", "queue-unknown", "gpus-outside-queues", "no-node-for-pod",
    ]  # fmt: skip
    assert "JobSet/it w: a pod of w asks for 16 GPUs; the most that a node has is 8" in said


def test_gpus_of_a_pod_are_counted_over_its_containers() -> None:
    obj = pod(LOW, gpus=4)
    containers = obj["spec"]["containers"]
    containers.append({**containers[0], "name": "second"})
    assert send(obj).returncode == 0
    sidecar = {**containers[0], "name": "sidecar", "restartPolicy": "Always"}
    obj["spec"]["initContainers"] = [{**containers[0], "name": "before"}]
    # One that is over before the others start needs none of its own.
    assert send(obj).returncode == 0
    obj["spec"]["initContainers"].append(sidecar)
    assert "asks for 12 GPUs" in send(obj).stderr


def test_the_rayjob_pod_that_submits_is_looked_at() -> None:
    obj = rayjob(LOW, template(LOW))
    obj["spec"]["submissionMode"] = "K8sJobMode"
    said = send(obj).stderr
    assert "run-id-missing: RayJob/it submitter" in said
    obj["spec"]["submitterPodTemplate"] = template(LOW)
    assert send(obj).returncode == 0


def test_an_object_that_a_controller_made_is_labelled_by_its_pods() -> None:
    obj = raycluster({}, template(LOW))
    assert "run-id-missing" in send(obj).stderr
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "x", "uid": "u",
             "controller": True}  # fmt: skip
    obj["metadata"]["ownerReferences"] = [owner]
    assert send(obj).returncode == 0
    # Its pods are not: nobody gets out by calling himself owned.
    obj["spec"] = ray(template(queue("mid-prio")))
    assert "queue-unknown: RayCluster/it headgroup" in send(obj).stderr
    obj["spec"] = ray(template({}))
    assert "run-id-missing: RayCluster/it w" in send(obj).stderr


def test_other_namespaces_are_left_alone() -> None:
    assert send(pod({}, "default")).returncode == 0


def test_an_update_is_refused_for_what_it_adds(platform: list[Object]) -> None:
    """Objects from before the policy can be changed, else nobody could even end them."""
    policy = [o for o in platform if o["kind"].startswith("ValidatingAdmissionPolicy")]
    binding = next(o for o in policy if o["kind"].endswith("Binding"))
    old = pod({**RUN, "kai.scheduler/queue": "mid-prio"})
    old["metadata"] |= {"name": "old", "finalizers": ["tandem.dev/test"]}
    run(["kubectl", "delete", binding["kind"], binding["metadata"]["name"]], timeout=30)
    await_rule(old, refused=False)
    assert send(old, "create").returncode == 0
    apply(binding)
    await_rule(pod({}), refused=True)

    def patch(*labels: str) -> str:
        done = subprocess.run(
            ["kubectl", "label", "pod", "old", "-n", "tandem", "--overwrite", *labels],
            check=False, capture_output=True, text=True, env=tool_env(), timeout=30,
        )  # fmt: skip
        return done.stderr

    assert patch("note=x") == ""
    assert "queue-unknown" in patch("kai.scheduler/queue=top-prio")
    assert "queue-not-a-leaf" in patch("kai.scheduler/queue=research")
    assert "run-id-missing" in patch("tandem.dev/run-id-")
    assert patch("kai.scheduler/queue=high-prio") == ""
    # Mended is mended.
    assert "queue-unknown" in patch("kai.scheduler/queue=mid-prio")
    run(["kubectl", "delete", "pod", "old", "-n", "tandem", "--wait=false"], timeout=30)
    run(["kubectl", "patch", "pod", "old", "-n", "tandem", "--type=merge", "-p",
         '{"metadata":{"finalizers":null}}'], timeout=30)  # fmt: skip


def test_the_suite_on_a_real_kai_gets_past_it_and_puts_it_back() -> None:
    foreign = job(queue("kai-test"), template(queue("kai-test")))
    assert send(foreign).returncode != 0
    with admission_lifted("kai-test"):
        assert send(foreign).returncode == 0
    await_rule(foreign, refused=True)


def objects_and_pods(variant: str) -> Iterator[Object]:
    for obj in render_variant(variant):
        yield obj
        for each in pods_of(obj):
            metadata = {**each.metadata, "name": "dry-run", "namespace": "tandem"}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": each.spec}


def test_variants_for_kai_are_taken_whole(platform: list[Object]) -> None:
    assert platform
    prod = [name for name in variants() if name.startswith("prod-")]
    assert prod
    for variant in prod:
        for obj in objects_and_pods(variant):
            if obj["kind"] == "ServiceAccount":
                apply(obj)  # their pods name it
            done = send(obj)
            assert done.returncode == 0 or "AlreadyExists" in done.stderr, done.stderr


def test_the_type_check_of_the_cluster_has_nothing_to_say() -> None:
    awaited = ("--for=jsonpath={.status.observedGeneration}", "--timeout=30s")
    name = "validatingadmissionpolicy/tandem-runs"
    said = run(["kubectl", "wait", name, *awaited, "-o", "json"], timeout=40)
    assert json.loads(said)["status"].get("typeChecking", {}) == {}


def test_beside_another_scheduler_only_pods_of_kai_need_a_queue(tmp_path: Path) -> None:
    """Last, since it replaces the policy: what the environments for development have."""
    values = VALUES | {"admission": {"queueOf": "kai"}}
    apply(*platform_objects(values, tmp_path))
    other = pod(RUN, scheduler="default-scheduler", gpus=1)
    await_rule(other, refused=False)
    assert "queue-missing" in send(pod(RUN)).stderr
    assert "queue-unknown" in send(pod(queue("mid-prio"), scheduler="default-scheduler")).stderr
    assert "run-id-missing" in send(pod({}, scheduler="default-scheduler")).stderr
    for variant in variants():
        for obj in objects_and_pods(variant):
            if obj["kind"] == "ServiceAccount":
                apply(obj)
            done = send(obj)
            assert done.returncode == 0 or "AlreadyExists" in done.stderr, done.stderr
