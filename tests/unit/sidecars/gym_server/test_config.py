from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from gym_server import config
from gym_server.config import Judges, Loaded, Run
from tandem_common.errors import UserError

SERVER = """\
vowels:
  resources_servers:
    vowels: {entrypoint: app.py}
"""
POLICY = """\
policy_model:
  responses_api_models:
    vllm_model: {entrypoint: app.py, base_url: "${policy_base_url}", own: 1}
"""
RUN = Run(
    host="10.0.0.7", head_listen="127.0.0.2", head_port=9090, port_low=15000, port_high=15999,
    model="policy", api_key="key",
)  # fmt: skip


class Folder:
    """A folder of configs, which is also where NeMo Gym's own files are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def load(
        self, *texts: str, key: str = "", strict: bool = False, judges: tuple[str, ...] = ()
    ) -> Loaded:
        files = [self.write(f"own-{at}.yaml", text) for at, text in enumerate(texts)]
        return config.load(
            files, key=key, strict=strict, roots=[self.path], environ={"HOME": "/root"},
            judges=judges,
        )  # fmt: skip

    def problems(self, *texts: str, key: str = "", strict: bool = False) -> list[str]:
        with pytest.raises(UserError) as caught:
            self.load(*texts, key=key, strict=strict)
        assert caught.value.code == 2
        assert all(problem.fix for problem in caught.value.problems)
        return [problem.what.replace(str(self.path), ".") for problem in caught.value.problems]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_files_are_merged_by_key_and_later_ones_win(folder: Folder) -> None:
    loaded = folder.load(SERVER + "a: {b: 1, c: [1, 2]}\n", "a: {c: [3], d: 4}\n")
    assert loaded.config["a"] == {"b": 1, "c": [3], "d": 4}
    assert "vowels" in loaded.config


def test_a_section_of_a_recipe_is_taken_and_the_trainers_keys_are_left_out(
    folder: Folder,
) -> None:
    recipe = (
        "policy: {model_name: big}\nenv:\n  nemo_gym:\n    is_trajectory_collection: true\n"
        "    rollout_max_attempts_to_avoid_lp_nan: 1\n    x: 1\n    vowels:\n"
        "      resources_servers: {vowels: {entrypoint: app.py}}\n"
    )
    loaded = folder.load(recipe, key="env.nemo_gym")
    assert sorted(loaded.config) == ["vowels", "x"]


def test_what_cannot_be_resolved_is_dropped_and_told(folder: Folder) -> None:
    loaded = folder.load(SERVER + "a: {b: '${policy.model}', c: ['${oc.env:HOME}', '${x}']}\n")
    assert loaded.config["a"] == {"c": ["${oc.env:HOME}"]}
    assert [one.path for one in loaded.dropped] == ["a.b", "a.c[1]"]


def test_strict_refuses_it_with_every_path(folder: Folder) -> None:
    problems = folder.problems(SERVER + "a: {b: '${policy.model}', c: ['${x}']}\n", strict=True)
    assert problems == [
        "a.b: ${policy.model} cannot be resolved here: no key `policy.model` here",
        "a.c[0]: ${x} cannot be resolved here: no key `x` here",
    ]


def test_keys_of_the_files_below_and_of_the_run_can_be_referred_to(folder: Folder) -> None:
    folder.write("gym/a.yaml", "config_paths: [gym/b.yaml]\n" + SERVER)
    folder.write("gym/b.yaml", "deep: {x: 1}\n")
    text = "config_paths: [gym/a.yaml]\none: '${deep.x}'\ntwo: '${policy_model_name}'\n"
    loaded = folder.load(text)
    assert loaded.dropped == ()
    assert loaded.config["one"] == "${deep.x}"


def test_everything_that_is_wrong_is_told_at_once(folder: Folder) -> None:
    problems = folder.problems("a: [1\n", "just text\n", "a: 1\na: 2\n")
    assert len(problems) == 3
    assert problems[0].startswith("./own-0.yaml is no YAML:")
    assert "line 2" in problems[0]
    assert problems[1] == "./own-1.yaml is no mapping but str"
    assert problems[2].startswith("./own-2.yaml is no YAML: key 'a' stands twice")


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("env: {}\n", "env.nemo_gym", "./own-0.yaml has no key env.nemo_gym"),
        ("env: 1\n", "env.nemo_gym", "./own-0.yaml has no key env.nemo_gym"),
        ("x: 1\n", "env.nemo_gym", "./own-0.yaml has no key env"),
        ("config_paths: gym/a.yaml\n", "", "config_paths: 'gym/a.yaml' is no list of paths"),
        (
            "config_paths: [gym/a.yaml]\n", "",
            "config_paths[0]: 'gym/a.yaml' was not found; looked at ./gym/a.yaml",
        ),
        ("x: 1\n", "", "the config starts no server"),
        ("vowels: {resources_servers: {vowels: {}}}\n", "", "the config starts no server"),
    ],
)  # fmt: skip
def test_a_wrong_config_is_refused_with_the_path_of_its_key(
    folder: Folder, text: str, key: str, problem: str
) -> None:
    (only,) = folder.problems(text, key=key)
    assert only.startswith(problem)


def test_a_file_below_that_names_a_missing_one_is_told_with_its_place(folder: Folder) -> None:
    folder.write("gym/a.yaml", "config_paths: [gym/b.yaml]\n" + SERVER)
    (only,) = folder.problems("config_paths: [gym/a.yaml]\n")
    assert only.startswith("./gym/a.yaml: config_paths[0]: 'gym/b.yaml' was not found")


def test_files_that_name_each_other_are_read_once(folder: Folder) -> None:
    folder.write("gym/a.yaml", "config_paths: [gym/b.yaml]\n" + SERVER)
    folder.write("gym/b.yaml", "config_paths: [gym/a.yaml]\n")
    assert folder.load("config_paths: [gym/a.yaml]\n").dropped == ()


def test_a_path_that_only_gym_can_resolve_is_left_to_it(folder: Folder) -> None:
    text = "config_paths: ['${oc.env:HOME}/a.yaml']\n"
    assert folder.load(text).config["config_paths"] == ["${oc.env:HOME}/a.yaml"]


def test_what_the_run_knows_wins_over_the_files(folder: Folder) -> None:
    loaded = folder.load(SERVER + "default_host: here\nport_range_low: 1\nx: 1\n")
    assert loaded.replaced == ("default_host", "port_range_low")
    composed = config.compose(loaded, RUN, ["http://10.0.0.1:1/v1"])
    assert composed["x"] == 1
    assert {key: composed[key] for key in sorted(config.RUN_KEYS & composed.keys())} == {
        "default_host": "10.0.0.7",
        "head_server": {"host": "127.0.0.2", "port": 9090},
        "policy_api_key": "key",
        "policy_base_url": ["http://10.0.0.1:1/v1"],
        "policy_model_name": "policy",
        "port_range_high": 15999,
        "port_range_low": 15000,
        "use_absolute_ip": False,
    }
    assert "ray_head_node_address" not in composed
    assert "uv_venv_dir" not in composed


JUDGE = """\
judge_model: {responses_api_models: {vllm_model: {
  entrypoint: app.py, base_url: "${judge_base_url}", api_key: "${judge_api_key}",
  model: "${judge_model_name}"}}}
judge_api_key: of-the-file
"""


def test_a_judge_is_told_by_its_name_and_one_that_is_not_named_is_not_known(
    folder: Folder,
) -> None:
    loaded = folder.load(SERVER + JUDGE, judges=("judge",), strict=True)
    assert loaded.replaced == ("judge_api_key",)
    judges = Judges({"judge": "http://judge:8000/v1"}, "bearer")
    composed = config.compose(loaded, RUN, ["http://a:1/v1"], judges)
    told = {key: composed[f"judge_{key}"] for key in ("base_url", "api_key", "model_name")}
    assert told == {"base_url": "http://judge:8000/v1", "api_key": "bearer", "model_name": "judge"}
    server = composed["judge_model"]["responses_api_models"]["vllm_model"]
    assert server["base_url"] == "${judge_base_url}", "NeMo Gym resolves it"
    refused = folder.problems(SERVER + JUDGE, strict=True)
    assert any("${judge_base_url} cannot be resolved here" in each for each in refused)


def test_ray_and_the_servers_environments_are_named_when_they_are_known() -> None:
    run = Run(**{**_fields(RUN), "ray_address": "10.0.0.7:6379", "venvs": "/opt/gym"})
    composed = config.compose(Loaded({}), run, ["http://a:1/v1"])
    assert composed["ray_head_node_address"] == "10.0.0.7:6379"
    assert composed["uv_venv_dir"] == "/opt/gym"
    assert composed["skip_venv_if_present"] is True


def _fields(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in run.__slots__}


@pytest.mark.parametrize(
    ("text", "urls", "followed"),
    [
        (POLICY, ["http://a:1/v1"], True),
        # NeMo Gym's file holds one address.
        (POLICY, ["http://a:1/v1", "http://b:1/v1"], False),
        (SERVER, ["http://a:1/v1"], False),
        (SERVER + "policy_model: {responses_api_models: {other: {}}}\n", ["http://a"], False),
    ],
)  # fmt: skip
def test_one_vllm_is_followed_through_a_file(
    folder: Folder, text: str, urls: list[str], *, followed: bool
) -> None:
    run = Run(**{**_fields(RUN), "endpoint_file": "/work/endpoint"})
    composed = config.compose(folder.load(text), run, urls)
    model = (composed.get("policy_model") or {}).get("responses_api_models", {})
    assert (model.get("vllm_model", {}).get("endpoint_file") == "/work/endpoint") == followed
    if followed:
        assert model["vllm_model"]["own"] == 1


def test_the_config_for_gym_is_written_whole_and_for_us_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "gym.json"
    config.write(file, {"policy_api_key": "secret"})
    assert json.loads(file.read_text(encoding="utf-8")) == {"policy_api_key": "secret"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_gym_is_searched_in_its_own_order(tmp_path: Path) -> None:
    roots = config.search_roots({"NEMO_GYM_EXTRA_ROOTS": "/a:/b"}, tmp_path)
    assert roots == [Path("/a"), Path("/b"), Path.cwd(), tmp_path]
    assert config.search_roots({}, None) == [Path.cwd()]
