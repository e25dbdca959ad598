"""Releases that a cut-off sync left half-way: told before helm trips over them.

Helm marks a release `pending-*` while it works on it. A sync that was killed leaves that
mark for ever, and every later one ends with "another operation is in progress", which
helps nobody who knows of no other operation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from tandem.errors import Problem, UserError
from tandem.process import run

_TIMEOUT_SECONDS = 30


def half_way(releases: Iterable[dict[str, Any]]) -> list[Problem]:
    """Return a problem for each release that is in the middle of an operation.

    Args:
        releases: As `helm list --output json` gives them.
    """
    problems = []
    for release in releases:
        status = str(release["status"])
        if not status.startswith("pending"):
            continue
        name, namespace = release["name"], release["namespace"]
        back = "uninstall" if status == "pending-install" else "rollback"
        problems.append(
            Problem(
                f"release {name} is {status} since {str(release['updated'])[:19]}: another "
                "sync works on it, or one was cut off",
                f"wait for the other one; if there is none: helm {back} {name} -n {namespace}",
            )
        )
    return problems


def require_settled(names: Iterable[str]) -> None:
    """Refuse while one of these releases is in the middle of an operation.

    Raises:
        UserError: All such releases, each with the command that settles it.
    """
    # KUBECONFIG reaches helm as it does kubectl; without one helm would ask localhost.
    context = [f"--kubeconfig={path}"] if (path := os.environ.get("KUBECONFIG")) else []
    said = run(
        ["helm", "list", "--all-namespaces", "--pending", "--output", "json", *context],
        timeout=_TIMEOUT_SECONDS, fix="make cluster-status tells whether the cluster is well",
    )  # fmt: skip
    wanted = set(names)
    problems = half_way(r for r in json.loads(said) if r["name"] in wanted)
    if problems:
        raise UserError(problems)
