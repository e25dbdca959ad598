"""The settings of both programs; the README's tables are made from these classes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from endpoint_registry.__main__ import load as load_registry
from endpoint_registry.settings import RegistrySettings
from gym_server.urls import Url, UrlError, parse
from tandem_common.errors import Problem, UserError
from tandem_common.kube import ClusterConfig
from tandem_common.settings import (
    Port,
    PositiveSeconds,
    Seconds,
    Settings,
    SettingsConfigDict,
    Words,
    setting,
)

_S = TypeVar("_S", bound=Settings)

#: Part of keys in the registry and in the Gym config.
_JUDGE = re.compile(r"[a-z][a-z0-9_]{0,40}")

LogLevel = Literal["debug", "info", "warning", "error"]
ListenPort = Annotated[int, Field(ge=1, le=65535)]


def _url(value: str) -> str:
    try:
        return str(parse(value)) if value else ""
    except UrlError as error:
        raise ValueError(str(error)) from None


def _gym_host(value: str) -> str:
    try:
        host = parse(value).host
    except UrlError as error:
        raise ValueError(str(error)) from None
    if host != value:
        raise ValueError("not a host alone: no scheme, port or path")
    if ":" in host:
        raise ValueError("NeMo Gym 0.7 builds its servers' addresses without IPv6's brackets")
    return value


def _judges(value: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [each for each in value if not _JUDGE.fullmatch(each) or each == "policy"]
    if wrong or len(set(value)) != len(value):
        what = f"{wrong[0]!r} is none" if wrong else "one is given twice"
        raise ValueError(f"names of letters, digits and '_', not `policy`: {what}")
    return value


AnyUrl = Annotated[str, AfterValidator(_url)]
GymHost = Annotated[str, AfterValidator(_gym_host)]


class GymServerSettings(Settings):
    """What the Gym server needs to know."""

    model_config = SettingsConfigDict(env_prefix="GYM_SERVER_")

    host: GymHost = setting(
        "Address at which other pods reach this one; every Gym server listens there.",
        limit="an IPv4 address or a host name",
        fix="take the pod's IP from the downward API (status.podIP)",
    )
    model: str = setting("Name of the policy's model, as vLLM serves it.")
    config: Words = setting("Files of the Gym config, later ones over earlier ones.")
    config_key: str = setting(
        "Dotted path of the Gym section within each file, such as `env.nemo_gym`.", default=""
    )
    strict: bool = setting(
        "Refuse a config with `${…}` that cannot be resolved here, instead of dropping the keys.",
        default=False,
    )
    head_port: ListenPort = setting("Port of NeMo Gym's head.", default=9090)
    head_listen: str = setting("Address that the head listens on.", default="0.0.0.0")  # noqa: S104
    port_range_low: ListenPort = setting("First port for the environment's servers.", default=15000)
    port_range_high: ListenPort = setting("Last port for the environment's servers.", default=15999)
    ray_address: str = setting(
        "Address of the Gym side's Ray head (`IP:port`); without it NeMo Gym starts a Ray of "
        "its own.",
        default="",
    )
    ray_command: str = setting(
        "Shell command that starts the Gym side's Ray head and stays with it (`ray start --head "
        "--block …`): it is run beside NeMo Gym, and its end ends the Gym side.",
        default="",
    )
    gym_python: str = setting(
        "Python that NeMo Gym is installed for; the one that runs gym-server when empty.",
        default="",
    )
    venv_dir: str = setting(
        "Folder with a virtual environment for each server (`<kind>/<name>/.venv`), so that none "
        "is installed at the start.",
        default="",
    )
    work_dir: str = setting(
        "Folder for the composed config and the endpoint file.",
        default="/tmp/gym-server",  # noqa: S108 - the container's own
    )
    vllm_api_key: str = setting("Key that vLLM asks for.", default="dummy_key", secret=True)
    judges: Annotated[Words, AfterValidator(_judges)] = setting(
        "Pools of judges by name: key `<name>_base_url` of the registry is waited for, and the "
        "config gets `<name>_base_url`, `<name>_api_key` and `<name>_model_name`.",
        default=(), limit="names such as judge",
    )  # fmt: skip
    judge_token_file: str = setting(
        "File with the pools' bearer token; it may come later than this program.", default=""
    )
    config_seconds: PositiveSeconds = setting("Deadline of phase `gym-config`.", default=180.0)
    vllm_urls_seconds: PositiveSeconds = setting("Deadline of phase `vllm-urls`.", default=3600.0)
    vllm_answers_seconds: PositiveSeconds = setting(
        "Deadline of phase `vllm-answers`.", default=600.0
    )
    judge_urls_seconds: PositiveSeconds = setting("Deadline of phase `judge-urls`.", default=3600.0)
    gym_ready_seconds: PositiveSeconds = setting("Deadline of phase `gym-ready`.", default=900.0)
    drain_seconds: Seconds = setting(
        "Time that NeMo Gym's servers get to end; the pod's grace period must be longer.",
        default=20.0,
    )
    lease_seconds: PositiveSeconds = setting(
        "Others believe what this program publishes so long after its last sign of life; it is "
        "renewed thrice as often.",
        default=20.0,
    )
    progress_seconds: PositiveSeconds = setting("Time between two progress lines.", default=15.0)
    health_host: str = setting("Address of /healthz, /readyz, /metrics.", default="0.0.0.0")  # noqa: S104
    health_port: Port = setting("Port of /healthz, /readyz, /metrics; 0 for any.", default=9092)
    log_level: LogLevel = setting("Least level that is logged.", default="info")

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield what is wrong between the ports."""
        low, high = values.get("port_range_low"), values.get("port_range_high")
        if low is not None and high is not None:
            if low > high:
                yield Problem(
                    f"{cls.variable('port_range_low')}={low} is above "
                    f"{cls.variable('port_range_high')}={high}",
                    "give the lower port first",
                )
            for name in ("head_port", "health_port"):
                if low <= (values.get(name) or 0) <= high:
                    yield Problem(
                        f"{cls.variable(name)}={values[name]} lies within the servers' ports "
                        f"{low} to {high}, of which NeMo Gym takes any",
                        "choose a port outside of them",
                    )
        if values.get("head_port", 1) == values.get("health_port", 2):
            yield Problem(
                f"{cls.variable('head_port')} and {cls.variable('health_port')} are the same",
                "choose two ports",
            )
        if "config" in values and not any(values["config"]):
            yield Problem(f"{cls.variable('config')} names no file", "name the Gym config's file")

    @property
    def url(self) -> Url:
        """Where NeMo Gym's head will answer."""
        return Url("http", self.host, self.head_port)


class DriverSettings(Settings):
    """What the driver needs to know."""

    model_config = SettingsConfigDict(env_prefix="DRIVER_")

    gym_url: AnyUrl = setting(
        "A Gym head that somebody else runs; without it the registry tells the address.",
        default="",
        limit="`http(s)://host[:port][/path]` or `host[:port]`",
    )
    model: str = setting(
        "Name of the policy's model, as vLLM serves it; the first one that it serves when empty.",
        default="",
    )
    vllm_api_key: str = setting("Key that vLLM asks for.", default="", secret=True)
    urls_file: str = setting(
        "File into which the training command writes its vLLM addresses, as a JSON list; it is "
        "told as `TANDEM_VLLM_URLS_FILE`.",
        default="",
    )
    gym_announced_seconds: PositiveSeconds = setting(
        "Deadline of phase `gym-announced`.", default=600.0
    )
    vllm_urls_seconds: PositiveSeconds = setting("Deadline of phase `vllm-urls`.", default=3600.0)
    vllm_answers_seconds: PositiveSeconds = setting(
        "Deadline of phase `vllm-answers`.", default=600.0
    )
    gym_ready_seconds: PositiveSeconds = setting("Deadline of phase `gym-ready`.", default=900.0)
    grace_seconds: Seconds = setting(
        "Time that the training command gets to end when it is told to; the pod's grace period "
        "must be longer.",
        default=20.0,
    )
    error_lines: Annotated[int, Field(ge=0, le=40)] = setting(
        "Last lines of the training command that go into the registry's `error`.", default=10
    )
    lease_seconds: PositiveSeconds = setting(
        "Others believe what this program publishes so long after its last sign of life; it is "
        "renewed thrice as often.",
        default=20.0,
    )
    progress_seconds: PositiveSeconds = setting("Time between two progress lines.", default=15.0)
    health_host: str = setting("Address of /healthz, /readyz, /metrics.", default="0.0.0.0")  # noqa: S104
    health_port: Port = setting("Port of /healthz, /readyz, /metrics; 0 for any.", default=9093)
    log_level: LogLevel = setting("Least level that is logged.", default="info")


#: Settings of the registry that these programs use; its own variables hold them.
REGISTRY_FIELDS = (
    "job_id",
    "namespace",
    "run_object",
    "run_uid",
    "run_started",
    "run_attempt",
    "owners",
    "writer",
    "pod_uid",
    "attempts",
)


def add_flags(parser: argparse.ArgumentParser, kind: type[Settings]) -> None:
    """Give a parser one flag for each setting, named as the setting is.

    Secrets have none: everybody on a machine can read command lines.
    """
    fields = [(kind, name, field) for name, field in kind.model_fields.items()]
    registry = RegistrySettings.model_fields
    fields += [(RegistrySettings, name, registry[name]) for name in REGISTRY_FIELDS]
    for owner, name, field in fields:
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if extra.get("secret"):
            continue
        flag, words = owner.flag(name), (field.description or "").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(
                flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=words
            )
        else:
            parser.add_argument(flag, dest=name, metavar="VALUE", help=words)


def read(
    kind: type[_S], flags: Mapping[str, Any], program: str, problems: Iterable[Problem] = ()
) -> tuple[_S, RegistrySettings, ClusterConfig]:
    """Return a program's settings, the registry's, and the cluster.

    Raises:
        UserError: With everything that is wrong with any of them, and the problems given.
    """
    found = list(problems)
    own: _S | None = None
    try:
        own = kind.load({name: flags.get(name) for name in kind.model_fields})
    except UserError as error:
        found += error.problems
    of_registry = {name: flags.get(name) for name in REGISTRY_FIELDS}
    registry, cluster = load_registry(RegistrySettings, of_registry, found)
    if own is None:
        raise AssertionError("unreachable: its problems have been raised")
    return own, registry.model_copy(update={"writer": registry.writer or program}), cluster


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what stands before `--`, and what stands behind it."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])
