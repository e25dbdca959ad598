"""Command line: `endpoint-registry create|publish|wait|get|error|watch|adopt|sidecar`."""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TextIO, TypeVar

from endpoint_registry import records
from endpoint_registry.records import Owner, Snapshot
from endpoint_registry.registry import (
    EndpointRegistry,
    PeerError,
    Progress,
    RegistryError,
    RegistryTimeout,
    Superseded,
    adopt,
    adoptable_problems,
    resolve_run,
)
from endpoint_registry.settings import RegistrySettings, SidecarSettings
from tandem_common import logs
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError, run_main
from tandem_common.kube import (
    Client,
    ClusterConfig,
    DeadlineExceeded,
    KubeError,
    NamespaceTerminating,
    NotFound,
    load_config,
)

_S = TypeVar("_S", bound=RegistrySettings)
_T = TypeVar("_T")

#: Longest time for one question about something that may not be there yet, and until the next.
_CALL_SECONDS = 30.0
_AGAIN_SECONDS = 1.0

_EPILOG = """\
examples:
  endpoint-registry create --job-id my-run --run-object RayJob/my-run
  endpoint-registry publish gym_head_server http://10.0.0.7:9090 --lease-seconds 20
  endpoint-registry publish vllm_base_urls http://a:8000/v1 http://b:8000/v1
  endpoint-registry wait vllm_base_urls --timeout 900
  endpoint-registry get gym_head_server --output json
  endpoint-registry error "no GPU in sight"
  endpoint-registry watch --timeout 60
  endpoint-registry adopt Deployment/judge-replicas --run-object RayCluster/rl
  endpoint-registry sidecar           (settings from the environment, see the README)

Every flag has a variable: --job-id is ENDPOINT_REGISTRY_JOB_ID, --timeout is
ENDPOINT_REGISTRY_TIMEOUT_SECONDS.

exit codes: 0 ok
            1 failure: the run has failed (a peer's `error`), or get found nothing
            2 usage: flags or settings are wrong; all of them are named
            3 a precondition is not met: not allowed (401, 403), no such object or namespace,
              the ConfigMap belongs to a run that is newer, or may be
            4 timeout
"""

_FLAGS = {
    "job_id": "the job's id",
    "namespace": "namespace of the run",
    "run_object": "the run's top object, such as RayJob/my-run",
    "run_uid": "its UID, in place of --run-object",
    "run_started": "its creationTimestamp, beside --run-uid",
    "run_attempt": "number of the attempt",
    "owners": "further owners of the ConfigMap, KIND/NAME, parted by commas",
    "writer": "who writes, such as gym",
    "timeout_seconds": "longest time in seconds",
    "attempts": "most attempts of one request",
}


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    for field, meaning in _FLAGS.items():
        # Texts all: the settings judge them, so that all that is wrong is told at once.
        common.add_argument(RegistrySettings.flag(field), dest=field, metavar="X", help=meaning)
    common.add_argument("--output", choices=("text", "json"), default="text")
    parser = argparse.ArgumentParser(
        prog="endpoint-registry",
        description="Endpoints of a run's roles, in one ConfigMap.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, meaning: str) -> argparse.ArgumentParser:
        return verbs.add_parser(
            name, help=meaning, description=meaning, parents=[common], epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    verb("create", "make the run's ConfigMap; a former run's is replaced")
    publish = verb("publish", "write one key")
    publish.add_argument("key")
    publish.add_argument("values", nargs="+", metavar="VALUE", help="several make a JSON list")
    publish.add_argument("--lease-seconds", metavar="X", help="believed so long; none: for ever")
    wait = verb("wait", "wait for keys and print their values")
    wait.add_argument("keys", nargs="+", metavar="KEY")
    wait.add_argument("--from", dest="expected_writer", default="", help="who should write them")
    get = verb("get", "print a key's value as it is now")
    get.add_argument("key")
    error = verb("error", "fail the run: every waiter ends with this message")
    error.add_argument("message")
    verb("watch", "print how things stand at every change")
    owned = verb("adopt", "make the run's top object the owner of others, so that they go with it")
    owned.add_argument("things", nargs="+", metavar="KIND/NAME", help="such as Deployment/judge")
    verb("sidecar", "publish an address once it answers, renew it, withdraw it at the end")
    return parser


def seconds(text: str) -> float:
    """Return the number; a text that is none is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def word_problems(args: argparse.Namespace) -> Iterable[Problem]:
    """Yield what is wrong with the keys, values, names and the lease on the command line."""
    keys = [*getattr(args, "keys", ()), *([args.key] if hasattr(args, "key") else ())]
    for key in keys:
        yield from records.key_problems(key)
    for thing in getattr(args, "things", ()):
        yield from adoptable_problems(thing)
    if args.verb == "publish":
        yield from records.value_problems(args.key, records.joined(args.key, args.values))
        if args.lease_seconds is not None:
            what = f"--lease-seconds={args.lease_seconds!r}"
            yield from records.lease_problems(what, seconds(args.lease_seconds))


class Line:
    """The line on stderr that tells a person what is waited for."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        """Begin with nothing shown."""
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        """Show how it stands: over the last line on a terminal, below it elsewhere."""
        text = f"waiting for {self._what} [+{progress.elapsed:.0f}s] {progress.why}"
        if self._terminal:
            print(f"\r\x1b[2K{text[:200]}", end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)
        self._shown = True

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and self._shown:
            print(file=self._stream)


def load(
    kind: type[_S], flags: dict[str, Any], problems: Iterable[Problem] = ()
) -> tuple[_S, ClusterConfig]:
    """Return settings and cluster.

    Raises:
        UserError: With everything that is wrong with them, and the problems given.
    """
    problems = list(problems)
    code = ExitCode.USAGE if problems else ExitCode.OK
    settings: _S | None = None
    cluster: ClusterConfig | None = None
    try:
        settings = kind.load(flags)
    except UserError as error:
        problems += error.problems
        code = error.code
    try:
        cluster = load_config()
    except UserError as error:
        problems += error.problems
        code = code or error.code
    namespace = flags.get("namespace") or os.environ.get(kind.variable("namespace"))
    if cluster is not None and not cluster.namespace and not namespace:
        problems.append(
            Problem(
                f"{kind.variable('namespace')} is missing, and the kubeconfig names none",
                "set it to the run's namespace",
            )
        )
        code = ExitCode.USAGE
    if problems or settings is None or cluster is None:
        raise UserError(problems, code)
    return settings, cluster


def connect(settings: RegistrySettings, cluster: ClusterConfig, **client: Any) -> EndpointRegistry:
    """Return the registry of the settings."""
    connection = Client(
        cluster, user_agent="endpoint-registry", attempts=settings.attempts, **client
    )
    namespace = settings.namespace or cluster.namespace
    uid, started, owners = settings.run_uid, settings.run_started, []
    limit = min(settings.timeout_seconds, 60.0)
    if settings.run_object:
        run, owner = resolve_run(
            connection, settings.run_object, namespace=namespace, timeout=limit
        )
        uid, started = run.uid, run.started
        owners.append(owner)
    owners += [
        resolve_run(connection, word, namespace=namespace, timeout=limit)[1]
        for word in settings.owners
    ]
    return EndpointRegistry(
        settings.job_id, namespace=namespace, run_uid=uid, run_started=started,
        run_attempt=settings.run_attempt, writer=settings.writer or socket.gethostname(),
        pod_uid=settings.pod_uid, owners=owners, client=connection, attempts=settings.attempts,
    )  # fmt: skip


def shown(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot for JSON."""
    return {
        "exists": snapshot.exists,
        "of_our_run": snapshot.of_our_run,
        "error": snapshot.error,
        "entries": {
            key: {
                "value": entry.value,
                "why": entry.why,
                "writer": entry.record.writer if entry.record else None,
                "pod": entry.record.pod if entry.record else None,
                "age_seconds": None if entry.age_seconds is None else round(entry.age_seconds, 1),
            }
            for key, entry in snapshot.entries.items()
        },
    }


def _print(args: argparse.Namespace, text: str, content: Any) -> None:
    print(json.dumps(content) if args.output == "json" else text, flush=True)


def _publish(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    value = records.joined(args.key, args.values)
    lease = None if args.lease_seconds is None else seconds(args.lease_seconds)
    registry.publish(args.key, value, lease_seconds=lease, timeout=timeout)
    _print(args, f"{args.key} {value}", {"key": args.key, "value": value})
    return ExitCode.OK


def _wait(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    deadline = Deadline(timeout)
    values = {}
    for key in args.keys:
        line = Line(f"{key} in {registry.namespace}/{registry.name}")
        try:
            values[key] = registry.wait(
                key, timeout=deadline.remaining, expected_writer=args.expected_writer,
                on_progress=line, progress_seconds=1.0 if sys.stderr.isatty() else 10.0,
            )  # fmt: skip
        finally:
            line.end()
    _print(args, "\n".join(values.values()), values)
    return ExitCode.OK


def _get(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    value = registry.get(args.key, timeout=timeout)
    if value is None:
        raise UserError(
            Problem(
                f"{args.key} is not in ConfigMap {registry.namespace}/{registry.name}",
                "endpoint-registry wait waits for it; endpoint-registry watch shows all there is",
            ),
            ExitCode.FAILURE,
        )
    _print(args, value, {"key": args.key, "value": value})
    return ExitCode.OK


def _error(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    first = registry.error(args.message, timeout=timeout)
    text = "the run has failed" if first else "the run had failed before; that error is kept"
    _print(args, text, {"counts": first})
    return ExitCode.OK


def _watch(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    for snapshot in registry.watch(timeout=timeout):
        content = shown(snapshot)
        lines = [
            f"{key} {entry['value'] or '-'} {entry['why']}".rstrip()
            for key, entry in content["entries"].items()
        ]
        _print(args, "\n".join(lines) or "no endpoint", content)
    return ExitCode.OK


def _create(args: argparse.Namespace, registry: EndpointRegistry, timeout: float) -> int:
    registry.create(timeout=timeout)
    where = f"{registry.namespace}/{registry.name}"
    content = {
        "namespace": registry.namespace, "name": registry.name, "run": registry.run.uid
    }  # fmt: skip
    _print(args, f"ConfigMap {where} is of run {registry.run.uid}", content)
    return ExitCode.OK


def adopt_all(
    things: Iterable[str], settings: RegistrySettings, client: Client, namespace: str
) -> list[str]:
    """Make the run's top object the owner of objects; return those that it was not yet.

    All of them are applied together, so one that is not there yet is waited for.

    Raises:
        UserError: The run has no top object, or a name is none.
        KubeError: Something is not there in time, or not allowed.
    """
    if not settings.run_object:
        variable = settings.variable("run_object")
        raise UserError(
            Problem(f"{variable} is missing: there is no owner", "set it, such as RayCluster/rl"),
            ExitCode.USAGE,
        )
    deadline = Deadline(settings.timeout_seconds)
    line = Line(f"{settings.run_object} and what is to go with it")

    def there(what: Callable[[float], _T]) -> _T:
        while True:
            try:
                return what(deadline.within(_CALL_SECONDS))
            except NotFound as error:
                if deadline.passed:
                    raise
                line(Progress(deadline.elapsed, str(error)))
                time.sleep(deadline.within(_AGAIN_SECONDS))

    try:
        _, owner = there(
            lambda t: resolve_run(client, settings.run_object, namespace=namespace, timeout=t)
        )
        return [
            thing
            for thing in things
            if not there(partial(_adopt_one, client, thing, owner, namespace))
        ]
    finally:
        line.end()


def _adopt_one(client: Client, thing: str, owner: Owner, namespace: str, seconds: float) -> bool:
    return adopt(client, thing, owner, namespace=namespace, timeout=seconds)


def _adopt(args: argparse.Namespace, settings: RegistrySettings, cluster: ClusterConfig) -> int:
    with Client(cluster, user_agent="endpoint-registry", attempts=settings.attempts) as client:
        namespace = settings.namespace or cluster.namespace
        new = adopt_all(args.things, settings, client, namespace)
    _print(args, f"{settings.run_object} owns {', '.join(args.things)}", {"adopted": new})
    return ExitCode.OK


_VERBS: dict[str, Callable[[argparse.Namespace, EndpointRegistry, float], int]] = {
    "create": _create,
    "publish": _publish,
    "wait": _wait,
    "get": _get,
    "error": _error,
    "watch": _watch,
}


@contextmanager
def explained() -> Any:
    """Turn what the library raises into messages and exit codes."""

    def told(error: Exception, fix: str, code: ExitCode) -> UserError:
        return UserError(Problem(str(error), fix), code)

    try:
        yield
    except PeerError as error:
        raise told(error, "look at the role that it names", ExitCode.FAILURE) from None
    except RegistryTimeout as error:
        raise told(error, "look at that role's pods and logs", ExitCode.TIMEOUT) from None
    except DeadlineExceeded as error:
        raise told(error, "look at the API server, then again", ExitCode.TIMEOUT) from None
    except Superseded as error:
        fix = (
            "end this run, or give it another job id; if it is the newer one, name it by "
            "--run-object or add --run-started"
        )
        raise told(error, fix, ExitCode.PRECONDITION) from None
    except NamespaceTerminating as error:
        fix = "end this run; nothing can be written in that namespace any more"
        raise told(error, fix, ExitCode.PRECONDITION) from None
    except KubeError as error:
        fix = "mend what the message says, then again"
        raise told(error, fix, ExitCode.PRECONDITION) from None
    except RegistryError as error:
        raise told(error, "read the message", ExitCode.FAILURE) from None


def main(argv: list[str] | None = None) -> int:
    """Run one verb."""
    args = _parser().parse_args(argv)
    flags = {field: getattr(args, field) for field in _FLAGS}
    with explained():
        if args.verb == "sidecar":
            from endpoint_registry.sidecar import run_sidecar  # noqa: PLC0415 - only it needs that

            return run_sidecar(*load(SidecarSettings, flags))
        settings, cluster = load(RegistrySettings, flags, word_problems(args))
        logs.configure("endpoint-registry", level=settings.log_level)
        if args.verb == "adopt":
            return _adopt(args, settings, cluster)
        with connect(settings, cluster) as registry:
            return _VERBS[args.verb](args, registry, settings.timeout_seconds)


def run() -> NoReturn:
    """Run as a program."""
    run_main(main)


if __name__ == "__main__":
    run()
