"""Configurations that are wrong: each with its message, all at once, and nothing started."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from slurm_launcher import checks
from slurm_launcher.__main__ import EXAMPLE
from slurm_launcher.config import Config
from tandem_common.errors import ExitCode, UserError

Change = Callable[[dict[str, Any]], object]


def example() -> dict[str, Any]:
    """Return a configuration that is right."""
    said: dict[str, Any] = yaml.safe_load(EXAMPLE)
    return said


def load(said: Any, links: dict[str, str] | None = None) -> Config:
    """Load a configuration; `links` says what paths really are."""
    known = links or {}
    return checks.load(yaml.safe_dump(said), resolve=lambda path: known.get(path, path))


def _pool(**fields: Any) -> Change:
    return lambda said: said["pools"][0].update(fields)


def _training(**fields: Any) -> Change:
    return lambda said: said["training"].update(fields)


def _second(**fields: Any) -> Change:
    """Add a pool that differs from the first one enough to be right, then change it."""

    def change(said: dict[str, Any]) -> None:
        other = copy.deepcopy(said["pools"][0])
        other |= {"name": "REWARD", "port": 9313, "placeholder": "__REWARD_URL__"}
        said["training"]["command"].append("b=__REWARD_URL__")
        said["pools"].append(other | fields)

    return change


def _top(**fields: Any) -> Change:
    return lambda said: said.update(fields)


WRONG: list[tuple[str, Change, str]] = [
    ("a name in small letters", _pool(name="judge"), "pools.0.name='judge'"),
    ("a name with a dash", _pool(name="A-B"), "pools.0.name='A-B'"),
    ("a name that is there twice", _second(name="JUDGE"), "pool JUDGE is there twice"),
    ("zeros in front", _pool(replicas="08"), "without zeros in front"),
    ("an octal number", _pool(replicas="010"), "without zeros in front"),
    ("a sign", _pool(replicas="+2"), "without sign"),
    ("no replica", _pool(replicas=0), "pools.0.replicas=0"),
    ("a number of 20 digits", _pool(replicas="9" * 20), "pools.0.replicas"),
    ("a truth as a number", _pool(replicas=True), "not a whole number"),
    ("a fraction", _pool(replicas=1.5), "not a whole number"),
    ("a port above all", _pool(port=65536), "pools.0.port=65536"),
    ("a port of the system's", _pool(port=80), "pools.0.port=80"),
    ("a port of Ray's", _pool(port=2005), "2005 lies in 2000-2999"),
    ("a port of outgoing connections", _pool(port=40000), "40000 lies in 32768-60999"),
    ("a metrics port in a band", _pool(port=1600), "metrics port of JUDGE (port + 500): 2100"),
    ("a port that is taken", _second(port=9213), "9213 is the port of JUDGE too"),
    ("a port that another one's metrics have", _second(port=9713), "9713 is the metrics port"),
    ("a server's port in a band", _pool(vllm_port=7000), "vllm_port of JUDGE: 7000"),
    ("an agent's port in a band", _pool(vllm_port=9001), "10001 lies in"),
    ("a placeholder that is not there", _training(command=["x"]), "has no '__JUDGE_URL__'"),
    ("a placeholder of two pools", _second(placeholder="__JUDGE_URL__"), "is of two pools"),
    (
        "a placeholder in another", _second(placeholder="x__JUDGE_URL__x"),
        "'__JUDGE_URL__' is a part of",
    ),
    ("a placeholder like a path", _pool(placeholder="url"), "could be a part of an address"),
    ("TP that leaves GPUs", _pool(tensor_parallel_size=3), "3 GPUs a replica"),
    ("TP x PP that leaves GPUs", _pool(pipeline_parallel_size=3, tensor_parallel_size=4),
     "12 GPUs a replica (TP 4 x PP 3"),
    ("nodes that do not sum up", lambda s: s["components"][0].update(nodes=7),
     "nodes=7, its pools take 3"),
    ("a component that is not there", _pool(component="x"), "wants component 'x'"),
    ("a component without a pool", lambda s: s["components"].append(
        {"name": "idle", "gpus_per_node": 4}), "component idle has no pool"),
    ("a component twice", lambda s: s["components"].append(s["components"][0]),
     "component judges is there twice"),
    ("a quorum above the replicas", _pool(min_ready=3), "min_ready=3 of 2 replicas"),
    ("one node without --no-kill", _training(nodes=1), "at least 2 nodes"),
    ("a dedicated head and nobody to work", lambda s: (
        s["training"].update(nodes=1, dedicated_ray_head=True), s.update(no_kill=False)),
     "no node is left to work"),
    ("workers that do not sum up", _training(worker_nodes=4, dedicated_ray_head=True),
     "set training.nodes to 5"),
    ("a model outside", _pool(model="/home/x"), "/home/x is not under /lustre"),
    ("a model that climbs out", _pool(model="/lustre/../etc"), "/lustre/../etc"),
    ("a relative log folder", _top(log_dir="logs"), "log_dir='logs': not an absolute path"),
    ("logs outside", _top(log_dir="/tmp/logs"), "log_dir: /tmp/logs is not under"),  # noqa: S108
    ("a relative root", _top(shared_root="lustre"), "shared_root='lustre'"),
    ("a managed argument", _pool(args=["--port", "9999"]), "--port in args"),
    ("a managed argument with =", _pool(args=["--tensor_parallel_size=8"]),
     "--tensor-parallel-size in args"),
    ("a variable that is none", _pool(env={"NOT VALID": "1"}), "'NOT VALID'"),
    ("a managed variable", _pool(env={"RAY_ADDRESS": "x"}), "RAY_ADDRESS in env"),
    ("a variable that is no text", _pool(env={"A": 1}), "put it in quotes"),
    ("a name of a variable to pass", _pool(pass_env=["A=B"]), "'A=B'"),
    ("a managed argument of sbatch", lambda s: s["slurm"].update(extra=["--nodes=9"]),
     "slurm: --nodes in extra"),
    ("a time that is none", lambda s: s["slurm"].update(time="soon"), "time limit"),
    ("a field that is none", _pool(replica=2), "pools.0.replica: there is no such field"),
    ("a field that is missing", lambda s: s["pools"][0].pop("model"), "pools.0.model is missing"),
    ("no pool", _top(pools=[]), "pools=[]"),
    ("another version", _top(version=2), "version=2"),
    ("an argument with a NUL", _training(command=["a\0b", "__JUDGE_URL__"]), "NUL"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "part"), [row[1:] for row in WRONG],
                         ids=[row[0] for row in WRONG])  # fmt: skip
def test_what_is_wrong_is_named(change: Change, part: str) -> None:
    said = example()
    change(said)
    links = {"/lustre/../etc": "/etc"}
    with pytest.raises(UserError) as told:
        load(said, links)
    assert told.value.code == ExitCode.USAGE
    assert part in str(told.value)
    assert all(problem.fix for problem in told.value.problems)


def test_the_example_is_right() -> None:
    load(example())


def test_a_second_pool_is_right() -> None:
    said = example()
    _second()(said)
    load(said)


@pytest.mark.parametrize(
    "changes",
    [
        # Wrong between fields.
        (_pool(port=2005), _pool(min_ready=9), _training(nodes=1), _pool(args=["--port=1"]),
         _top(log_dir="/tmp/logs")),  # noqa: S108
        # Wrong in fields, and between those that are right.
        (_pool(replicas="08", tensor_parallel_size="x"), _second(), _second(name="R2"),
         _top(version=3), _training(nodes="-1")),
    ],
)  # fmt: skip
def test_five_at_once_are_told_at_once(changes: tuple[Change, ...]) -> None:
    said = example()
    for change in changes:
        change(said)
    with pytest.raises(UserError) as told:
        load(said)
    assert len(told.value.problems) >= 5


def test_a_link_that_leads_out_is_seen() -> None:
    said = example()
    said["pools"][0]["shared_paths"] = ["/lustre/link"]
    with pytest.raises(UserError, match=r"/lustre/link \(really /home/me\)"):
        load(said, {"/lustre/link": "/home/me"})


def test_a_root_that_is_a_link_itself_holds_what_is_under_it() -> None:
    links = {"/lustre": "/data", "/lustre/logs": "/data/logs",
             "/lustre/models/judge": "/data/models/judge"}  # fmt: skip
    load(example(), links)


@pytest.mark.parametrize("text", ["", "3", "[]", "{", "a: b: c"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        checks.load(text)
