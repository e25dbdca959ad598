"""A small chart of the KubeRay operator, made from the module's kustomize folder.

The module (served as a Go module) has no Helm chart, the upstream chart lies in another
module. The chart made here takes those values of the upstream chart that Tandem sets, by
the same names, so that one values file serves both. Without CRDs: they are a step of
their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.errors import ExitCode, Problem, UserError
from tandem.process import run
from tandem.yamls import dump, load_all

Object = dict[str, Any]

_RENDER_TIMEOUT_SECONDS = 60
_NAMESPACE = "{{ .Release.Namespace }}"

#: Values of the upstream chart that this one takes, with upstream's defaults.
VALUES: Object = {
    "image": {
        "repository": "quay.io/kuberay/operator",
        "tag": "",
        "pullPolicy": "IfNotPresent",
    },
    "batchScheduler": {"name": ""},
    "leaderElectionEnabled": True,
    "priorityClassName": "",
    "nodeSelector": {},
    "tolerations": [],
    "env": [],
    "resources": {"limits": {"cpu": "100m", "memory": "512Mi"}},
    "livenessProbe": {"initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 5},
    "readinessProbe": {"initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 5},
}

# Templates stand in for values under marks, since YAML cannot hold them unquoted.
_MARKS = {
    "@IMAGE@": '"{{ .Values.image.repository }}:{{ .Values.image.tag | default '
    '.Chart.AppVersion }}"',
    "@PULL_POLICY@": "{{ .Values.image.pullPolicy }}",
    "@LEADER@": "--enable-leader-election={{ .Values.leaderElectionEnabled }}",
    "@SCHEDULER@": "{{ with .Values.batchScheduler.name }}--batch-scheduler={{ . }}"
    "{{ else }}--enable-batch-scheduler=false{{ end }}",
    "@RESOURCES@": "{{ toJson .Values.resources }}",
    "@ENV@": "{{ toJson (.Values.env | default list) }}",
    "@NODE_SELECTOR@": "{{ toJson .Values.nodeSelector }}",
    "@TOLERATIONS@": "{{ toJson .Values.tolerations }}",
    "@PRIORITY@": "{{ .Values.priorityClassName | quote }}",
    **{
        f"@{probe}.{key}@": f"{{{{ .Values.{probe}.{key} }}}}"
        for probe in ("livenessProbe", "readinessProbe")
        for key in VALUES[probe]
    },
}


def render(module: Path) -> list[Object]:
    """Return the objects of the module's `config/default`."""
    said = run(
        ["kubectl", "kustomize", module / "config" / "default"], timeout=_RENDER_TIMEOUT_SECONDS,
        fix="make tools",
    )  # fmt: skip
    return load_all(said)


def crds_of(objects: list[Object]) -> list[Object]:
    """Return the CRDs among the objects."""
    return [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]


def _with_marks(deployment: Object) -> None:
    """Put a mark at each place of the Deployment that a value decides."""
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container["image"] = "@IMAGE@"
    container["imagePullPolicy"] = "@PULL_POLICY@"
    container["args"] = [*container.get("args", []), "@LEADER@", "@SCHEDULER@"]
    container["resources"] = "@RESOURCES@"
    container["env"] = "@ENV@"
    for probe in ("livenessProbe", "readinessProbe"):
        for key in VALUES[probe]:
            container[probe][key] = f"@{probe}.{key}@"
    pod["nodeSelector"] = "@NODE_SELECTOR@"
    pod["tolerations"] = "@TOLERATIONS@"
    pod["priorityClassName"] = "@PRIORITY@"


def template_of(obj: Object) -> str:
    """Return one object as a Helm template; its namespace is the release's."""
    if obj["kind"] == "Deployment":
        _with_marks(obj)
    if "namespace" in obj["metadata"]:
        obj["metadata"]["namespace"] = "@NAMESPACE@"
    for subject in obj.get("subjects", []):
        subject["namespace"] = "@NAMESPACE@"
    text = dump(obj, width=10_000)
    if "{{" in text:
        raise UserError(
            Problem(
                f"{obj['kind']} {obj['metadata']['name']} of KubeRay holds '{{{{', which Helm "
                "would take for a template",
                "escape it in scripts/lib/tandem/bundle/kuberay_chart.py",
            ),
            ExitCode.FAILURE,
        )
    for mark, template in {"@NAMESPACE@": _NAMESPACE, **_MARKS}.items():
        text = text.replace(f"'{mark}'", template).replace(mark, template)
    return text


def write_chart(objects: list[Object], target: Path, version: str) -> None:
    """Write the chart for every object that is no CRD."""
    templates = target / "templates"
    templates.mkdir(parents=True)
    chart = {
        "apiVersion": "v2",
        "name": "kuberay-operator",
        "description": "KubeRay operator, from the kustomize folder of its Go module",
        "version": version.removeprefix("v"),
        "appVersion": version,
    }
    (target / "Chart.yaml").write_text(dump(chart), encoding="utf-8")
    (target / "values.yaml").write_text(dump(VALUES), encoding="utf-8")
    for obj in objects:
        if obj["kind"] == "CustomResourceDefinition":
            continue
        name = f"{obj['kind'].lower()}-{obj['metadata']['name']}.yaml"
        (templates / name).write_text(template_of(obj), encoding="utf-8")
