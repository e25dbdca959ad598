"""Command lines of srun."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_launcher.allocation import steps
from slurm_launcher.config import Pool
from slurm_launcher.placement import Place

PLACE = Place(pool="A", index=0, component=1, first_node=0, nodes=2, slot=0, gpus_per_node=4)


def step(**fields: Any) -> steps.Step:
    pool = Pool.model_validate(
        {"name": "A", "model": "m", "replicas": 1, "port": 9213, "placeholder": "{x}"} | fields
    )
    return steps.replica(
        pool, PLACE, name="a-0", nodes=["n3", "n4"], log="/lustre/a.log",
        command=["run", "a b", "$(x)"], environment={"K": "a,b"}, basic=["PATH", "K"],
    )  # fmt: skip


def test_a_lost_node_ends_this_step_alone_and_a_lost_task_all_of_it() -> None:
    argv = step().argv
    for word in ("--no-kill", "--kill-on-bad-exit=1", "--het-group=1", "--nodelist=n3,n4",
                 "--nodes=2", "--ntasks=2", "--gres=gpu:4", "--overlap"):  # fmt: skip
        assert word in argv


def test_the_command_is_passed_as_arguments() -> None:
    assert step().argv[-3:] == ("run", "a b", "$(x)")


def test_values_of_variables_are_in_no_argument() -> None:
    made = step(pass_env=["HF_TOKEN"])
    assert made.environment == {"K": "a,b"}
    (export,) = [word for word in made.argv if word.startswith("--export")]
    assert export == "--export=PATH,K,HF_TOKEN"


@pytest.mark.parametrize(("fields", "words"), [
    ({}, []),
    ({"container": "/i.sqsh"}, ["--container-image=/i.sqsh"]),
    ({"container": "/i.sqsh", "mounts": ["/a:/b", "/c:/d"]},
     ["--container-image=/i.sqsh", "--container-mounts=/a:/b,/c:/d"]),
])  # fmt: skip
def test_containers(fields: dict[str, Any], words: list[str]) -> None:
    assert [word for word in step(**fields).argv if word.startswith("--container")] == words
