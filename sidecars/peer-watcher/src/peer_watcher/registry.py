"""What the endpoint registry's ConfigMap says that concerns the watcher. Pure.

A ConfigMap of our run may be left by another one, or made by NeMo RL's own client, which
leaves no records. So each error and lease comes with the runs that it can belong to; whose
UIDs these are, the policy knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from endpoint_registry import records
from peer_watcher.facts import LeaseFacts, RegistryFacts

Object = Mapping[str, Any]


def _base(run: str) -> str:
    """Return the UID of a run's object, without the number of the attempt."""
    return run.partition(".")[0]


def registry_facts(configmap: Object) -> RegistryFacts:
    """Return the error, whose it is, and the writers' signs of life."""
    error = str((configmap.get("data") or {}).get(records.ERROR) or "")
    return RegistryFacts(
        uid=str(configmap["metadata"].get("uid", "")),
        error=error,
        error_runs=frozenset(_runs_of_error(configmap, error)) if error else frozenset(),
        leases=tuple(_leases(configmap)),
    )


def _record(configmap: Object, key: str) -> records.Record | None:
    text = (configmap["metadata"].get("annotations") or {}).get(records.RECORD + key)
    return records.decode(str(text)) if text else None


def _runs_of_error(configmap: Object, error: str) -> Iterator[str]:
    run, record = records.run_of(configmap), _record(configmap, records.ERROR)
    if record is not None and record.digest == records.digest(error) and record.run != run:
        return
    if run:
        yield _base(run)
    else:
        # Made by a client that knows no runs: its owners tell.
        for owner in configmap["metadata"].get("ownerReferences") or []:
            yield str(owner.get("uid", ""))


def _leases(configmap: Object) -> Iterator[LeaseFacts]:
    run = records.run_of(configmap)
    for name in sorted(configmap["metadata"].get("annotations") or {}):
        key = name.removeprefix(records.RECORD)
        record = _record(configmap, key) if key != name else None
        if record is None or record.run != run or record.lease_seconds is None:
            continue
        if record.state is records.State.WITHDRAWN:
            # It took its leave: whether the run can go on without it, time will tell.
            continue
        renewed = f"{record.pod}#{record.beat}@{record.at}"
        yield LeaseFacts(key, renewed, record.lease_seconds, _base(run), record.writer)
