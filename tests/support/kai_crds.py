"""A fake of KAI's PodGroup CRD: KAI's own is upstream's only, and not in the bundle.

It lets an API server take a variant that brings a PodGroup along, and checks nothing of it: what
is in the PodGroup is compared with the schema that we wrote by hand, in tests/render/test_gang.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.process import run

_NAME = "podgroups.scheduling.run.ai"
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
FAKE_PODGROUPS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": _NAME},
    "spec": {
        "group": "scheduling.run.ai",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v2alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _ANYTHING}}
                },
            }
        ],
    },
}


@contextmanager
def podgroups_served() -> Iterator[None]:
    """Make the API server of KUBECONFIG serve PodGroups for a while: other suites share it."""
    run(["kubectl", "apply", "-f", "-"], timeout=30, stdin=json.dumps(FAKE_PODGROUPS))
    try:
        established = ("--for=condition=Established", "--timeout=30s")
        run(["kubectl", "wait", f"crd/{_NAME}", *established], timeout=40)
        yield
    finally:
        run(["kubectl", "delete", "crd", _NAME, "--timeout=30s"], timeout=40)
