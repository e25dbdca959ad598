"""The README tells what there is."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, generate_latest

from endpoint_registry.records import RECORD, RUN_LABEL, STARTED
from endpoint_registry.sidecar import Metrics
from tandem.paths import ROOT
from tandem_common.metrics import KubeMetrics

README = (ROOT / "sidecars" / "endpoint-registry" / "README.md").read_text(encoding="utf-8")


def test_every_metric_is_told_and_no_other() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    KubeMetrics("endpoint_registry", registry)
    families = set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.MULTILINE))
    told = set(re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram)", README, re.MULTILINE))
    assert len(told) > 5
    assert told == {name for name in families if not name.endswith("_created")}


def test_labels_and_annotations_are_told() -> None:
    for name in (RUN_LABEL, STARTED, RECORD + "<key>"):
        assert f"`{name}`" in README
