"""Fakes of KAI's CRDs: KAI's own are upstream's only, and not in the bundle.

They let an API server take a variant that brings a PodGroup along, and queues; they check nothing
of it: what is in a PodGroup is compared with the schema that we wrote by hand, in
tests/render/test_gang.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tandem.process import run

_GROUP = "scheduling.run.ai"
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _fake_crd(kind: str, version: str, scope: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": _ANYTHING}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


FAKE_PODGROUPS = _fake_crd("PodGroup", "v2alpha2", "Namespaced")
FAKE_QUEUES = _fake_crd("Queue", "v2", "Cluster")


@contextmanager
def served(crd: dict[str, Any]) -> Iterator[None]:
    """Make the API server of KUBECONFIG serve a kind for a while: other suites share it."""
    name = crd["metadata"]["name"]
    run(["kubectl", "apply", "-f", "-"], timeout=30, stdin=json.dumps(crd))
    try:
        established = ("--for=condition=Established", "--timeout=30s")
        run(["kubectl", "wait", f"crd/{name}", *established], timeout=40)
        yield
    finally:
        run(["kubectl", "delete", "crd", name, "--timeout=30s"], timeout=40)
