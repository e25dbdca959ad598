"""The few calls to the API server that a run needs, each with a deadline.

`kubectl` does what people would do by hand (apply, delete, logs, copy); the Python
client does the watches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from tandem.errors import Problem, UserError
from tandem.paths import KUBECONFIG
from tandem.process import run

CALL_TIMEOUT_SECONDS = 30.0
_REACH_SECONDS = 10

#: Returns what is at a path of the API server, None when nothing is.
Ask = Callable[[str], dict[str, Any] | None]


class CannotTell(Exception):  # noqa: N818 - an answer that is neither yes nor no
    """The API server did not say: no right to look, or no answer at all."""


def kubeconfig() -> Path:
    """Return the kubeconfig in use: $KUBECONFIG if set, else the one `cluster-up` wrote."""
    return Path(os.environ.get("KUBECONFIG") or KUBECONFIG)


def require_cluster() -> None:
    """Refuse to begin without a cluster that answers.

    Raises:
        UserError: There is no kubeconfig, or nobody answers where it leads.
    """
    path = kubeconfig()
    if not path.is_file():
        raise UserError(
            Problem(
                f"no cluster is known: there is no kubeconfig {path}",
                "make cluster-up, or export KUBECONFIG=<your cluster's file>",
            )
        )
    try:
        kubectl("version", "--output=json", f"--request-timeout={_REACH_SECONDS}s")
    except UserError as error:
        [problem] = error.problems
        raise UserError(
            Problem(
                f"the cluster of {path} does not answer:\n{problem.what}",
                "make cluster-status tells why, make cluster-up repairs the local one; or"
                " correct KUBECONFIG",
            )
        ) from error


def kubectl(
    *args: str | Path,
    timeout: float = CALL_TIMEOUT_SECONDS,
    log: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Run kubectl against the cluster and return what it prints.

    Raises:
        UserError: kubectl failed or ran out of time.
    """
    return run(
        ["kubectl", f"--kubeconfig={kubeconfig()}", *args], timeout=timeout, log=log,
        stdin=stdin, fix="make cluster-status tells whether the cluster is well",
    )  # fmt: skip


def get(kind: str, namespace: str, *, name: str = "", selector: str = "") -> dict[str, Any] | None:
    """Return one object by name (None when there is none), or the list for a selector."""
    wanted = [kind, name] if name else [kind, f"--selector={selector}"]
    said = kubectl("get", *wanted, "-n", namespace, "-o", "json", "--ignore-not-found")
    loaded: dict[str, Any] | None = json.loads(said) if said.strip() else None
    return loaded


def api_client(path: str = "") -> client.ApiClient:
    """Return a client that asks once; a caller who asks again sees to that himself.

    Args:
        path: The kubeconfig; the one in use by default.

    Raises:
        ConfigException: The kubeconfig is wrong, or there is none.
    """
    settings = client.Configuration()
    settings.retries = False
    config.load_kube_config(path or str(kubeconfig()), client_configuration=settings)
    return client.ApiClient(settings)


def asker(path: str = "") -> Ask:
    """Return a way to ask the cluster for single paths.

    It raises `CannotTell` for what the API server does not say.

    Args:
        path: The kubeconfig; the one in use by default.
    """
    try:
        api = api_client(path)
    except config.ConfigException as error:
        why = str(error)

        def cannot(where: str) -> None:
            raise CannotTell(f"{where}: {why}")

        return cannot

    def ask(where: str) -> dict[str, Any] | None:
        request = api.param_serialize(
            "GET", where, header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = api.call_api(*request, _request_timeout=CALL_TIMEOUT_SECONDS)
            body = answer.read()
        except (client.ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise CannotTell(f"{where}: {error}") from error
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise CannotTell(f"{where}: {answer.status} {answer.reason}")
        found: dict[str, Any] = json.loads(body)
        return found

    return ask
