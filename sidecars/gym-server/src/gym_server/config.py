"""The config that NeMo Gym is started with: from files, and from what the run has told.

Files are read and judged before anything is waited for. What only the run knows (addresses,
ports, the model's name) is put on top of them afterwards, and wins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gym_server import interpolation
from gym_server.interpolation import Dropped, Known
from tandem_common.errors import ExitCode, Problem, UserError

#: Keys of a training recipe's Gym section that are the trainer's, not NeMo Gym's.
TRAINER_KEYS = frozenset(
    {"is_trajectory_collection", "rollout_max_attempts_to_avoid_lp_nan", "remote_gym_url"}
)
#: Keys that the run sets; a file's value for one of them is replaced.
RUN_KEYS = frozenset(
    {
        "default_host", "head_server", "policy_api_key", "policy_base_url", "policy_model_name",
        "port_range_high", "port_range_low", "ray_head_node_address", "use_absolute_ip",
    }
)  # fmt: skip
#: What the run sets for each judge, behind its name: the names that NeMo Gym's own configs have.
_JUDGE_KEYS = ("base_url", "api_key", "model_name")
#: Kinds of servers, one of which is the first key of every server of a config.
SERVER_KINDS = (
    "resources_servers",
    "responses_api_agents",
    "responses_api_models",
    "environment_servers",
)
#: A list of folders that NeMo Gym looks into first.
EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: the first one would be lost in silence."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, str | int | float | bool) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} stands twice", key.start_mark
                )
            seen.add(name if isinstance(name, str | int | float | bool) else None)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that has been judged as far as it can be before the run has told anything."""

    config: dict[str, Any]
    dropped: tuple[Dropped, ...] = ()
    #: Keys of the files that the run replaces.
    replaced: tuple[str, ...] = ()
    #: Whether the policy is a vLLM model server that can follow an endpoint file.
    follows_file: bool = False


@dataclass(frozen=True, slots=True)
class Judges:
    """Where the judges are, by name, and the key that they ask for."""

    urls: Mapping[str, str] = field(default_factory=dict)
    api_key: str = "dummy_key"

    def keys(self) -> dict[str, str]:
        """Return what the config gets: a pool serves its model under its own name."""
        told = ({"base_url": url, "api_key": self.api_key, "model_name": name}
                for name, url in self.urls.items())  # fmt: skip
        return {
            f"{keys['model_name']}_{key}": value for keys in told for key, value in keys.items()
        }


_NO_JUDGES = Judges()


def run_keys(judges: Iterable[str] = ()) -> frozenset[str]:
    """Return every key that the run sets, with those of its judges."""
    return RUN_KEYS | {f"{name}_{key}" for name in judges for key in _JUDGE_KEYS}


@dataclass(frozen=True, slots=True)
class Run:
    """What the run adds to the files."""

    #: Where other pods reach this one.
    host: str
    head_listen: str
    head_port: int
    port_low: int
    port_high: int
    model: str
    api_key: str = "dummy_key"
    ray_address: str = ""
    endpoint_file: str = ""
    #: Holds a virtual environment for each server, so that none is installed at the start.
    venvs: str = ""


def load(
    files: Sequence[Path], *, key: str, strict: bool, roots: Sequence[Path],
    environ: Mapping[str, str], judges: Sequence[str] = (),
) -> Loaded:  # fmt: skip
    """Read the files, later ones over earlier ones, and judge the whole.

    Args:
        files: YAML files.
        key: Dotted path of the Gym section in each file; "" when a file is nothing else.
        strict: Refuse what cannot be resolved instead of dropping it.
        roots: Folders in which NeMo Gym looks for its files.
        environ: Environment that NeMo Gym will have.
        judges: Names of the judges that the run will tell of.

    Raises:
        UserError: With everything that is wrong, each with the path of its key.
    """
    ours = run_keys(judges)
    problems: list[Problem] = []
    merged: dict[str, Any] = {}
    for file in files:
        section, found = _section(file, key)
        problems += found
        merged = merge(merged, section)
    if problems:
        raise UserError(problems, ExitCode.USAGE)
    own = {name: value for name, value in merged.items() if name not in TRAINER_KEYS}
    others, problems = below(own, roots)
    known = Known(environ, (*others, dict.fromkeys(ours, "")))
    kept, dropped = interpolation.drop_unresolvable(own, known)
    if strict:
        problems += [
            Problem(
                f"{one.path}: {one.value} cannot be resolved here: {one.reason}",
                "give a value, or leave out --strict to drop the key",
            )
            for one in dropped
        ]
    whole = merge_all([*others, kept])
    problems += judge(whole) if not problems else []
    if problems:
        raise UserError(problems, ExitCode.USAGE)
    policy = (whole.get("policy_model") or {}).get("responses_api_models") or {}
    return Loaded(
        {name: value for name, value in kept.items() if name not in ours},
        tuple(dropped),
        tuple(sorted(ours & kept.keys())),
        isinstance(policy, Mapping) and "vllm_model" in policy,
    )


def compose(
    loaded: Loaded, run: Run, urls: Sequence[str], judges: Judges = _NO_JUDGES
) -> dict[str, Any]:
    """Return the config for NeMo Gym, with what the run knows on top."""
    ours: dict[str, Any] = {
        # Not use_absolute_ip: that takes whatever the host's name resolves to.
        "default_host": run.host,
        "use_absolute_ip": False,
        "head_server": {"host": run.head_listen, "port": run.head_port},
        "port_range_low": run.port_low,
        "port_range_high": run.port_high,
        "policy_base_url": list(urls),
        "policy_api_key": run.api_key,
        "policy_model_name": run.model,
        **judges.keys(),
    }
    if run.ray_address:
        ours["ray_head_node_address"] = run.ray_address
    if run.venvs:
        ours["uv_venv_dir"] = run.venvs
        ours["skip_venv_if_present"] = True
    defaults = {
        # As many as there are rollouts at once; NeMo RL sets the same.
        "global_aiohttp_connector_limit": 65_536,
        "global_aiohttp_connector_limit_per_host": 16_384,
    }
    composed = merge_all([defaults, loaded.config, ours])
    if loaded.follows_file and run.endpoint_file and len(urls) == 1:
        follow = {"endpoint_file": run.endpoint_file, "endpoint_check_interval_s": 1.0}
        policy = {"policy_model": {"responses_api_models": {"vllm_model": follow}}}
        composed = merge(policy, composed)
    return composed


def merge(below_it: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return one mapping over another, mappings merged by key and everything else replaced."""
    result = dict(below_it)
    for name, value in above.items():
        lower = result.get(name)
        both = isinstance(lower, Mapping) and isinstance(value, Mapping)
        result[name] = merge(lower, value) if both else value  # type: ignore[arg-type]
    return result


def merge_all(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several mappings over each other, the last one on top."""
    result: dict[str, Any] = {}
    for config in configs:
        result = merge(result, config)
    return result


def _section(file: Path, key: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return one file's Gym section."""
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader that refuses more
    except (OSError, UnicodeDecodeError) as error:
        return {}, [Problem(f"{file} cannot be read: {error}", "name a YAML file that is there")]
    except yaml.YAMLError as error:
        return {}, [Problem(f"{file} is no YAML: {_one_line(error)}", "mend the file")]
    for depth, part in enumerate(key.split(".") if key else []):
        if not isinstance(node, Mapping) or part not in node:
            at = ".".join(key.split(".")[: depth + 1])
            has = ", ".join(map(str, node)) if isinstance(node, Mapping) else "no keys"
            fix = f"set the config key to a part that the file has; here: {has}"
            return {}, [Problem(f"{file} has no key {at}", fix)]
        node = node[part]
    if not isinstance(node, Mapping):
        what = f"{file}{f': {key}' if key else ''} is no mapping but {type(node).__name__}"
        return {}, [Problem(what, "a Gym config is a mapping of keys to values")]
    return dict(node), []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def below(
    config: Mapping[str, Any], roots: Sequence[Path]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the files that `config_paths` names, and those that they name in turn.

    They are merged below the config, in the order of the result: a file above the ones it names.
    """
    paths = config.get("config_paths", [])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        what = f"config_paths: {paths!r} is no list of paths"
        return [], [Problem(what, "write `config_paths: [resources_servers/…/configs/….yaml]`")]
    found: list[dict[str, Any]] = []
    problems: list[Problem] = []
    seen: set[str] = set()

    def add(path: str, at: str) -> None:
        if path in seen or interpolation.is_interpolated(path):
            return
        seen.add(path)
        tried = [Path(path)] if Path(path).is_absolute() else [root / path for root in roots]
        file = next((one for one in tried if one.is_file()), None)
        if file is None:
            places = ", ".join(str(one) for one in tried)
            fix = "name a file below NeMo Gym, the working folder or a folder of " + EXTRA_ROOTS
            problems.append(Problem(f"{at}: {path!r} was not found; looked at {places}", fix))
            return
        section, wrong = _section(file, "")
        problems.extend(wrong)
        inner = section.get("config_paths") or []
        for index, each in enumerate(inner if isinstance(inner, list) else []):
            add(str(each), f"{file}: config_paths[{index}]")
        found.append(section)

    for index, path in enumerate(paths):
        add(path, f"config_paths[{index}]")
    return found, problems


def judge(whole: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with a config and the files below it, whatever the run will add.

    NeMo Gym's own parser judges everything else, in a process of its own.
    """
    if any(interpolation.is_interpolated(path) for path in whole.get("config_paths", [])):
        return  # a file that cannot be named here may hold the servers
    if not any(True for _ in servers(whole)):
        yield Problem(
            "the config starts no server: no key holds "
            + ", ".join(f"`{kind}`" for kind in SERVER_KINDS)
            + " with an `entrypoint`, and `config_paths` names no file that does",
            "name the environment's YAML files in `config_paths`",
        )


def servers(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the servers that a config starts."""
    for name, kinds in config.items():
        for kind, server in kinds.items() if isinstance(kinds, Mapping) else ():
            inner = server.values() if isinstance(server, Mapping) else ()
            starts = any(isinstance(one, Mapping) and "entrypoint" in one for one in inner)
            if kind in SERVER_KINDS and starts:
                yield name


def search_roots(environ: Mapping[str, str], install: Path | None) -> list[Path]:
    """Return the folders in which NeMo Gym looks for its files, first one first."""
    extra = [Path(root) for root in environ.get(EXTRA_ROOTS, "").split(os.pathsep) if root]
    return [*extra, Path.cwd(), *([install] if install else [])]


def write_atomically(file: Path, text: str) -> None:
    """Replace a file's content so that no reader ever sees a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def write(file: Path, config: Mapping[str, Any]) -> None:
    """Write a config for NeMo Gym's process; it may hold keys, so only we may read it."""
    old = os.umask(0o077)
    try:
        write_atomically(file, json.dumps(config, indent=1))
    finally:
        os.umask(old)
