"""Settings of the command line and of the sidecar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from endpoint_registry import records
from tandem_common.errors import Problem
from tandem_common.settings import (
    DnsLabel,
    HttpUrl,
    Port,
    PositiveSeconds,
    Settings,
    SettingsConfigDict,
    Words,
    setting,
)

#: A lease outlives two renewals that fail.
RENEWALS_A_LEASE = 3


class RegistrySettings(Settings):
    """What every verb needs."""

    model_config = SettingsConfigDict(env_prefix="ENDPOINT_REGISTRY_")

    job_id: DnsLabel = setting(
        "The job's id, the same for every role of the run", fix="such as my-run-1"
    )
    namespace: DnsLabel | None = setting(
        "Namespace of the run; the pod's or the kubeconfig's when left out", default=None,
        limit="a DNS label",
    )  # fmt: skip
    run_object: str = setting(
        "The run's top object; its UID tells this run from every other, and it becomes the owner",
        default="", limit="RayJob/NAME, RayCluster/NAME or JobSet/NAME",
    )  # fmt: skip
    run_uid: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?)?$")] = setting(
        "That UID itself, in place of `RUN_OBJECT`: nothing is looked up, and there is no owner",
        default="", limit="a DNS label of at most 52 characters",
    )  # fmt: skip
    run_started: Annotated[
        str, Field(pattern=r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?$")
    ] = setting(
        "That object's creationTimestamp, beside `RUN_UID`: without it a former run's ConfigMap "
        "is not replaced",
        default="", limit="a time such as 2026-01-31T12:00:00Z",
    )  # fmt: skip
    run_attempt: Annotated[int, Field(ge=0, le=999999)] = setting(
        "Number of the attempt, where one top object is tried several times", default=0
    )
    owners: Words = setting(
        "Further objects that the ConfigMap goes with", default=(),
        limit="KIND/NAME, parted by commas",
    )  # fmt: skip
    writer: str = setting(
        "Who writes, as others will read it in messages, such as gym; the host's name when "
        "left out",
        default="",
    )
    pod_uid: str = setting("UID of the writer's pod, for people who look into it", default="")
    timeout_seconds: PositiveSeconds = setting("Longest time that a verb may take", default=600.0)
    attempts: Annotated[int, Field(ge=1)] = setting(
        "Most attempts of one request, within that time", default=100
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "Logs below it are dropped", default="info"
    )

    @classmethod
    def flag(cls, field: str) -> str:
        """Return a field's flag."""
        return "--timeout" if field == "timeout_seconds" else super().flag(field)

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Check that the run is named, once."""
        named = [bool(values.get(name)) for name in ("run_object", "run_uid")]
        known = {"run_object", "run_uid"} <= set(values)
        what = f"{cls.variable('run_object')} and {cls.variable('run_uid')}"
        if known and not any(named):
            yield Problem(f"{what} are both missing", "set the first, such as RayJob/my-run")
        if known and all(named):
            yield Problem(f"{what} are both set", "unset one of them")
        if values.get("run_started") and values.get("run_object"):
            what = f"{cls.variable('run_started')} is set beside {cls.variable('run_object')}"
            yield Problem(what, "unset it: the object itself tells")
        for name in ("run_object", "owners"):
            words = values.get(name) or ()
            for word in (words,) if isinstance(words, str) else words:
                kind, _, rest = word.partition("/")
                if kind not in ("RayJob", "RayCluster", "JobSet") or not rest:
                    yield Problem(
                        f"{cls.variable(name)}={word!r}: names no object",
                        "RayJob/NAME, RayCluster/NAME or JobSet/NAME",
                    )


class SidecarSettings(RegistrySettings):
    """What the sidecar needs beside."""

    key: str = setting("Key to publish under", fix="such as gym_head_server")
    urls: Words = setting(
        "Addresses to publish; a key that holds a list takes several", fix="http://host:port"
    )
    probe_url: HttpUrl | None = setting(
        "Address that has to answer first; each of `URLS` when left out", default=None,
        limit="an http or https address",
    )  # fmt: skip
    probe_seconds: PositiveSeconds = setting("Time between two probes", default=5.0)
    probe_timeout_seconds: PositiveSeconds = setting(
        "Longest wait for the answers of one probe, of all addresses together", default=5.0
    )
    probe_failures: Annotated[int, Field(ge=1)] = setting(
        "So many probes have to fail in a row before the endpoint is withdrawn", default=3
    )
    lease_seconds: PositiveSeconds = setting(
        "Readers believe the endpoint so long after the last renewal; it is renewed thrice as "
        "often",
        default=20.0,
    )
    grace_seconds: PositiveSeconds = setting(
        "Longest time for the withdrawal when the pod ends", default=5.0
    )
    http_host: str = setting("Address of /healthz, /readyz and /metrics", default="0.0.0.0")  # noqa: S104 - the kubelet probes it
    http_port: Port = setting("Its port", default=8099)
    timeout_seconds: PositiveSeconds = setting(
        "Longest time until the first answer of the endpoint, and without one after it was "
        "withdrawn; then the run has failed",
        default=1800.0,
    )

    @classmethod
    def cross_check(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """Check addresses against the key, and the times against each other."""
        yield from super().cross_check(values)
        urls = values.get("urls")
        if urls is not None and (not urls or not all(urls)):
            yield Problem(f"{cls.variable('urls')} is empty", "http://host:port")
            urls = None
        key = values.get("key")
        if key is not None:
            yield from records.key_problems(key)
        if key is not None and urls:
            yield from records.value_problems(key, records.joined(key, urls))
        yield from cls._time_problems(values)

    @classmethod
    def _time_problems(cls, values: Mapping[str, Any]) -> Iterable[Problem]:
        """A renewal waits for the probe before it, so that must leave time for it."""
        names = ("probe_seconds", "probe_timeout_seconds", "lease_seconds")
        if not set(names) <= set(values):
            return
        pause, longest, lease = (values[name] for name in names)
        most = lease * (RENEWALS_A_LEASE - 1) / RENEWALS_A_LEASE
        if pause + longest > most:
            shown = [f"{cls.variable(name)}={values[name]:g}" for name in names]
            yield Problem(
                f"{shown[0]} and {shown[1]}: a lease of {shown[2]} can end between two renewals",
                f"together at most two thirds of the lease, here {most:g}",
            )
