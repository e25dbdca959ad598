"""The data plane's files: written whole and renamed into place, never seen half."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from vllm_pool.dataplane import config
from vllm_pool.dataplane.config import Backend, Document, PlaneSettings

_PRIVATE = 0o600
_PRIVATE_FOLDER = 0o700


def write_atomically(path: Path, content: bytes) -> bool:
    """Write a private file by renaming; return False when it holds this already.

    Raises:
        OSError: the folder is missing, full or not ours.
    """
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return True


def _json(document: Document) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def _routes_name(retries: int) -> str:
    return f"routes.{retries}.json"


def write_plane(settings: PlaneSettings) -> None:
    """Write all that Envoy needs to start: bootstrap, key script, routes, and an empty pool.

    Members that are in the folder already stay: this is what a restart finds.

    Raises:
        OSError: the run directory cannot be made or written.
    """
    run = settings.run_dir
    run.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    run.chmod(_PRIVATE_FOLDER)
    script = resources.files("vllm_pool.dataplane").joinpath(config.LUA_FILE).read_bytes()
    write_atomically(run / config.LUA_FILE, script)
    # The routes hold the token and depend on the number of members: one file for each number
    # of retries lets `write_endpoints` choose without knowing the settings.
    for retries in range(settings.retries + 1):
        write_atomically(
            run / _routes_name(retries), _json(config.routes(settings, members=retries + 1))
        )
    for stale in run.glob("routes.*.json"):
        if int(stale.name.split(".")[1]) > settings.retries:
            stale.unlink()
    members = _members(run)
    if members is None:
        write_endpoints(run, [])
    else:
        _choose_routes(run, members)
    write_atomically(run / config.BOOTSTRAP_FILE, _json(config.bootstrap(settings)))


def _members(run_dir: Path) -> int | None:
    """Return how many members take requests by the file; None when there is none to read."""
    try:
        document = json.loads((run_dir / config.ENDPOINTS_FILE).read_bytes())
        healthy = [
            endpoint
            for group in document["resources"][0]["endpoints"]
            for endpoint in group["lb_endpoints"]
            if endpoint["health_status"] == "HEALTHY"
        ]
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        # It is ours alone and written whole; whatever else it holds says nothing of members.
        return None
    return len(healthy)


def _choose_routes(run_dir: Path, members: int) -> None:
    most = len(list(run_dir.glob("routes.*.json"))) - 1
    chosen = run_dir / _routes_name(max(0, min(most, members - 1)))
    write_atomically(run_dir / config.ROUTES_FILE, chosen.read_bytes())


def write_endpoints(run_dir: Path, backends: Sequence[Backend]) -> bool:
    """Tell Envoy its members; return False, and write nothing, when it knows them already.

    `write_plane` must have been here before.

    Raises:
        OSError: the run directory cannot be written.
    """
    body = config.endpoints(backends, "")
    body["version_info"] = hashlib.sha256(_json(body)).hexdigest()[:16]
    members = sum(not backend.draining for backend in backends)
    path = run_dir / config.ENDPOINTS_FILE
    known = _members(run_dir)
    shrinks = known is not None and members < known
    # A request must never be allowed more tries than there are replicas to try.
    if shrinks:
        _choose_routes(run_dir, members)
    changed = write_atomically(path, _json(body))
    if not shrinks:
        _choose_routes(run_dir, members)
    return changed
