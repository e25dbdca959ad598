"""Validation refuses what it should: typing errors, unknown kinds, nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import UserError
from tandem.schemas.generate import generate
from tandem.validate import check, problems_of

RAYJOB = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: a}}
spec:
  submissionMode: HTTPMode
  rayClusterSpec:
    headGroupSpec:
      rayStartParams: {{}}
      template:
        spec:
          containers: [{{name: ray-head, image: ray, {extra}}}]
"""


QUEUE = """\
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: a}
spec: {resources: {gpus: {quota: 1}}}
"""


@pytest.fixture(scope="module", autouse=True)
def _schemas() -> None:
    count, _ = generate()
    assert count > 150


def faults(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    return [problem.what for problem in problems_of(check([path]))]


def test_a_good_manifest_passes(tmp_path: Path) -> None:
    text = RAYJOB.format(extra="imagePullPolicy: IfNotPresent")
    assert faults(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (RAYJOB.format(extra="imagePulPolicy: Always"), "imagePulPolicy"),
        (RAYJOB.replace("submissionMode", "submissionMod").format(extra="tty: true"), "/spec"),
        (RAYJOB.replace("name: a", "name: a, labelz: {{}}").format(extra="tty: true"), "labelz"),
        (RAYJOB.format(extra="tty: 3"), "tty"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {container: []}", "container"),
        ("apiVersion: example.test/v1\nkind: Unknown\nmetadata: {name: a}", "schema for Unknown"),
        ("apiVersion: ray.io/v9\nkind: RayJob\nmetadata: {name: a}", "schema for RayJob"),
        (
            QUEUE,
            "gpus",
        ),
    ],
)
def test_a_bad_one_is_named(tmp_path: Path, text: str, word: str) -> None:
    found = faults(tmp_path, text)
    assert len(found) == 1
    assert word in found[0]


def test_nothing_to_check_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to validate"):
        check([tmp_path])
