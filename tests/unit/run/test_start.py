import json
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import ExitCode, UserError
from tandem.render import render_variant
from tandem.run.kube import the_driver, the_rayjob
from tandem.run.metrics import first_and_last_reward, metrics_of, read_steps
from tandem.run.start import has_ended, images_of, missing_images

RAYJOB: dict[str, Any] = {
    "kind": "RayJob",
    "spec": {
        "rayClusterSpec": {
            "headGroupSpec": {
                "template": {
                    "spec": {
                        "initContainers": [{"name": "wait", "image": "localhost/tandem/a:dev"}],
                        "containers": [{"name": "ray-head", "image": "localhost/tandem/b:dev"}],
                    }
                }
            },
            "workerGroupSpecs": [
                {"template": {"spec": {"containers": [{"name": "w", "image": "nvcr.io/x:1"}]}}}
            ],
        }
    },
}


def test_images_are_found_at_any_depth() -> None:
    assert images_of([RAYJOB]) == {
        "localhost/tandem/a:dev",
        "localhost/tandem/b:dev",
        "nvcr.io/x:1",
    }


def test_only_local_images_have_to_be_on_the_node_already() -> None:
    problems = missing_images([RAYJOB], present={"localhost/tandem/a:dev"})
    assert [problem.what for problem in problems] == [
        "image localhost/tandem/b:dev is not on the node"
    ]


def test_an_unknown_variant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown variant: monolitic") as refused:
        render_variant("monolitic")
    assert refused.value.code == ExitCode.USAGE
    assert "monolithic-rayjob" in refused.value.problems[0].fix


@pytest.mark.parametrize("count", [0, 2])
def test_a_variant_without_exactly_one_rayjob_is_refused(count: int) -> None:
    with pytest.raises(UserError, match=f"holds {count} RayJobs"):
        the_rayjob([RAYJOB] * count, "some")


def test_lines_that_are_no_step_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    step = {"step": 1, "mean_reward": 0.5}
    path.write_text(f"{json.dumps(step)}\n[]\nnot json\n{{}}\n")
    assert read_steps(path) == [step]
    assert metrics_of('{"step": 1') is None
    assert read_steps(tmp_path / "missing") == []


def test_the_reward_at_both_ends_is_a_mean_of_five_steps() -> None:
    steps = [{"step": i, "mean_reward": float(i)} for i in range(10)]
    assert first_and_last_reward(steps) == (2.0, 7.0)
    assert first_and_last_reward([]) is None


def test_the_driver_is_found_among_other_jobs() -> None:
    labels = {"tandem.dev/role": "driver"}
    driver = {"kind": "Job", "metadata": {"name": "driver", "labels": labels}}
    watcher = {"kind": "Job", "metadata": {"name": "peer-watcher"}}
    assert the_driver([watcher, driver], "some") is driver
    for objects in ([watcher], [driver, driver]):
        with pytest.raises(UserError, match="driver Jobs, exactly one is expected"):
            the_driver(objects, "some")


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        ([], False),
        ([{"type": "Complete", "status": "True"}], True),
        ([{"type": "Failed", "status": "True"}], True),
        ([{"type": "Failed", "status": "False"}, {"type": "Suspended", "status": "True"}], False),
    ],
)
def test_a_job_has_ended_when_a_condition_says_so(
    conditions: list[dict[str, str]],
    ended: bool,  # noqa: FBT001 - a parameter of the table above
) -> None:
    assert has_ended({"status": {"conditions": conditions}}) is ended
    assert not has_ended({})
