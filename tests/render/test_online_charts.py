"""The path of the online environments, with a web server on loopback for upstream's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tandem import crds
from tandem.bundle.fill import JOBSET_MODULE, KUEUE_MODULE
from tandem.bundle.modules import module_folder
from tandem.crds import crds_of_chart
from tandem.errors import UserError
from tandem.paths import ROOT
from tandem.process import run
from tandem.yamls import load_all


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        del format, args


@pytest.fixture(scope="module")
def chart_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JobSet's chart as published: with its CRDs, behind a URL."""
    folder = tmp_path_factory.mktemp("charts")
    source = module_folder(*JOBSET_MODULE) / "charts" / "jobset"
    run(["helm", "package", source, "--destination", folder], timeout=60)
    [package] = folder.glob("*.tgz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{package.name}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_crds_come_out_of_the_chart_itself(chart_url: str) -> None:
    [crd] = crds_of_chart({"name": "jobset", "chart": chart_url, "version": ""})
    assert crd["metadata"]["name"] == "jobsets.jobset.x-k8s.io"


def test_a_chart_that_cannot_be_reached_is_named(chart_url: str) -> None:
    missing = chart_url.replace("jobset", "no-such-chart")
    with pytest.raises(UserError) as caught:
        crds_of_chart({"name": "jobset", "chart": missing, "version": ""})
    assert missing in caught.value.problems[0].fix


def test_the_release_is_patched_and_holds_no_crd(chart_url: str) -> None:
    said = run(
        ["helmfile", "--quiet", "--environment", "prod", "--selector", "name=jobset",
         "--state-values-set", f"charts.jobset.chart={chart_url},charts.jobset.version=",
         "template", "--skip-needs"],
        timeout=120, cwd=ROOT,
    )  # fmt: skip
    objects = load_all(said)
    kinds = [obj["kind"] for obj in objects]
    assert "Deployment" in kinds
    assert "CustomResourceDefinition" not in kinds
    [secret] = [obj for obj in objects if obj["kind"] == "Secret"]
    assert "data" not in secret


def test_an_environments_crds_are_those_of_its_remote_charts(
    chart_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    releases = [
        {"name": "jobset", "chart": chart_url, "version": ""},
        {"name": "rl-platform", "chart": "charts/rl-platform", "version": ""},
    ]
    monkeypatch.setattr(crds, "releases_of", lambda _: releases)
    monkeypatch.setattr(crds, "BUILD", tmp_path)
    assert [path.stem for path in crds.sources("prod")] == ["jobsets.jobset.x-k8s.io"]


def test_kueues_crds_come_out_of_its_templates_and_are_in_no_release() -> None:
    chart = module_folder(*KUEUE_MODULE) / "charts" / "kueue"
    crds_there = {
        crd["metadata"]["name"]
        for crd in crds_of_chart({"name": "kueue", "chart": str(chart), "version": ""})
    }
    assert {"workloads.kueue.x-k8s.io", "clusterqueues.kueue.x-k8s.io"} <= crds_there
    said = run(
        ["helmfile", "--quiet", "--environment", "prod", "--selector", "name=kueue",
         "--state-values-set", f"charts.kueue.chart={chart},charts.kueue.version=",
         "--state-values-set", "kueue.enabled=true", "template", "--skip-needs"],
        timeout=120, cwd=ROOT,
    )  # fmt: skip
    kinds = {obj["kind"] for obj in load_all(said)}
    assert "Deployment" in kinds
    # A release that holds a CRD can drop it, and every queue and Workload with it.
    assert not kinds & {"CustomResourceDefinition", "APIService"}
