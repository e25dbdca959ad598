import json
from pathlib import Path
from typing import Any

import pytest

from support.run_objects import job, jobset, pod, raycluster
from tandem.errors import ExitCode, UserError
from tandem.render import render_variant
from tandem.run.metrics import (
    StepTeller,
    first_and_last_reward,
    metrics_of,
    read_steps,
    steps_in,
)
from tandem.run.shapes import deadline_of, top_of
from tandem.run.start import images_of, judge_former, missing_images
from tandem_trainer.metrics import LINE_PREFIX

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


def test_what_stands_for_a_run_is_told_by_its_shape() -> None:
    driver, watcher = job(), job("peer-watcher-rl", "watcher")
    sides = [raycluster("rl", "rl"), raycluster("gym", "gym")]
    rayjob = {"kind": "RayJob", "metadata": {"name": "r"}}
    assert top_of([*sides, watcher, driver], "some") is driver
    made = jobset()
    assert top_of([watcher, made], "some") is made
    assert top_of([rayjob, watcher], "some") is rayjob
    for objects in ([], sides, [watcher], [driver, driver], [rayjob, rayjob]):
        with pytest.raises(UserError, match="variant some needs one RayJob") as refused:
            top_of(objects, "some")
        assert refused.value.code == ExitCode.USAGE


def test_a_deadline_is_the_clusters_own() -> None:
    assert deadline_of({"spec": {"activeDeadlineSeconds": 900}}) == 900
    template = {"spec": {"activeDeadlineSeconds": 600}}
    jobs = [{"name": "driver", "template": template}, {"name": "rl", "template": {"spec": {}}}]
    assert deadline_of({"spec": {"replicatedJobs": jobs}}) == 600
    assert deadline_of({"spec": {}}) == 86400


@pytest.mark.parametrize(
    ("things", "going"),
    [
        ([], ""),
        # What a followed run leaves.
        ([job(ended="Complete"), pod("driver", phase="Succeeded", ready=False)], ""),
        ([job(ended="Failed"), raycluster("rl", "rl")], ""),
        ([pod("rl", "head", deletionTimestamp="now")], ""),
        ([job(deletionTimestamp="now"), raycluster("gym", "gym", deletionTimestamp="now")], ""),
        ([job(), pod("driver", phase="Pending", waiting="ErrImageNeverPull")], ""),
        # A registry out of reach may come back.
        ([job(), pod("driver", phase="Pending", waiting="ErrImagePull")], "Job driver-a7"),
        ([job(), raycluster("rl", "rl"), pod("rl", "head")], "Job driver-a7 (Running)"),
        # Its driver is not there yet, or any more: whoever started it is at work, or a watcher.
        ([raycluster("rl", "rl")], "RayCluster rl"),
        ([jobset()], "JobSet run-a7 (New)"),
    ],
)
def test_a_former_run_makes_room_when_nothing_comes_of_it_any_more(
    things: list[dict[str, Any]], going: str
) -> None:
    former = judge_former(things)
    assert former.going.startswith(going)
    assert bool(former.going) is bool(going)
    assert former.things == things


def test_steps_are_found_in_a_drivers_output(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["loading", f'{LINE_PREFIX}{{"step": 1, "mean_reward": 0.5}}', f"{LINE_PREFIX}cut {{"]
    assert steps_in(lines) == [{"step": 1, "mean_reward": 0.5}]
    teller = StepTeller()
    teller.take(lines[0])
    assert [teller.any] == [False]
    for line in lines * 2:
        teller.take(line)
    assert teller.any
    assert capsys.readouterr().err.count("mean reward 0.500") == 1


def test_other_trainers_lines_are_passed_over() -> None:
    teller = StepTeller()
    for line in ('{"step": 3, "loss": 0.1}', f'{LINE_PREFIX}{{"step": null}}', f"{LINE_PREFIX}[1]"):
        teller.take(line)
        assert metrics_of(line) is None
    assert not teller.any
