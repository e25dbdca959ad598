"""Where a report's inputs come from: kustomize, files, stdin, the cluster. All I/O is here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tandem.errors import ExitCode, Problem, UserError
from tandem.explain.facts import Facts, read_platform, version_of
from tandem.explain.nodes import Node, read_nodes
from tandem.explain.pods import Object
from tandem.paths import ROOT
from tandem.process import run
from tandem.render import kustomize, render_variant, require_variant, variants
from tandem.run.identity import Placing, drop_overlay, write_overlay
from tandem.versions import pinned
from tandem.yamls import load_all

PLATFORM = ROOT / "charts" / "rl-platform" / "values.yaml"
_CHART_VALUES = ROOT / "charts" / "values"
_KAI = "kai-scheduler"
#: Stands for a run's id where there is no run.
_RUN_ID = "run"
_TIMEOUT_SECONDS = 60
_SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(
            Problem(f"{path} cannot be read: {error}", "name a file that is there, in UTF-8")
        ) from error


def _documents(text: str, place: str) -> list[Any]:
    try:
        found = load_all(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise UserError(Problem(f"{place} is no YAML: {words}", "mend it")) from error
    if not found:
        raise UserError(Problem(f"{place} is empty", "name a file with objects in it"))
    return found


def _objects(documents: list[Any], place: str) -> list[Object]:
    """Return the objects of some documents, those of a `List` one by one."""
    flat = [
        each
        for document in documents
        for each in (
            document.get("items") or []
            if isinstance(document, dict) and document.get("kind") == "List"
            else [document]
        )
    ]
    for index, each in enumerate(flat):
        if not isinstance(each, dict) or not each.get("kind") or not each.get("metadata"):
            raise UserError(
                Problem(f"{place}: document {index + 1} has no kind or no metadata",
                        "give it manifests as they would be applied")
            )  # fmt: skip
    return flat


def read_objects(subject: str) -> list[Object]:
    """Return the objects of a variant, of a folder or file of manifests, or of stdin (`-`).

    Raises:
        UserError: It is none of these, or cannot be read.
    """
    if subject == "-":
        return _objects(_documents(sys.stdin.read(), "stdin"), "stdin")
    if subject in variants():
        return render_variant(subject)
    path = Path(subject)
    if path.is_dir():
        return kustomize(path)
    if path.is_file():
        return _objects(_documents(_read(path), subject), subject)
    raise UserError(
        Problem(f"{subject} is no variant, no file and no folder",
                f"use a path, - for stdin, or one of: {', '.join(variants())}"),
        ExitCode.USAGE,
    )  # fmt: skip


def placed(variant: str, placing: Placing) -> list[Object]:
    """Return the objects of a variant as `make run` would apply them, placed by another scheduler.

    Raises:
        UserError: There is no such variant, or it cannot be placed so.
    """
    require_variant(variant)
    folder = write_overlay(variant, _RUN_ID, placing)
    try:
        return kustomize(folder)
    finally:
        drop_overlay(folder)


def _chart_values() -> dict[str, Object]:
    return {
        path.relative_to(ROOT).as_posix(): yaml.safe_load(_read(path)) or {}
        for path in sorted(_CHART_VALUES.glob(f"{_KAI}*.yaml"))
    }


def read_facts(platform: Path = PLATFORM, kai: str | None = None) -> Facts:
    """Return what the cluster offers.

    Args:
        platform: Values of charts/rl-platform, or the objects that it makes.
        kai: Version of KAI; the pinned one by default.

    Raises:
        UserError: The file or the version is none.
    """
    version = kai or pinned(_KAI, "online")
    try:
        version_of(version)
    except ValueError as error:
        raise UserError(Problem(str(error), "such as --kai v0.17.1"), ExitCode.USAGE) from error
    try:
        found = read_platform(_documents(_read(platform), str(platform)))
    except _SHAPE_ERRORS as error:
        raise UserError(
            Problem(f"{platform} does not tell of queues: {error!r}",
                    "name values of charts/rl-platform, or its objects as they render")
        ) from error  # fmt: skip
    if not found.queues:
        raise UserError(Problem(f"{platform} has no queues", "name values of charts/rl-platform"))
    return replace(found, kai=version, chart_values=_chart_values())


def nodes_of(where: str) -> list[Node]:
    """Return the nodes of a file of JSON, or of the cluster that kubectl talks to (`cluster`).

    Raises:
        UserError: There are none.
    """
    if where == "cluster":
        fix = "look at KUBECONFIG; or save them where the cluster is: kubectl get nodes -o json"
        said = run(["kubectl", "get", "nodes", "-o", "json"], timeout=_TIMEOUT_SECONDS, fix=fix)
    else:
        said = _read(Path(where))
    try:
        return read_nodes(json.loads(said))
    except ValueError as error:
        raise UserError(Problem(f"{where}: {error}", "kubectl get nodes -o json > FILE")) from error
