"""Where things are in the checkout. Every path of the repository is named here once."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: Pinned command line tools and cluster binaries (`make tools`).
BIN = ROOT / "bin"
#: Virtual environment of the scripts and the checks.
VENV = ROOT / ".venv"
#: Images, charts and CRDs, one format for every provider (design §3).
BUNDLE = ROOT / ".bundle"
#: State of the clusters that this checkout started.
CLUSTER = ROOT / ".cluster"
#: Written by whatever brings a cluster up; read by everything that talks to it.
KUBECONFIG = CLUSTER / "kubeconfig"
#: Logs, events and results of runs.
ARTIFACTS = ROOT / "artifacts"
#: Rendered manifests and generated schemas.
BUILD = ROOT / "build"
#: Everything that is only a cache: may be deleted at any time.
CACHE = ROOT / ".cache"
VERSIONS = ROOT / "versions.yaml"
#: Simulated nodes: profiles and stages.
KWOK = ROOT / "cluster" / "kwok"
