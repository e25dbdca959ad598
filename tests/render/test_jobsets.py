"""Variants with a JobSet: names, rights and Ray, which no operator derives for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from peer_watcher.settings import WatcherSettings
from tandem.policy import RULES, Cluster, Pod, pods_of
from tandem.render import OVERLAYS, kustomize, render_variant
from tandem.yamls import dump
from tandem_common.settings import Settings

Object = dict[str, Any]

VARIANTS = {
    "disagg-jobset": ("run", {"rl-head", "rl-workers", "gym-head", "driver"}),
    "monolithic-jobset": ("mono", {"rl-head", "rl-workers", "driver"}),
}
#: As long as an id of a run may be.
SUFFIX = "-abcdefghij0123456789"
LABEL_LENGTH = 63
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where it is mounted


def renamed(variant: str, folder: Path, suffix: str = SUFFIX) -> list[Object]:
    """Return a variant as an overlay outside renames it, which is how runs are told apart."""
    root = folder.resolve()
    (folder / "kustomization.yaml").write_text(dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [os.path.relpath(OVERLAYS / variant, root)],
        "components": [os.path.relpath(OVERLAYS.parent / "components/name-references", root)],
        "nameSuffix": suffix,
    }))  # fmt: skip
    return kustomize(folder)


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    [found] = [
        obj for obj in objects if obj["kind"] == kind and name in ("", obj["metadata"]["name"])
    ]
    return found


def groups(jobset: Object) -> dict[str, Pod]:
    names = [job["name"] for job in jobset["spec"]["replicatedJobs"]]
    return dict(zip(names, pods_of(jobset), strict=True))


def container(pod: Pod, name: str) -> Object:
    [found] = [each for each in pod.containers if each["name"] == name]
    return found


def value(where: Object, name: str) -> Any:
    [found] = [env for env in where["env"] if env["name"] == name]
    return found.get("value", found.get("valueFrom"))


def secrets(pod: Pod) -> set[tuple[str, str]]:
    """The Secrets that a pod's containers read, with their keys."""
    return {
        (ref["name"], ref["key"])
        for each in pod.containers
        for env in each.get("env", [])
        if (ref := env.get("valueFrom", {}).get("secretKeyRef"))
    }


def environment(jobset: Object, pod: Pod, name: str) -> dict[str, str]:
    """Return what a container sees, with what JobSet and the kubelet put in."""
    own = jobset["metadata"]["name"]
    metadata = {
        "labels": {**pod.metadata["labels"], "jobset.sigs.k8s.io/jobset-name": own},
        "annotations": {
            **pod.metadata.get("annotations", {}),
            "jobset.sigs.k8s.io/coordinator": f"{own}-rl-head-0-0.{own}",
        },
    }
    plain = {"metadata.namespace": "tandem", "metadata.uid": "uid", "status.podIP": "10.0.0.7"}
    seen: dict[str, str] = {}
    for env in container(pod, name)["env"]:
        source = env.get("valueFrom", {})
        if "value" in env:
            text = str(env["value"])
            for other, known in seen.items():
                text = text.replace(f"$({other})", known)
        elif "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            what, _, key = path.removeprefix("metadata.").partition("[")
            text = plain.get(path) or metadata[what][key.strip("[]'")]
        else:
            text = "?"
        seen[env["name"]] = text
    return seen


def load(kind: type[Settings], seen: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    prefix = str(kind.model_config["env_prefix"])
    for name in [name for name in os.environ if name.startswith(prefix)]:
        monkeypatch.delenv(name)
    for name, text in seen.items():
        if name.startswith(prefix):
            monkeypatch.setenv(name, text)
    return kind.load()


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_jobset_is_the_run_and_the_driver_decides(variant: str) -> None:
    name, wanted = VARIANTS[variant]
    jobset = one(render_variant(variant), "JobSet")
    assert jobset["metadata"]["name"] == name
    assert set(groups(jobset)) == wanted
    spec = jobset["spec"]
    assert spec["failurePolicy"] == {
        "maxRestarts": 0, "rules": [{"name": "any", "action": "FailJobSet"}],
    }  # fmt: skip
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["driver"]}
    assert "startupPolicy" not in spec
    for job in spec["replicatedJobs"]:
        assert "dependsOn" not in job
        assert job["replicas"] >= 1, "a gang waits for a pod of every group"
        inner = job["template"]["spec"]
        assert inner["backoffLimit"] == 0
        assert inner["parallelism"] == inner["completions"]
        assert inner["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_but_the_heads_wait_for_the_head(variant: str) -> None:
    for name, pod in groups(one(render_variant(variant), "JobSet")).items():
        waits = "wait-for-head" in {each["name"] for each in pod.spec.get("initContainers", [])}
        assert waits is not name.endswith("-head")


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_fit_with_the_longest_id_of_a_run(variant: str, tmp_path: Path) -> None:
    jobset = one(renamed(variant, tmp_path), "JobSet")
    name = jobset["metadata"]["name"]
    assert name.endswith(SUFFIX)
    coordinator = f"{name}-{jobset['spec']['coordinator']['replicatedJob']}-0-0.{name}"
    assert len(coordinator) <= LABEL_LENGTH
    # The base has every group, whatever a component takes out.
    base = kustomize(OVERLAYS.parent / "base" / variant)
    for group in groups(one(base, "JobSet")):
        # JobSet's webhook counts the hash of a pod's name, too.
        assert len(f"{name}-{group}-0-0-xxxxx") <= LABEL_LENGTH


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_renamed_run_names_its_own_objects_everywhere(variant: str, tmp_path: Path) -> None:
    objects = renamed(variant, tmp_path, "-x2")
    there = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    jobset = one(objects, "JobSet")
    pods = [pod for obj in objects for pod in pods_of(obj)]
    for pod in pods:
        account = pod.spec["serviceAccountName"]
        assert account in ("rl", "driver") or ("ServiceAccount", account) in there
        for secret, _ in secrets(pod):
            assert ("Secret", secret) in there
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
    kinds = {"jobsets": "JobSet", "secrets": "Secret"}
    for role in (obj for obj in objects if obj["kind"] == "Role"):
        for rule in role["rules"]:
            if (kind := kinds.get(rule["resources"][0])) is not None:
                assert {(kind, name) for name in rule["resourceNames"]} <= there
    head = groups(jobset)["rl-head"]
    assert ("Secret", head.metadata["annotations"]["tandem.dev/ray-token"]) in there


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_pod_says_of_which_run_and_role_it_is(variant: str) -> None:
    jobset = one(render_variant(variant), "JobSet")
    for name, pod in groups(jobset).items():
        labels = pod.metadata["labels"]
        assert labels["tandem.dev/run-id"] == variant
        assert labels["tandem.dev/role"] == name.partition("-")[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_ray_offers_the_gpus_that_the_container_has(variant: str) -> None:
    for pod in pods_of(one(render_variant(variant), "JobSet")):
        for each in pod.containers:
            limit = each["resources"]["limits"].get("nvidia.com/gpu", 0)
            if "$(NUM_GPUS)" in str(each.get("args")):
                assert value(each, "NUM_GPUS") == str(limit) == "1"
            else:
                assert limit == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_for_ray_is_made_and_stands_in_no_file(variant: str) -> None:
    objects = render_variant(variant)
    secret = one(objects, "Secret")
    assert not {"data", "stringData"} & set(secret)
    jobset = one(objects, "JobSet")
    name = secret["metadata"]["name"]
    found = groups(jobset)
    for group, pod in found.items():
        assert secrets(pod) == {(name, "gym" if group.startswith("gym-") else "rl")}
        for each in pod.containers:
            if each["name"] not in ("make-token", "wait-for-head"):
                assert value(each, "RAY_AUTH_MODE") == "token"
    maker = environment(jobset, found["rl-head"], "make-token")
    wanted = {key for pod in found.values() for _, key in secrets(pod)}
    assert set(maker["RAY_TOKEN_KEYS"].split(",")) == wanted
    assert maker["RAY_TOKEN_SECRET"] == name


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_code_has_no_right_to_delete(variant: str) -> None:
    objects = render_variant(variant)
    with_token = {
        each["name"]
        for pod in pods_of(one(objects, "JobSet"))
        for each in pod.containers
        if any(mount["mountPath"] == TOKEN for mount in each.get("volumeMounts", []))
    }
    assert "ray-worker" not in with_token
    accounts = {pod.spec["serviceAccountName"] for pod in pods_of(one(objects, "JobSet"))}
    roles = {
        binding["roleRef"]["name"]
        for binding in objects
        if binding["kind"] == "RoleBinding"
        for subject in binding["subjects"]
        if subject["name"] in accounts
    }
    deletable = {
        resource
        for role in objects
        if role["kind"] == "Role" and role["metadata"]["name"] in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        if {"delete", "deletecollection", "*"} & set(rule["verbs"])
    }
    # Their own registry's ConfigMap: a former run's is replaced.
    assert deletable <= {"configmaps"}


@pytest.mark.parametrize("suffix", ["", "-x2"])
def test_gym_and_driver_meet_in_the_registry_of_their_jobset(suffix: str, tmp_path: Path) -> None:
    objects = renamed("disagg-jobset", tmp_path, suffix) if suffix else (
        render_variant("disagg-jobset")
    )  # fmt: skip
    jobset = one(objects, "JobSet")
    pods = groups(jobset)
    driver = environment(jobset, pods["driver"], "driver")
    gym = environment(jobset, pods["gym-head"], "ray-head")
    for seen, writer in ((driver, "driver"), (gym, "gym")):
        assert seen["ENDPOINT_REGISTRY_RUN_OBJECT"] == f"JobSet/run{suffix}"
        assert seen["ENDPOINT_REGISTRY_JOB_ID"] == "disagg-jobset"
        assert seen["ENDPOINT_REGISTRY_WRITER"] == writer
    assert driver["RAY_ADDRESS"] == f"run{suffix}-rl-head-0-0.run{suffix}:6379"


@pytest.mark.parametrize("suffix", ["", "-x2"])
def test_the_watcher_looks_at_the_jobset_and_its_registry(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = renamed("disagg-jobset", tmp_path, suffix) if suffix else (
        render_variant("disagg-jobset")
    )  # fmt: skip
    job = one(objects, "Job")
    [pod] = pods_of(job)
    seen = environment(job, pod, "peer-watcher")
    found = load(WatcherSettings, seen, monkeypatch)
    assert [str(ref) for ref in found.members.all] == [f"JobSet/run{suffix}"]
    assert found.members.registry == "nemo-rl-endpoints-disagg-jobset"
    assert not found.head_job, "a lost head is JobSet's own business"
    role = one(objects, "Role", f"peer-watcher-jobset{suffix}")
    names = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"]}
    assert names == {
        "configmaps": ["nemo-rl-endpoints-disagg-jobset"], "jobsets": [f"run{suffix}"],
    }  # fmt: skip


def test_a_renamed_rayclusters_driver_reads_its_own_token(tmp_path: Path) -> None:
    """KubeRay names the Secret after the RayCluster; kustomize follows that name, too."""
    objects = renamed("disagg-rayclusters", tmp_path, "-x2")
    [pod] = pods_of(one(objects, "Job", "driver-x2"))
    assert secrets(pod) == {("rl-x2", "auth_token")}


NO_CLUSTER = Cluster(frozenset(), frozenset(), frozenset())


@pytest.mark.parametrize(
    ("rule", "path", "value", "said"),
    [
        ("ends", "failurePolicy.maxRestarts", 1, "maxRestarts"),
        ("ends", "ttlSecondsAfterFinished", None, "ttlSecondsAfterFinished"),
        ("ends", "successPolicy.targetReplicatedJobs", [], "successPolicy"),
        ("ends", "replicatedJobs.0.template.spec.activeDeadlineSeconds", None, "driver"),
        ("ends", "replicatedJobs.1.template.spec.backoffLimit", 6, "backoffLimit"),
        ("whole-gang", "replicatedJobs.1.replicas", 0, "no replicas"),
        ("whole-gang", "replicatedJobs.1.template.spec.completions", 4, "completions"),
        ("whole-gang", "replicatedJobs.1.template.spec.template.spec.schedulerName",
         "default-scheduler", "not scheduled by KAI"),
    ],
)  # fmt: skip
def test_a_house_rule_sees_what_is_wrong_with_a_jobset(
    rule: str, path: str, value: Any, said: str
) -> None:
    jobset = one(render_variant("prod-disagg-jobset"), "JobSet")
    assert list(RULES[rule](jobset, NO_CLUSTER)) == []
    at: Any = jobset["spec"]
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last] = value
    [fault] = RULES[rule](jobset, NO_CLUSTER)
    assert said in fault
