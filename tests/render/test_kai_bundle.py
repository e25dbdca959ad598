"""A bundle that holds KAI switches it on, with the real helmfile and the real hook.

KAI's own chart is upstream's and not here. A fake one stands in its place, made by this
test: it renders the values that it was given and nothing of KAI. The bundle lies in a copy
of the checkout, so that a contributor's bundle neither matters nor changes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.bundle.kai import IMAGES, REGISTRY
from tandem.images.bundle import Record, write
from tandem.paths import BIN, ROOT
from tandem.versions import pinned
from tandem.yamls import load_all

VERSION = pinned("kai-scheduler", "online")
FAKE_CHART = {
    "Chart.yaml": f"""\
apiVersion: v2
name: kai-scheduler
description: A fake, made by a test, to be rendered and never installed
version: {VERSION}
""",
    # Upstream's values that ours are laid over: what we do not set must stay as it is.
    "values.yaml": "global: {registry: upstream, untouched: true}\n",
    "templates/configmap.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata: {name: fake-kai, namespace: {{ .Release.Namespace }}}
data:
  values: {{ .Values | toJson | quote }}
""",
    "crds/fakes.yaml": """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fakes.kai.example}
spec:
  group: kai.example
  names: {kind: Fake, plural: fakes}
  scope: Namespaced
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
""",
}
#: What the programs behind helmfile and its hook read of a checkout.
COPIED = (
    "helmfile.yaml",
    "charts",
    "scripts",
    "tools",
    "versions.yaml",
    "cluster/host/tandem_host",
)


class Checkout:
    """A copy of the checkout with a bundle of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in COPIED:
            source, target = ROOT / name, root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (root / "bin").symlink_to(BIN)
        (root / ".venv").symlink_to(ROOT / ".venv")

    def run(self, *words: str) -> str:
        env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        path = os.pathsep.join(str(self.root / f) for f in ("scripts/lib", "cluster/host"))
        env |= {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "PYTHONPATH": path, "NO_COLOR": "1"}
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=300, cwd=self.root, env=env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fill(self) -> None:
        self.run(sys.executable, "-m", "tandem.bundle", "fill")

    def add_chart(self, *, packed: bool = False) -> None:
        chart = self.root / ".bundle/charts/kai-scheduler"
        for name, text in FAKE_CHART.items():
            (chart / name).parent.mkdir(parents=True, exist_ok=True)
            (chart / name).write_text(text)
        if packed:
            self.run("helm", "package", str(chart), "--destination", str(chart.parent))
            shutil.rmtree(chart)

    def add_images(self, names: tuple[str, ...]) -> None:
        for name in names:
            record = Record(f"kai-{name}", f"{REGISTRY}/{name}:{VERSION}", "fake")
            write(record, self.root / ".bundle/images")

    def release(self, name: str) -> dict[str, Any]:
        """What helmfile lists of a release in the local environment."""
        listed = json.loads(
            self.run("helmfile", "--quiet", "list", "--skip-charts", "--output", "json")
        )
        [found] = [each for each in listed if each["name"] == name]
        return dict(found)

    def template(self) -> list[dict[str, Any]]:
        return load_all(self.run("helmfile", "--quiet", "template"))


@pytest.fixture(scope="module")
def with_kai(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    checkout = Checkout(tmp_path_factory.mktemp("kai") / "checkout")
    checkout.add_chart()
    checkout.add_images(IMAGES)
    checkout.fill()
    return checkout


@pytest.fixture(scope="module")
def rendered(with_kai: Checkout) -> list[dict[str, Any]]:
    return with_kai.template()


def test_kai_is_enabled_with_exactly_the_bundles_chart(with_kai: Checkout) -> None:
    kai = with_kai.release("kai-scheduler")
    assert kai["enabled"]
    assert kai["installed"]
    assert kai["namespace"] == "kai-scheduler"
    assert kai["chart"] == ".bundle/charts/kai-scheduler"


def deep_merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = deep_merge(below, value)
        else:
            merged[key] = value
    return merged


def test_the_chart_gets_our_values_laid_over_its_own(rendered: list[dict[str, Any]]) -> None:
    [fake] = [obj for obj in rendered if obj["metadata"]["name"] == "fake-kai"]
    given = json.loads(fake["data"]["values"])
    expected = yaml.safe_load(FAKE_CHART["values.yaml"])
    for name in ("kai-scheduler.yaml", "kai-scheduler.local.yaml"):
        expected = deep_merge(expected, yaml.safe_load((ROOT / "charts/values" / name).read_text()))
    assert given == expected
    assert given["global"]["untouched"] is True


def test_queues_come_with_kai(rendered: list[dict[str, Any]]) -> None:
    queues = {obj["metadata"]["name"] for obj in rendered if obj["kind"] == "Queue"}
    assert queues == {"tandem", "research", "high-prio", "low-prio"}


def test_kais_crds_come_by_the_step_of_their_own_and_in_no_release(
    with_kai: Checkout, rendered: list[dict[str, Any]]
) -> None:
    crds = with_kai.run(sys.executable, "-m", "tandem.crds", "list").split()
    assert str(with_kai.root / ".bundle/manifests/crds/fakes.kai.example.yaml") in crds
    assert [obj for obj in rendered if obj["kind"] == "CustomResourceDefinition"] == []


def test_kai_is_installed_before_all_that_needs_it(with_kai: Checkout) -> None:
    # helmfile installs group by group, and waits for each.
    said = with_kai.run("helmfile", "--quiet", "show-dag")
    rows = re.findall(r"^(\d+)\s+[\w-]+/([\w-]+)", said, re.MULTILINE)
    group = {name: int(number) for number, name in rows}
    for name in ("kuberay-operator", "jobset", "rl-platform"):
        assert group["kai-scheduler"] < group[name]


def test_a_packed_chart_is_taken_too(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.add_chart(packed=True)
    checkout.add_images(IMAGES)
    checkout.fill()
    kai = checkout.release("kai-scheduler")
    assert kai["enabled"]
    assert kai["chart"] == f".bundle/charts/kai-scheduler-{VERSION}.tgz"
    assert "fake-kai" in {obj["metadata"]["name"] for obj in checkout.template()}


def test_without_all_of_it_there_is_no_kai(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.add_images(IMAGES)
    checkout.fill()
    assert not checkout.release("kai-scheduler")["enabled"], "there is no chart"
    checkout.add_chart()
    (checkout.root / f".bundle/images/kai-{IMAGES[0]}.json").unlink()
    checkout.fill()
    assert not checkout.release("kai-scheduler")["enabled"], "an image is missing"

    objects = checkout.template()
    assert {"Deployment", "ServiceAccount"} <= {obj["kind"] for obj in objects}
    assert "Queue" not in {obj["kind"] for obj in objects}
    assert "fake-kai" not in {obj["metadata"]["name"] for obj in objects}
    crds = checkout.run(sys.executable, "-m", "tandem.crds", "list")
    assert "fakes.kai.example" not in crds
