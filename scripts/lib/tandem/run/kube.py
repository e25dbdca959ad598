"""The few calls to the API server that a run needs, each with a deadline.

`kubectl` does what people would do by hand (apply, delete, logs, copy); the Python
client does the watches.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import KUBECONFIG, ROOT
from tandem.process import run

OVERLAYS = ROOT / "kustomize" / "overlays"
CALL_TIMEOUT_SECONDS = 30.0


def kubeconfig() -> Path:
    """Return the kubeconfig in use: $KUBECONFIG if set, else the one `cluster-up` wrote."""
    return Path(os.environ.get("KUBECONFIG") or KUBECONFIG)


def kubectl(
    *args: str | Path, timeout: float = CALL_TIMEOUT_SECONDS, log: Path | None = None
) -> str:
    """Run kubectl against the cluster and return what it prints.

    Raises:
        UserError: kubectl failed or ran out of time.
    """
    return run(
        ["kubectl", f"--kubeconfig={kubeconfig()}", *args], timeout=timeout, log=log,
        fix="make cluster-status tells whether the cluster is well",
    )  # fmt: skip


def get(kind: str, namespace: str, *, name: str = "", selector: str = "") -> dict[str, Any] | None:
    """Return one object by name (None when there is none), or the list for a selector."""
    wanted = [kind, name] if name else [kind, f"--selector={selector}"]
    said = kubectl("get", *wanted, "-n", namespace, "-o", "json", "--ignore-not-found")
    loaded: dict[str, Any] | None = json.loads(said) if said.strip() else None
    return loaded


def variants() -> list[str]:
    """Return the names of the variants (folders below kustomize/overlays)."""
    return sorted(path.parent.name for path in OVERLAYS.glob("*/kustomization.yaml"))


def render(variant: str) -> list[dict[str, Any]]:
    """Return the objects of a variant.

    Raises:
        UserError: There is no such variant, or it does not render.
    """
    if variant not in variants():
        raise UserError(
            Problem(f"unknown variant: {variant}", f"use one of: {', '.join(variants())}"),
            ExitCode.USAGE,
        )
    said = run(["kubectl", "kustomize", OVERLAYS / variant], timeout=CALL_TIMEOUT_SECONDS)
    return [obj for obj in yaml.safe_load_all(said) if obj]


def the_rayjob(objects: list[dict[str, Any]], variant: str) -> dict[str, Any]:
    """Return the one RayJob of a rendered variant.

    Raises:
        UserError: There is none, or more than one.
    """
    found = [obj for obj in objects if obj["kind"] == "RayJob"]
    if len(found) != 1:
        raise UserError(
            Problem(
                f"variant {variant} holds {len(found)} RayJobs, this command follows exactly one",
                "choose a variant with one RayJob, or apply it with kubectl apply -k",
            ),
            ExitCode.USAGE,
        )
    return found[0]
