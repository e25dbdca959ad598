"""Settings from the environment and flags: checked as a whole, documented from the class.

A program writes one class:

    class PingSettings(Settings):
        model_config = SettingsConfigDict(env_prefix="PING_")
        target: DnsLabel = setting("Name of what is pinged.", fix="set it to the peer's name")
        interval_seconds: PositiveSeconds = setting("Time between two pings.", default=2.0)

and calls `PingSettings.load(flags)`. All that is wrong is reported at once, each problem with
the variable, the value, the limit and the fix. `environment_table` prints the README's table
from the same class. Checks across fields go into `cross_check`, which also runs when other
fields are wrong; validators belong into the field's type (`Annotated`), so that a field can be
looked at alone.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tandem_common.errors import ExitCode, Problem, UserError

__all__ = [
    "DnsLabel",
    "DnsName",
    "HttpUrl",
    "Port",
    "PositiveSeconds",
    "Seconds",
    "Settings",
    "SettingsConfigDict",
    "Words",
    "environment_table",
    "setting",
]

#: Variables that Kubernetes makes in every pod for a Service with our prefix as its name.
_SERVICE_LINK = re.compile(
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_URL = re.compile(r"https?://[^\s/?#]+[^\s]*")
_LABEL_LENGTH = 63
_NAME_LENGTH = 253


def _dns_label(value: str) -> str:
    if len(value) > _LABEL_LENGTH or not _LABEL.fullmatch(value):
        raise ValueError(
            f"not a DNS label (a-z, 0-9 and '-', not at the ends, at most {_LABEL_LENGTH} long)"
        )
    return value


def _dns_name(value: str) -> str:
    labels = value.split(".")
    if len(value) > _NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"not a DNS name (labels joined by '.', at most {_NAME_LENGTH} long)")
    return value


def _url(value: str) -> str:
    if not _URL.fullmatch(value):
        raise ValueError("not an address such as http://host:port/path")
    return value


def _words(value: Any) -> Any:
    return tuple(re.split(r"[,\s]+", value.strip(", \t\n"))) if isinstance(value, str) else value


#: Name of a Kubernetes object that becomes a host name: a job id, a namespace, a Service.
DnsLabel = Annotated[str, AfterValidator(_dns_label)]
#: Name of most other Kubernetes objects.
DnsName = Annotated[str, AfterValidator(_dns_name)]
HttpUrl = Annotated[str, AfterValidator(_url)]
#: A time that may be nothing.
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
#: Several words in one variable, parted by commas or spaces.
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]

#: What a type allows, for the table and the messages.
_LIMITS: dict[Any, str] = {
    _dns_label: "a DNS label",
    _dns_name: "a DNS name",
    _url: "an http or https address",
    _words: "words, parted by commas",
}


def setting(
    meaning: str, *, default: Any = ..., fix: str = "", limit: str = "", secret: bool = False
) -> Any:
    """Return a field with its documentation.

    Args:
        meaning: One sentence for the table.
        default: Value when nothing is set; required when left out.
        fix: What to do when it is wrong; made from the limit when left out.
        limit: What is allowed; made from the type when left out.
        secret: Never show the value, in no message and no table.
    """
    extra: dict[str, Any] = {"fix": fix, "limit": limit, "secret": secret}
    return Field(default=default, description=meaning, json_schema_extra=extra)


class Settings(BaseSettings):
    """Base of a program's settings; subclasses set `env_prefix`."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problems between fields; `values` lacks those that are wrong alone."""
        del values
        return ()

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Self:
        """Read flags, then the environment, then defaults.

        Args:
            flags: Field names and values from the command line; None means not given.

        Raises:
            UserError: With every problem there is; exit code 2.
        """
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        problems = list(cls._unknown_variables())
        loaded: Self | None = None
        try:
            loaded = cls(**given)
            values = {name: getattr(loaded, name) for name in cls.model_fields}
        except ValidationError as error:
            wrong = {str(each["loc"][0]) if each["loc"] else "": each for each in error.errors()}
            problems += [cls._problem(name, each, given) for name, each in wrong.items()]
            values = cls._those_right(given, wrong)
        problems += cls.cross_check(values)
        if problems or loaded is None:
            raise UserError(problems, ExitCode.USAGE)
        return loaded

    @classmethod
    def variable(cls, field: str) -> str:
        """Return the environment variable of a field."""
        return f"{cls.model_config.get('env_prefix', '')}{field}".upper()

    @classmethod
    def flag(cls, field: str) -> str:
        """Return the command line's flag of a field; override it where it has another name."""
        return f"--{field.replace('_', '-')}"

    @classmethod
    def _unknown_variables(cls) -> Iterable[Problem]:
        prefix = str(cls.model_config.get("env_prefix", "")).upper()
        known = cls._known_variables()
        if not prefix:
            return
        for name in sorted(os.environ):
            rest = name.upper().removeprefix(prefix)
            if rest == name.upper() or name.upper() in known or _SERVICE_LINK.match(rest):
                continue
            near = difflib.get_close_matches(name, known, n=1)
            yield Problem(
                f"{name} is set, but no setting has this name",
                f"did you mean {near[0]}?" if near else f"one of: {', '.join(sorted(known))}",
            )

    @classmethod
    def _known_variables(cls) -> set[str]:
        """Return the variables of this class, and of its kin with the same prefix.

        A command that a person runs in the sidecar's container sees the sidecar's variables.
        """
        prefix = cls.model_config.get("env_prefix")
        kin = [each for each in cls.__mro__ if issubclass(each, Settings) and each is not Settings]
        kin = [each for each in kin if each.model_config.get("env_prefix") == prefix]
        known: set[str] = set()
        while kin:
            each = kin.pop()
            kin += each.__subclasses__()
            known |= {each.variable(name) for name in each.model_fields}
        return known

    @classmethod
    def _problem(cls, name: str, error: Any, given: Mapping[str, Any]) -> Problem:
        field = cls.model_fields.get(name)
        shown = cls.flag(name) if name in given else cls.variable(name)
        if field is None:
            return Problem(f"{shown}: {error['msg']}", "remove it")
        extra = _extra(field)
        limit = _limit(field)
        fix = str(extra.get("fix") or f"set {shown} to {limit}")
        if error["type"] == "missing":
            what = f"{cls.variable(name)} is missing: {_sentence(field)}"
            return Problem(what, str(extra.get("fix") or f"set it to {limit}"))
        value = "…" if extra.get("secret") else repr(error["input"])
        reason = f"allowed is {limit}"
        if str(error["msg"]).startswith("Value error, "):
            reason = str(error["msg"]).removeprefix("Value error, ")
        return Problem(f"{shown}={value}: {reason}", fix)

    @classmethod
    def _those_right(cls, given: Mapping[str, Any], wrong: Iterable[str]) -> dict[str, Any]:
        right: dict[str, Any] = {}
        bad = set(wrong)
        for name, field in cls.model_fields.items():
            if name in bad:
                continue
            raw = given.get(name, os.environ.get(cls.variable(name), field.get_default()))
            kind: Any = field.annotation
            for extra in field.metadata:
                kind = Annotated[kind, extra]
            right[name] = TypeAdapter(kind).validate_python(raw)
        return right


def _extra(field: FieldInfo) -> dict[str, Any]:
    return dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}


def _sentence(field: FieldInfo) -> str:
    return (field.description or "").rstrip(".")


def _limit(field: FieldInfo) -> str:
    """Return in words what a field allows."""
    told = str(_extra(field).get("limit") or "")
    if told:
        return told
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    kind = kinds[0] if kinds and type(None) in get_args(field.annotation) else field.annotation
    metadata = [*field.metadata, *getattr(kind, "__metadata__", ())]
    parts: list[str] = []
    for each in metadata:
        parts += [_LIMITS[f] for f in (getattr(each, "func", None),) if f in _LIMITS]
        parts += [
            f"{sign} {getattr(each, key):g}"
            for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
            if getattr(each, key, None) is not None
        ]
    if parts:
        return ", ".join(parts)
    choices = get_args(kind)
    if choices and all(isinstance(choice, str) for choice in choices):
        return "one of " + ", ".join(choices)
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(kind if isinstance(kind, type) else str, "a text")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    if value in (None, "", (), PydanticUndefined):
        return "none"
    if isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, float):
        shown = f"{value:g}"
    else:
        shown = ",".join(value) if isinstance(value, tuple) else str(value)
    return "…" if _extra(field).get("secret") else f"`{shown}`"


def environment_table(settings: type[Settings]) -> str:
    """Return the table of a program's environment in Markdown."""
    rows = ["| variable | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for name, field in settings.model_fields.items():
        cells = (f"`{settings.variable(name)}`", _default(field), _limit(field), _sentence(field))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"
