"""One gang over a run of two RayClusters and a driver, and where its workers may be.

KAI's own CRD is not in the bundle (only upstream has it): the PodGroup is checked against the
schema that we wrote by hand, and by what KAI's webhook is known to refuse. The variant's PodGroup,
Queues and Topologies were compared once, by hand, with KAI's CRDs of 2026-08-07 (after 0.17.0).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.bundle.layout import Layout
from tandem.golden import FOLDER as GOLDEN
from tandem.policy import Cluster, Pod, cluster_of, faults_of, members_of, pods_of
from tandem.render import KUSTOMIZE, OVERLAYS, kustomize, render_variant
from tandem.run import identity
from tandem.run.identity import overlay
from tandem.run.needs import needs_of
from tandem.run.shapes import BELONGINGS
from tandem.schemas.generate import generate
from tandem.validate import check
from tandem.yamls import dump, dump_all, load_all

Object = dict[str, Any]

VARIANT = "prod-disagg-rayclusters"
COMPONENTS = KUSTOMIZE / "components"
HEAD = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
QUEUE = "kai.scheduler/queue"
#: Of another size, in another queue: patches of a site's overlay, after all components.
SITE: Object = {
    "patches": [{
        "target": {"kind": "RayCluster", "name": "rl"},
        "patch": dump({
            "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "rl"},
            "spec": {"workerGroupSpecs": [
                {"groupName": "workers", "replicas": 4, "minReplicas": 4, "maxReplicas": 4},
            ]},
        }),
    }],
    "labels": [{
        "pairs": {QUEUE: "high-prio"}, "includeTemplates": True,
        "fields": [
            {"kind": "RayCluster", "path": "spec/headGroupSpec/template/metadata/labels"},
            {"kind": "RayCluster", "path": "spec/workerGroupSpecs/template/metadata/labels"},
        ],
    }],
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return cluster_of(load_all((GOLDEN / "rl-platform" / "prod.yaml").read_text()))


@pytest.fixture(scope="module")
def rendered() -> list[Object]:
    return render_variant(VARIANT)


def podgroup(objects: list[Object]) -> Object:
    [found] = [obj for obj in objects if obj["kind"] == "PodGroup"]
    return found


def write(folder: Path, name: str, *, resource: Path, components: list[str], **more: Any) -> Path:
    """Write a kustomization over another one, and return its folder."""
    made = folder / name
    made.mkdir()
    paths = [os.path.relpath(COMPONENTS / each, made.resolve()) for each in components]
    resources = [os.path.relpath(resource, made.resolve())]
    (made / "kustomization.yaml").write_text(
        dump({**HEAD, "resources": resources, "components": paths, **more})
    )
    return made


def site(folder: Path) -> Path:
    """Write a site's overlay that is larger and in another queue."""
    crd_schema = ["crd-schema"]
    return write(folder, "site", resource=OVERLAYS / VARIANT, components=crd_schema, **SITE)


def in_group(objects: list[Object]) -> Iterator[tuple[Pod, int]]:
    for obj in objects:
        for pod, count in members_of(obj):
            if "pod-group-name" in pod.metadata.get("annotations", {}):
                yield pod, count


def test_all_pods_of_the_run_are_in_one_podgroup_but_the_watchers(rendered: list[Object]) -> None:
    inside = {pod.where: pod for pod, _ in in_group(rendered)}
    subgroups = {
        where: pod.metadata["labels"]["kai.scheduler/subgroup-name"]
        for where, pod in inside.items()
    }
    assert subgroups == {
        "RayCluster/rl head": "rl-head", "RayCluster/rl workers": "rl-workers",
        "RayCluster/gym head": "gym-head", "Job/driver pod": "driver",
    }  # fmt: skip
    for pod in inside.values():
        assert pod.spec["schedulerName"] == "kai-scheduler"
        assert pod.metadata["labels"][QUEUE] == "low-prio"
        annotations = pod.metadata["annotations"]
        assert annotations["kai.scheduler/skip-podgrouper"] == "true"
        assert annotations["pod-group-name"] == podgroup(rendered)["metadata"]["name"]
    outside = [p for obj in rendered for p in pods_of(obj) if p.where not in inside]
    assert {pod.where for pod in outside} == {"Job/peer-watcher-rl pod", "Job/peer-watcher-gym pod"}
    assert all(pod.spec.get("schedulerName", "default-scheduler") != "kai-scheduler"
               for pod in outside)  # fmt: skip


def test_the_group_is_all_or_nothing_and_has_the_runs_id(rendered: list[Object]) -> None:
    group = podgroup(rendered)
    assert group["metadata"]["labels"] == {
        "app.kubernetes.io/part-of": "tandem", QUEUE: "low-prio", "tandem.dev/run-id": "disagg",
    }  # fmt: skip
    spec = group["spec"]
    tree = {g["name"]: (g.get("parent"), g.get("minSubGroup"), g.get("minMember"))
            for g in spec["subGroups"]}  # fmt: skip
    assert (spec["minSubGroup"], tree) == (
        3,
        {
            "rl": (None, 2, None), "rl-head": ("rl", None, 1), "rl-workers": ("rl", None, 1),
            "gym": (None, 1, None), "gym-head": ("gym", None, 1), "driver": (None, None, 1),
        },
    )  # fmt: skip
    # Below 100 and preemptible: of the queues' own rules, and as a whole.
    assert spec["preemptibility"] == "preemptible"
    assert spec["priorityClassName"] == "rl-worker"


def test_it_is_applied_before_what_makes_its_pods_and_goes_with_the_run(
    rendered: list[Object], tmp_path: Path
) -> None:
    of_run = kustomize(as_run(tmp_path, OVERLAYS / VARIANT))
    for objects in (rendered, of_run):
        kinds = [obj["kind"] for obj in objects]
        after = kinds[kinds.index("PodGroup") + 1 :]
        assert after.count("RayCluster") == 2
        assert after.count("Job") == 3
        assert not {"RayCluster", "Job"} & set(kinds[: kinds.index("PodGroup")])
    assert podgroup(of_run)["metadata"]["labels"]["tandem.dev/run-id"] == "x2"
    assert "PodGroup" in {each.kind for each in BELONGINGS}


def as_run(folder: Path, resource: Path) -> Path:
    """Write what `make run` would over a kustomization."""
    made = folder / "run"
    made.mkdir()
    written = overlay(VARIANT, "x2", kustomize(resource))
    path = os.path.relpath(KUSTOMIZE / "components", made.resolve())
    written["components"] = [
        each.replace("../../kustomize/components", path) for each in written["components"]
    ]
    written["resources"] = [os.path.relpath(resource, made.resolve())]
    (made / "kustomization.yaml").write_text(dump(written))
    return made


def test_a_run_of_another_size_and_queue_is_one_gang_still(
    tmp_path: Path, cluster: Cluster
) -> None:
    inner = site(tmp_path)
    # By itself the overlay's patches come after the component that counts: the rule says so.
    said = [
        str(fault) for fault in faults_of(kustomize(inner), cluster) if fault.rule == "one-gang"
    ]
    assert any("subgroup rl-workers: minMember is 1, and there are 4" in each for each in said)
    assert any("queue low-prio is not that of label" in each for each in said)

    followed = write(
        tmp_path, "followed", resource=inner, components=["gang-kai/rayclusters/follow"]
    )
    of_run = as_run(tmp_path, inner)
    for folder in (followed, of_run):
        objects = kustomize(folder)
        spec = podgroup(objects)["spec"]
        assert spec["queue"] == "high-prio"
        [workers] = [g for g in spec["subGroups"] if g["name"] == "rl-workers"]
        assert workers == {"name": "rl-workers", "parent": "rl", "minMember": 4}
        assert {pod.metadata["labels"][QUEUE] for pod, _ in in_group(objects)} == {"high-prio"}
        assert sum(count for _, count in in_group(objects)) == 7
    # The outermost overlay sorts: without sortOptions the PodGroup would come last.
    assert [str(fault) for fault in faults_of(kustomize(of_run), cluster)] == []


def test_two_runs_have_a_group_each(tmp_path: Path) -> None:
    objects = kustomize(as_run(tmp_path, OVERLAYS / VARIANT))
    assert podgroup(objects)["metadata"]["name"] == "gang-x2"
    names = {pod.metadata["annotations"]["pod-group-name"] for pod, _ in in_group(objects)}
    assert names == {"gang-x2"}
    assert len(list(in_group(objects))) == 4


def test_what_the_group_needs_of_the_cluster_is_known_before(rendered: list[Object]) -> None:
    group = json.loads(json.dumps(podgroup(rendered)))
    group["spec"]["queue"] = "elsewhere"
    group["spec"]["subGroups"][2]["topologyConstraint"] = {"topology": "gb300"}
    whats = {need.what for need in needs_of([group])}
    assert "queue elsewhere is missing" in whats
    assert "Topology gb300 is missing" in whats
    assert (
        "PodGroup/gang: the cluster serves no kind PodGroup of scheduling.run.ai/v2alpha2" in whats
    )


def change(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def template(objects: list[Object], kind: str, name: str) -> Object:
    spec = change(objects, kind, name)["spec"]
    made: Object = (spec if kind == "Job" else spec["headGroupSpec"])["template"]
    return made


def _last(objects: list[Object]) -> None:
    objects.append(objects.pop(objects.index(podgroup(objects))))


def _spec(**fields: Any) -> Callable[[list[Object]], None]:
    return lambda objects: podgroup(objects)["spec"].update(fields)


def _subgroup(at: int, **fields: Any) -> Callable[[list[Object]], None]:
    return lambda objects: podgroup(objects)["spec"]["subGroups"][at].update(fields)


def _pod(kind: str, name: str, part: str, **fields: str) -> Callable[[list[Object]], None]:
    return lambda objects: template(objects, kind, name)["metadata"][part].update(fields)


def _alone(objects: list[Object]) -> None:
    del template(objects, "RayCluster", "gym")["metadata"]["annotations"]["pod-group-name"]


def _unlabelled(objects: list[Object]) -> None:
    del podgroup(objects)["metadata"]["labels"]["tandem.dev/run-id"]


BROKEN: dict[str, tuple[Callable[[list[Object]], None], str]] = {
    "later than its pods": (_last, "it comes after RayCluster/rl"),
    "no leaf queue": (_spec(queue="research"), "queue research: leaf queues are"),
    "no run id": (_unlabelled, "no label tandem.dev/run-id"),
    "not all of the root": (_spec(minSubGroup=2), "minSubGroup 2 of 3 subgroups"),
    "not all of a side": (_subgroup(0, minSubGroup=1), "subgroup rl: minSubGroup is 1"),
    "not all workers": (_subgroup(2, minMember=0), "subgroup rl-workers: minMember is 0"),
    "more than there are": (_subgroup(5, minMember=2), "subgroup driver: minMember is 2"),
    "an unknown parent": (_subgroup(1, parent="rll"), "subgroup rll is a parent and not there"),
    "a pod outside": (_alone, "RayCluster/gym head: KAI would make a gang of its own of it"),
    "another group": (
        _pod("Job", "driver", "annotations", **{"pod-group-name": "other"}),
        "PodGroup other is none of the run's",
    ),
    "grouped by KAI": (
        _pod("Job", "driver", "annotations", **{"kai.scheduler/skip-podgrouper": "yes"}),
        "KAI would write over its PodGroup",
    ),
    "no leaf subgroup": (
        _pod("RayCluster", "rl", "labels", **{"kai.scheduler/subgroup-name": "rl"}),
        "RayCluster/rl head: subgroup rl is none of driver, gym-head, rl-head, rl-workers",
    ),
    "two queues": (
        _pod("RayCluster", "rl", "labels", **{QUEUE: "high-prio"}),
        "RayCluster/rl head: PodGroup gang is in queue low-prio, which counts",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_group_that_is_not_whole_breaks_the_rule(
    what: str, rendered: list[Object], cluster: Cluster
) -> None:
    objects: list[Object] = json.loads(json.dumps(rendered))
    assert [f for f in faults_of(objects, cluster) if f.rule == "one-gang"] == []
    broken, words = BROKEN[what]
    broken(objects)
    said = [str(fault) for fault in faults_of(objects, cluster) if fault.rule == "one-gang"]
    assert any(words in each for each in said), said


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schemas with those that we wrote for KAI's kinds, whatever the bundle holds of KAI.

    Its own CRDs leave to rules of CEL, which no schema holds, what is refused here.
    """
    bundle = Layout(tmp_path_factory.mktemp("bundle"))
    bundle.crds.mkdir(parents=True)
    for path in Layout().crds.glob("*.yaml"):
        if not path.name.endswith(("run.ai.yaml", "kai.scheduler.yaml")):
            shutil.copy(path, bundle.crds)
    folder = tmp_path_factory.mktemp("schemas")
    generate(bundle, folder)
    return folder


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (_spec(minMember=3), "oneOf"),
        (_spec(minSubgroup=3), "minSubgroup"),
        (_spec(preemptibility="never"), "preemptibility"),
        (_spec(stalenessGracePeriod="soon"), "stalenessGracePeriod"),
        (_subgroup(0, minMember=1), "oneOf"),
        (_subgroup(0, name="R_L"), "name"),
        (_subgroup(2, topologyConstraint={"topology": "rack"}), "topologyConstraint"),
    ],
)
def test_a_schema_refuses_a_group_of_another_shape(
    broken: Callable[[list[Object]], None],
    word: str,
    rendered: list[Object],
    schemas: Path,
    tmp_path: Path,
) -> None:
    objects: list[Object] = json.loads(json.dumps([podgroup(rendered)]))
    path = tmp_path / "podgroup.yaml"
    path.write_text(dump_all(objects))
    assert [result.ok for result in check([path], schemas)] == [True]
    broken(objects)
    path.write_text(dump_all(objects))
    [result] = check([path], schemas)
    assert not result.ok
    assert word in result.message


LEVELS = {"gb300": "nvidia.com/gpu.clique", "rack": "topology.kubernetes.io/rack"}


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(
    "variant",
    ["prod-monolithic-rayjob", "prod-monolithic-jobset", "prod-disagg-jobset", VARIANT],
)
def test_the_workers_and_nobody_else_are_kept_together(
    variant: str, name: str, tmp_path: Path
) -> None:
    components = ["crd-schema", f"topology-{name}"]
    folder = write(tmp_path, "near", resource=OVERLAYS / variant, components=components)
    objects = kustomize(folder)
    assert constraints(objects) == [("workers", name, LEVELS[name])]
    if variant == VARIANT:
        assert len(podgroup(objects)["spec"]["subGroups"]) == 6, "the others are as they were"
    assert constraints(render_variant(variant)) == []
    # A run is refused where the cluster does not have it.
    missing = f"Topology {name} is missing"
    assert missing in {need.what for need in needs_of(objects)}
    assert missing not in {need.what for need in needs_of(render_variant(variant))}
    # rl-platform makes a Topology of that name with that level.
    platform = load_all((GOLDEN / "rl-platform" / "prod.yaml").read_text())
    topologies = {
        obj["metadata"]["name"]: [level["nodeLabel"] for level in obj["spec"]["levels"]]
        for obj in platform
        if obj["kind"] == "Topology"
    }
    assert LEVELS[name] in topologies[name]


def constraints(objects: list[Object]) -> list[tuple[str, str, str]]:
    """Return what KAI reads of topologies, where it reads it: whose, which, at what level."""
    found = []
    for obj in objects:
        spec = obj.get("spec", {})
        places: list[tuple[str, Object]] = []
        if obj["kind"] == "PodGroup":
            for group in spec["subGroups"]:
                if constraint := group.get("topologyConstraint"):
                    wanted = constraint["requiredTopologyLevel"]
                    who = group["name"].removeprefix("rl-")
                    found.append((who, constraint["topology"], wanted))
        elif obj["kind"] == "RayJob":
            cluster = spec["rayClusterSpec"]
            groups = [("head", cluster["headGroupSpec"])]
            groups += [(g["groupName"], g) for g in cluster["workerGroupSpecs"]]
            places = [(who, group["template"]) for who, group in groups]
        elif obj["kind"] == "JobSet":
            jobs = spec["replicatedJobs"]
            places = [(job["name"].removeprefix("rl-"), job["template"]) for job in jobs]
        for who, place in places:
            annotations = place.get("metadata", {}).get("annotations", {})
            if topology := annotations.get("kai.scheduler/topology"):
                level = annotations["kai.scheduler/topology-required-placement"]
                found.append((who, topology, level))
    return found


@pytest.mark.parametrize("variant", ["prod-monolithic-rayjob", "prod-disagg-jobset"])
def test_a_gang_that_kai_groups_has_one_priority(variant: str) -> None:
    # KAI would take that of whichever pod it saw last.
    [obj] = [o for o in render_variant(variant) if o["kind"] in ("RayJob", "JobSet")]
    assert obj["metadata"]["labels"]["priorityClassName"] == "rl-worker"
    assert {pod.spec["priorityClassName"] for pod in pods_of(obj)} == {"rl-head", "rl-worker"}


def test_the_runs_own_overlay_follows_where_there_is_a_group_only() -> None:
    assert any("follow" in c for c in overlay(VARIANT, "x", render_variant(VARIANT))["components"])
    other = "monolithic-rayjob"
    assert overlay(other, "x", render_variant(other))["components"] == [
        "../../kustomize/components/name-references"
    ]
    assert "PodGroup" in identity.ORDER_FIRST
