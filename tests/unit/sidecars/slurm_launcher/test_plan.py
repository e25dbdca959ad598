"""What a submission is going to be."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_launcher import checks, placement, plan
from slurm_launcher.__main__ import EXAMPLE
from slurm_launcher.config import Config, Pool
from slurm_launcher.submit import submit
from tandem_common.errors import UserError

ODD = ["a,b", "new\nline", "quote'\"", "*", "$(touch /tmp/x)", "`id`", "back\\slash", "ümlaut", " "]


def load(**pool: Any) -> Config:
    said = yaml.safe_load(EXAMPLE)
    said["pools"][0].update(pool)
    return checks.load(yaml.safe_dump(said), resolve=lambda path: path)


def pool(name: str = "A", **fields: Any) -> Pool:
    return Pool.model_validate(
        {"name": name, "model": "m", "replicas": 1, "port": 9213, "placeholder": "{x}"} | fields
    )


def test_replicas_have_whole_nodes_in_slurms_order() -> None:
    pools = [pool("A", replicas=2, tensor_parallel_size=16), pool("B", replicas=1)]
    places = placement.place(pools, 8, 1)
    assert [(each.pool, each.first_node, each.nodes, each.slot) for each in places] == [
        ("A", 0, 2, 0), ("A", 2, 2, 0), ("B", 4, 1, 0),
    ]  # fmt: skip
    assert placement.nodes_of(places) == 5


def test_small_replicas_share_a_node_but_never_with_another_pool() -> None:
    pools = [pool("A", replicas=3, tensor_parallel_size=2), pool("B", tensor_parallel_size=4)]
    places = placement.place(pools, 4, 1)
    assert [(each.pool, each.first_node, each.slot) for each in places] == [
        ("A", 0, 0), ("A", 0, 1), ("A", 1, 0), ("B", 2, 0),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from([1, 2, 4, 8, 16])),
             min_size=1, max_size=4)
)  # fmt: skip
def test_no_gpu_has_two_replicas(rows: list[tuple[int, int, int]]) -> None:
    pools = [
        pool(f"P{number}", replicas=replicas, spares=spares, tensor_parallel_size=size)
        for number, (replicas, spares, size) in enumerate(rows)
    ]
    places = placement.place(pools, 4, 1)
    used = [
        (node, place.slot * place.gpus_per_node + gpu)
        for place in places
        for node in range(place.first_node, place.first_node + place.nodes)
        for gpu in range(place.gpus_per_node)
    ]
    assert len(used) == len(set(used)) == sum(each.gpus * (each.replicas + each.spares)
                                              for each in pools)  # fmt: skip
    assert all(0 <= gpu < 4 for _, gpu in used)
    assert placement.nodes_of(places) == len({node for node, _ in used})


def test_every_component_survives_a_lost_node_and_only_the_first_has_the_jobs_options() -> None:
    words = plan.sbatch(plan.build(load()), "job.sh")
    parts = " ".join(words).split(" : ")
    assert len(parts) == 2
    assert all("--no-kill" in part.split() for part in parts)
    assert "--signal=B:USR1@300" in parts[0]
    assert "--signal" not in parts[1]
    assert words[:2] == ["sbatch", "--parsable"]
    assert words[-1] == "job.sh"


def test_what_is_not_named_does_not_reach_the_job() -> None:
    config = load(pass_env=["HF_TOKEN"])
    export = next(
        word for word in plan.sbatch(plan.build(config), "x") if word.startswith("--export=")
    )
    names = export.removeprefix("--export=").split(",")
    assert "HF_TOKEN" in names
    assert "ALL" not in names
    assert "WANDB_API_KEY" not in names
    # A value would be cut at a comma.
    assert "=" not in "".join(names)


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_arrive_as_they_are(odd: str) -> None:
    config = load(args=["--x", odd], env={"ODD": odd})
    (one,) = [each for each in plan.build(config).pools if each.name == "JUDGE"]
    assert one.replicas[0].command[-2:] == ("--x", odd)
    frozen = Config.model_validate_json(config.model_dump_json())
    assert frozen == config
    assert frozen.pools[0].env == {"ODD": odd}
    command = plan.injected((odd, "a=__JUDGE_URL__", f"{odd}__JUDGE_URL__"),
                            {"__JUDGE_URL__": "http://h:1"})  # fmt: skip
    assert command == (odd, "a=http://h:1", f"{odd}http://h:1")


def test_the_script_holds_nothing_that_a_shell_could_read() -> None:
    odd = "/lustre/it's $(touch x)/pools.json"
    script = plan.script(odd, python="/usr/bin/python3")
    last = script.splitlines()[-1]
    assert shlex.split(last) == [
        "exec", "/usr/bin/python3", "-m", "slurm_launcher", "run-in-allocation", "--config", odd,
    ]  # fmt: skip


def test_replicas_on_a_node_have_ports_of_their_own() -> None:
    made = plan.build(load(tensor_parallel_size=2, replicas=4, spares=0))
    (one,) = made.pools
    assert [each.port for each in one.replicas] == [8000, 8001, 8002, 8003]
    assert len({each.agent_port for each in one.replicas}) == 4
    assert made.components[1].nodes == 1


def test_a_replica_of_several_nodes_has_a_private_ray() -> None:
    (one,) = plan.build(load(tensor_parallel_size=16)).pools
    first = one.replicas[0]
    assert first.ray_ports is not None
    assert first.command[-2:] == ("--distributed-executor-backend", "ray")
    assert first.place.nodes == 2


def test_a_plan_is_shown_and_is_json() -> None:
    made = plan.build(load())
    text = plan.text(made)
    for part in ("1 judges: 3 nodes of 8 GPUs", "judge-0", "judge-spare-0", "port 8000",
                 "judge.base_url=http://<first node of training>:9213", "state.json"):  # fmt: skip
        assert part in text
    said = json.loads(json.dumps(made.as_json()))
    assert said["components"][1]["nodes"] == 3
    assert said["pools"][0]["replicas"][2]["spare"] is True


def test_a_replica_of_several_nodes_is_planned_and_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/sh\necho 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    config = load(tensor_parallel_size=16).model_copy(update={"log_dir": str(tmp_path / "logs")})
    with pytest.raises(UserError, match="a replica has 2 nodes"):
        submit(config)
    assert not (tmp_path / "logs").exists()
