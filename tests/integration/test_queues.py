"""Queues go before the release that made them, with a fake of KAI's CRD."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.kai_crds import FAKE_QUEUES, served
from tandem.platform import QUEUES, delete_queues
from tandem.process import run

pytestmark = pytest.mark.api_server


def test_our_queues_are_deleted_and_those_of_others_are_not(kubeconfig: Path) -> None:
    assert kubeconfig.is_file()
    assert delete_queues() == 0, "without KAI there are none"
    with served(FAKE_QUEUES):
        for name, parent, owner in (
            ("top", None, "rl-platform"), ("leaf", "top", "rl-platform"), ("theirs", None, "kai"),
        ):  # fmt: skip
            obj = {
                "apiVersion": "scheduling.run.ai/v2",
                "kind": "Queue",
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": owner}},
                "spec": {"parentQueue": parent} if parent else {},
            }
            run(["kubectl", "create", "-f", "-"], timeout=30, stdin=json.dumps(obj))
        assert delete_queues() == 2
        left = run(["kubectl", "get", QUEUES, "-o", "name"], timeout=30)
        assert left.split() == ["queue.scheduling.run.ai/theirs"]
