"""A run's overlay: every name and label of a variant becomes the run's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint_registry.records import NAME_PREFIX, object_name
from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import ExitCode, UserError
from tandem.policy import GROUP_ANNOTATION, pods_of
from tandem.render import KUSTOMIZE, kustomize, render_variant, variants
from tandem.run import identity
from tandem.run.identity import RUN_ID_LENGTH, write_overlay
from tandem.run.shapes import BELONGINGS, ROLE_LABEL, WORKLOADS, labels_of, top_of
from tandem.yamls import load_all

Object = dict[str, Any]

#: A run's overlay lies where it does for people: beside kustomize/.
RUN_ID = "test-7"
LONGEST = "x" * RUN_ID_LENGTH
#: Keys whose value names an object of the run, and paths of which every value does.
REFERENCES = ("serviceAccountName", "claimName", "resourceClaimTemplateName")
NAMED_IN = ("secretKeyRef", "configMap", "configMapKeyRef", "secret", "subjects", "roleRef")
#: KubeRay and Kubernetes cut what is longer; JobSet refuses it.
NAME_LENGTH = 63
COMPONENTS = KUSTOMIZE / "components"

#: Kustomize leaves an object with this annotation out of what it writes.
LOCAL_CONFIG = "config.kubernetes.io/local-config"


@pytest.fixture
def runs() -> Iterator[None]:
    """Nothing is left of the overlays that a test writes."""
    yield
    for run_id in (RUN_ID, LONGEST):
        for folder in identity.RUNS.glob(f"{run_id}*"):
            identity.drop_overlay(folder)


def references(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield each place that names another object, and the name."""
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str):
                named = key == "name" and any(part in above for part in NAMED_IN)
                marked = above[-1:] == ("annotations",) and (
                    key.startswith("tandem.dev/") or key == GROUP_ANNOTATION
                )
                if key in REFERENCES or named or marked:
                    yield ".".join((*above, key)), value
            yield from references(value, (*above, key))
    elif isinstance(node, list):
        for each in node:
            if above[-1:] == ("resourceNames",):
                yield ".".join(above), each
            yield from references(each, above)


@pytest.mark.parametrize("variant", variants())
def test_nothing_of_a_run_bears_another_runs_name(variant: str, runs: None) -> None:
    assert runs is None
    plain = render_variant(variant)
    of_run = kustomize(write_overlay(variant, RUN_ID))
    own = {obj["metadata"]["name"] for obj in plain}
    assert {obj["metadata"]["name"] for obj in of_run} == {f"{name}-{RUN_ID}" for name in own}
    for obj in of_run:
        assert labels_of(obj)[RUN_ID_LABEL] == RUN_ID
        for place, name in references(obj):
            assert name not in own, f"{obj['kind']}: {place} still names {name}"
            if name.startswith(NAME_PREFIX):
                assert name == object_name(RUN_ID), place
        for pod in pods_of(obj):
            assert pod.metadata["labels"][RUN_ID_LABEL] == RUN_ID, pod.where


@pytest.mark.parametrize("variant", variants())
def test_the_form_of_a_variant_is_kept(variant: str, runs: None) -> None:
    assert runs is None
    plain, of_run = render_variant(variant), kustomize(write_overlay(variant, RUN_ID))
    assert [obj["kind"] for obj in plain] == [obj["kind"] for obj in of_run]
    before, after = top_of(plain, variant), top_of(of_run, variant)
    assert after["kind"] == before["kind"]
    # A field made out of nothing, such as an empty worker group, is a defect of its own.
    made = {(obj["kind"], obj["metadata"]["name"]): obj for obj in of_run}
    for old in plain:
        # By name: with the suffix, one name may come before another that it came after.
        new = made[old["kind"], f"{old['metadata']['name']}-{RUN_ID}"]
        assert keys(new["metadata"]) - keys(old["metadata"]) <= {
            ".labels",
            f".labels.{RUN_ID_LABEL}",
        }
        for part in ("spec", "rules", "data"):
            if part in old:
                assert keys(new[part]) == keys(old[part])


def keys(node: Any, above: str = "") -> set[str]:
    if isinstance(node, dict):
        return {
            path
            for key, value in node.items()
            for path in (f"{above}.{key}", *keys(value, f"{above}.{key}"))
        }
    if isinstance(node, list):
        return {path for at, value in enumerate(node) for path in keys(value, f"{above}[{at}]")}
    return set()


@pytest.mark.parametrize("variant", variants())
def test_the_longest_run_id_fits_into_every_name(variant: str, runs: None) -> None:
    assert runs is None
    of_run = kustomize(write_overlay(variant, LONGEST))
    for obj in of_run:
        name = obj["metadata"]["name"]
        made = [name]
        if obj["kind"] == "JobSet":
            made = [f"{name}-{job['name']}-99-99-xxxxx" for job in obj["spec"]["replicatedJobs"]]
            # A label with the coordinator's DNS name.
            made.append(f"{name}-rl-head-0-0.{name}")
        elif obj["kind"] == "RayCluster":
            made = [f"{name}-head-svc", f"{name}-workers-worker-xxxxx"]
        elif obj["kind"] == "Job":
            made = [f"{name}-xxxxx"]
        assert all(len(each) <= NAME_LENGTH for each in made), made
        # KubeRay's own limit for what it makes a RayCluster of.
        assert obj["kind"] != "RayJob" or len(name) <= 47


def test_every_pod_says_its_role(runs: None) -> None:
    assert runs is None
    for variant in variants():
        for obj in kustomize(write_overlay(variant, RUN_ID)):
            for pod in pods_of(obj):
                labels = pod.metadata["labels"]
                watcher = labels.get("app.kubernetes.io/name") == "peer-watcher"
                assert watcher or labels[ROLE_LABEL] in ("rl", "gym", "driver", "pool"), pod.where


def test_a_start_that_is_refused_leaves_the_overlay_of_the_one_that_goes_on(runs: None) -> None:
    assert runs is None
    kept = identity.keep_overlay(write_overlay("monolithic-rayjob", RUN_ID), RUN_ID)
    assert identity.variant_of(RUN_ID) == "monolithic-rayjob"
    folder = write_overlay("disagg-rayclusters", RUN_ID)
    assert folder != kept
    assert folder != write_overlay("disagg-rayclusters", RUN_ID), "two at once do not meet"
    identity.drop_overlay(folder)
    assert not folder.exists()
    assert identity.variant_of(RUN_ID) == "monolithic-rayjob"
    assert {obj["kind"] for obj in kustomize(kept)} == {"RayJob"}
    identity.keep_overlay(write_overlay("disagg-rayclusters", RUN_ID), RUN_ID)
    assert identity.variant_of(RUN_ID) == "disagg-rayclusters"


@pytest.mark.parametrize(
    ("run_id", "said"),
    [
        ("Ppo", ["is no DNS label"]),
        ("-a", ["is no DNS label"]),
        ("a.b", ["is no DNS label"]),
        ("../x", ["is no DNS label"]),
        ("x" * 21, ["has 21 characters"]),
        ("X" * 21, ["is no DNS label", "has 21 characters"]),
    ],
)
def test_a_wrong_run_id_is_refused_with_every_reason(run_id: str, said: list[str]) -> None:
    before = set(Path(identity.RUNS).glob("*"))
    with pytest.raises(UserError) as refused:
        write_overlay("monolithic-rayjob", run_id)
    assert refused.value.code == ExitCode.USAGE
    problems = [problem.what for problem in refused.value.problems]
    assert len(problems) == len(said)
    assert all(words in what for words, what in zip(said, problems, strict=True))
    assert set(Path(identity.RUNS).glob("*")) == before


def test_whatever_a_variant_brings_is_found_when_it_is_removed() -> None:
    known = {each.kind for each in (*WORKLOADS, *BELONGINGS)}
    objects = [obj for variant in variants() for obj in render_variant(variant)]
    brought = COMPONENTS.rglob("*.yaml")
    kinds = {
        obj["kind"]
        for path in brought
        for obj in load_all(path.read_text(encoding="utf-8"))
        # What only the component itself reads reaches no cluster.
        if LOCAL_CONFIG not in (obj.get("metadata") or {}).get("annotations", {})
    }
    assert {obj["kind"] for obj in objects} <= known
    assert kinds - {"Component", "Kustomization"} <= known
    # By its label, under its own id, too.
    assert all(labels_of(obj).get(RUN_ID_LABEL) for obj in objects)
