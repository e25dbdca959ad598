"""What a variant asks of a cluster, and how a cluster that lacks it is refused."""

from __future__ import annotations

from typing import Any

from tandem.run.kube import CannotTell
from tandem.run.needs import lacks, needs_of


def group(**spec: Any) -> dict[str, Any]:
    container = {"name": "ray", "image": "nvcr.io/nvidia/nemo-rl:v1"}
    labels = {"kai.scheduler/queue": "low-prio"} if spec else {}
    return {
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}
    }


def rayjob(**spec: Any) -> dict[str, Any]:
    cluster = {"headGroupSpec": group(**spec), "workerGroupSpecs": []}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "run", "namespace": "tandem"},
        "spec": {"rayClusterSpec": cluster},
    }


GANG = rayjob(
    schedulerName="kai-scheduler",
    serviceAccountName="rl",
    priorityClassName="rl-head",
    imagePullSecrets=[{"name": "nvcr-secret"}],
)
WHOLE: dict[str, Any] = {
    "/apis/ray.io/v1": {"resources": [{"kind": "RayJob"}]},
    "/apis/scheduling.run.ai/v2": {"resources": [{"kind": "Queue"}]},
    "/apis/scheduling.run.ai/v2/queues/low-prio": {},
    "/apis/apps/v1/deployments": {
        "items": [
            {
                "metadata": {"name": "kai-scheduler-default", "labels": {}},
                "spec": {"template": {"spec": {"containers": [{"image": "x/scheduler:1"}]}}},
            }
        ]
    },
    "/apis/scheduling.k8s.io/v1/priorityclasses/rl-head": {},
    "/api/v1/namespaces/tandem": {},
    "/api/v1/namespaces/tandem/serviceaccounts/rl": {},
    "/api/v1/namespaces/tandem/secrets/nvcr-secret": {},
}


def said(objects: list[dict[str, Any]], cluster: dict[str, Any]) -> list[str]:
    return [problem.what for problem in lacks(needs_of(objects), cluster.get)]


def test_a_cluster_with_everything_is_taken() -> None:
    assert said([GANG], WHOLE) == []


def test_everything_that_an_empty_cluster_lacks_is_said_at_once() -> None:
    assert said([GANG], {}) == [
        "RayJob/run: the cluster serves no kind RayJob of ray.io/v1",
        "namespace tandem is missing",
        "scheduler kai-scheduler is missing",
        "queue low-prio is missing",
        "ServiceAccount rl is missing in namespace tandem",
        "PriorityClass rl-head is missing",
        "image pull Secret nvcr-secret is missing in namespace tandem",
    ]


def test_crds_that_outlived_kai_are_no_scheduler() -> None:
    other = {
        "metadata": {"name": "coredns", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"image": "coredns:1"}]}}},
    }
    cluster = {**WHOLE, "/apis/apps/v1/deployments": {"items": [other]}}
    assert said([GANG], cluster) == ["scheduler kai-scheduler is missing"]


def test_another_kind_of_the_same_group_is_not_enough() -> None:
    cluster = {**WHOLE, "/apis/ray.io/v1": {"resources": [{"kind": "RayCluster"}]}}
    assert said([GANG], cluster) == ["RayJob/run: the cluster serves no kind RayJob of ray.io/v1"]


def test_nothing_is_refused_that_one_has_no_right_to_see() -> None:
    def forbidden(path: str) -> dict[str, Any] | None:
        raise CannotTell(path)

    assert lacks(needs_of([GANG]), forbidden) == []


def test_the_default_scheduler_and_unknown_ones_are_not_asked_for() -> None:
    for name in ("default-scheduler", "volcano"):
        paths = [need.path for need in needs_of([rayjob(schedulerName=name)])]
        assert not any("scheduling.run.ai" in path and "queues" not in path for path in paths)
        assert "/apis/apps/v1/deployments" not in paths


def test_a_namespace_that_the_variant_brings_is_not_asked_for() -> None:
    brought = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tandem"}}
    assert "namespace tandem is missing" not in said([brought, GANG], {})


def test_an_account_that_the_variant_brings_is_not_asked_for() -> None:
    brought = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "rl"}}
    lacking = said([brought, GANG], {})
    assert "ServiceAccount rl is missing in namespace tandem" not in lacking
    assert "PriorityClass rl-head is missing" in lacking


def binding(role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "some", "namespace": "tandem"},
        "roleRef": {"kind": "Role", "name": role},
    }  # fmt: skip


def test_a_binding_needs_its_role_unless_the_variant_brings_it() -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "own", "namespace": "tandem"},
    }  # fmt: skip
    lacking = said([role, binding("own"), binding("peer-watcher")], {})
    assert "Role peer-watcher is missing in namespace tandem" in lacking
    assert not any("Role own" in each for each in lacking)


def test_fixes_name_the_environment_the_overlay_and_the_registry() -> None:
    fixes = {problem.what: problem.fix for problem in lacks(needs_of([GANG]), lambda _: None)}
    kai = fixes["scheduler kai-scheduler is missing"]
    assert "helmfile -e prod sync" in kai
    assert "scheduler-default" in kai
    secret = fixes["image pull Secret nvcr-secret is missing in namespace tandem"]
    assert "create secret docker-registry nvcr-secret -n tandem --docker-server=nvcr.io" in secret


QUEUED: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "run",
        "namespace": "tandem",
        "labels": {
            "kueue.x-k8s.io/queue-name": "low-prio",
            "kueue.x-k8s.io/priority-class": "low-prio",
        },
    },
    "spec": {"replicatedJobs": []},
}
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WITH_KUEUE: dict[str, Any] = {
    "/apis/jobset.x-k8s.io/v1alpha2": {"resources": [{"kind": "JobSet"}]},
    "/api/v1/namespaces/tandem": {},
    f"{_KUEUE}/namespaces/tandem/localqueues/low-prio": {},
    f"{_KUEUE}/workloadpriorityclasses/low-prio": {},
    "/apis/apps/v1/deployments": {
        "items": [
            {
                "metadata": {
                    "name": "kueue-controller-manager",
                    "labels": {"app.kubernetes.io/name": "kueue"},
                }
            }
        ]
    },
}


def test_a_run_in_a_queue_of_kueues_needs_the_queue_its_class_and_the_controller() -> None:
    assert said([QUEUED], WITH_KUEUE) == []
    bare = {"/apis/jobset.x-k8s.io/v1alpha2", "/api/v1/namespaces/tandem"}
    assert said([QUEUED], {path: WITH_KUEUE[path] for path in bare}) == [
        "LocalQueue low-prio is missing in namespace tandem",
        "the controller of Kueue is missing",
        "WorkloadPriorityClass low-prio is missing",
    ]


def test_queues_that_outlived_kueue_let_nobody_in() -> None:
    other = {"metadata": {"name": "coredns", "namespace": "kube-system"}}
    left = {**WITH_KUEUE, "/apis/apps/v1/deployments": {"items": [other]}}
    assert said([QUEUED], left) == ["the controller of Kueue is missing"]


def test_a_group_of_pods_names_its_queue_on_the_pods() -> None:
    cluster = rayjob()
    pod = cluster["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "nope"}
    assert "LocalQueue nope is missing in namespace tandem" in said([cluster], WHOLE)
