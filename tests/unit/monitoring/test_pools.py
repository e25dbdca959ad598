"""Alerts and dashboard of pools: what Prometheus makes of them, and that their series exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Metric

from tandem.paths import ROOT
from vllm_pool.manager.metrics import Metrics

FOLDER = ROOT / "charts" / "rl-platform" / "files" / "pools"
ALERTS, DASHBOARD = FOLDER / "alerts.yaml", FOLDER / "dashboard.json"
CASES = Path(__file__).with_name("pools.yaml")
PROMTOOL = shutil.which("promtool")
SERIES = re.compile(r"\bvllm_pool_\w+")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: make system")


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def promtool(*words: str, cwd: Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *words], cwd=cwd, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    promtool("check", "rules", str(ALERTS), cwd=tmp_path)
    # promtool would have each case repeat the alert's texts, which are for people.
    rules = [{k: v for k, v in each.items() if k != "annotations"} for each in alerts()]
    bare = {"groups": [{"name": "vllm-pools", "rules": rules}]}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(bare))
    shutil.copy(CASES, tmp_path)
    promtool("test", "rules", CASES.name, cwd=tmp_path)


def test_each_alert_has_a_case_of_either_kind_and_says_what_to_do() -> None:
    fires: dict[str, set[bool]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for one in case["alert_rule_test"]:
            fires.setdefault(one["alertname"], set()).add(bool(one["exp_alerts"]))
    assert fires == {each["alert"]: {True, False} for each in alerts()}
    for each in alerts():
        assert each["labels"]["severity"] in ("warning", "critical")
        assert set(each["annotations"]) == {"summary", "description"}


@needs_promtool
def test_prometheus_understands_every_question_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{panel['id']}:{target['refId']}", "expr": target["expr"]}
        for panel in panels()
        for target in panel["targets"]
    ]
    (tmp_path / "panels.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    )
    promtool("check", "rules", "panels.yaml", cwd=tmp_path)


def names(metric: Metric) -> Iterator[str]:
    yield f"{metric.name}_total" if metric.type == "counter" else metric.name


def test_whatever_is_asked_for_is_what_a_balancer_shows() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    shown = {name for metric in registry.collect() for name in names(metric)}
    asked = {series for each in alerts() for series in SERIES.findall(each["expr"])}
    asked |= {
        series
        for panel in panels()
        for target in panel["targets"]
        for series in SERIES.findall(target["expr"])
    }
    assert len(asked) >= 15
    assert asked <= shown


def test_panels_are_told_apart_and_asked_of_one_run() -> None:
    found = panels()
    ids = [panel["id"] for panel in found]
    assert len(set(ids)) == len(ids)
    for panel in found:
        assert panel["title"]
        for target in panel["targets"]:
            for series in SERIES.finditer(target["expr"]):
                after = target["expr"][series.end() :]
                assert after.startswith('{namespace="$namespace", tandem_dev_run_id="$run"'), after
