"""The program's face: settings, --help, refusals; nothing here needs an API server."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from peer_watcher.act import Actor
from peer_watcher.facts import Members, Ref
from peer_watcher.main import Watcher, wall_time
from peer_watcher.metrics import METRICS, Metrics
from peer_watcher.observe import Observer
from peer_watcher.policy import CAUSES, GUARDS, Limits
from peer_watcher.settings import WatcherSettings
from tandem.paths import ROOT
from tandem_common.errors import UserError
from tandem_common.kube import Client, ClusterConfig, Forbidden
from tandem_common.kube.errors import Call
from tandem_common.settings import environment_table

README = ROOT / "sidecars" / "peer-watcher" / "README.md"
SOURCES = os.pathsep.join(
    str(ROOT / "sidecars" / name / "src")
    for name in ("common", "endpoint-registry", "peer-watcher")
)


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peer_watcher", *words],
        check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SOURCES, **environment},
    )  # fmt: skip


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_done(tmp_path: Path) -> None:
    # A cluster that cannot be reached: a program that tried would say so, and end with 3.
    done = program(
        KUBECONFIG=str(tmp_path / "none"),
        PEER_WATCHER_JOB_ID="Not_A_Label", PEER_WATCHER_SELF="RayCluster/rl",
        PEER_WATCHER_PEER="RayCluster/rl", PEER_WATCHER_DRIVER="Deployment/x",
        PEER_WATCHER_ATTEMPTS="0", PEER_WATCHER_STARTUP_SECONDS="-5",
        PEER_WATCHER_STALE_SECONDS="3",
    )  # fmt: skip
    assert done.returncode == 2
    for word in (
        "PEER_WATCHER_JOB_ID='Not_A_Label'", "PEER_WATCHER_NAMESPACE is missing",
        "PEER_WATCHER_PEER='RayCluster/rl' is this side itself", "a Deployment cannot be it",
        "PEER_WATCHER_ATTEMPTS='0'", "PEER_WATCHER_STARTUP_SECONDS='-5'",
        "PEER_WATCHER_STALE_SECONDS is set, but no setting has this name",
    ):  # fmt: skip
        assert word in done.stderr
    assert done.stderr.count("fix: ") == done.stderr.count("error: ") == 7
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"self": "RayCluster/rl"}, "neither a peer nor a driver"),
        ({"self": "RayCluster/Rl_1", "peer": "RayJob/x"}, "no name of an object"),
        ({"self": "rl", "peer": "RayJob/x"}, "no Kind/name"),
        ({"self": "Job/x", "peer": "RayJob/x"}, "a Job cannot be it"),
        ({"self": "RayJob/x", "driver": "RayCluster/rl"}, "a RayCluster cannot be it"),
        ({"self": "RayJob/x", "settle_seconds": "1"}, "≥ 5"),
        ({"self": "RayJob/x", "lease_grace_seconds": "inf"}, "'inf'"),
        ({"self": "RayJob/x", "poll_seconds": 31}, "PEER_WATCHER_SETTLE_SECONDS=30"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: dict[str, str], word: str) -> None:
    with pytest.raises(UserError) as caught:
        WatcherSettings.load({"job_id": "run-7", "namespace": "tandem", **flags})
    assert caught.value.code == 2
    assert word in str(caught.value)


def test_what_is_polled_is_polled_in_time_also_while_nothing_lasts() -> None:
    members = Members(Ref("RayJob", "x"))
    # Nothing is sent before `start`.
    client = Client(ClusterConfig("https://127.0.0.1:1", "tandem"))
    observer = Observer(client, members, poll_seconds=5.0)
    metrics = Metrics(CollectorRegistry())
    actor = Actor(client, identity="test", now=wall_time)
    watcher = Watcher(members, Limits(), observer, actor, metrics)
    watcher.seen_all = True
    assert watcher._pause() == 20
    refused = Forbidden(Call("watch", "rayjobs", "ray.io", "tandem", "x"), "no", status=403)
    observer._objects[members.self_]._informer.error = refused
    assert watcher._pause() == 5


def test_the_package_names_every_package_of_ours_that_it_imports() -> None:
    folder = README.parent
    found = {
        line.split()[1].split(".")[0].replace("_", "-")
        for path in folder.glob("src/**/*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("from ")
    }
    ours = {path.parent.name for path in folder.parent.glob("*/pyproject.toml")}
    names = {"common": "tandem-common"}
    wanted = found & {names.get(name, name) for name in ours} - {folder.name}
    package = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert wanted == {"tandem-common", "endpoint-registry"}
    assert wanted <= set(package["project"]["dependencies"])
    assert wanted == set(package["tool"]["uv"]["sources"])


def test_a_run_of_one_object_needs_no_peer() -> None:
    found = WatcherSettings.load(
        {"job_id": "run-7", "namespace": "tandem", "self": "RayJob/x", "registry": False}
    )
    assert found.members.all == (Ref("RayJob", "x"),)
    assert not found.members.registry


def test_help_has_examples_and_exit_codes() -> None:
    done = program("--help")
    assert done.returncode == 0
    for word in ("examples:", "exit codes:", "--observe-only", "--startup-seconds"):
        assert word in done.stdout


def test_without_a_cluster_it_ends_with_a_precondition(tmp_path: Path) -> None:
    done = program(
        "--job-id", "run-7", "--namespace", "tandem", "--self", "RayJob/x",
        KUBECONFIG=str(tmp_path / "none"),
    )  # fmt: skip
    assert done.returncode == 3
    assert str(tmp_path / "none") in done.stderr


def between(text: str, name: str) -> str:
    return text.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->", maxsplit=1)[0].strip()


def rules_table() -> str:
    rows = ["| rule | holds when |", "| --- | --- |"]
    rows += [f"| `{name}` | {words} |" for name, words in CAUSES.items()]
    rows += ["", "| guard | because |", "| --- | --- |"]
    rows += [f"| `{name}` | {words} |" for name, words in GUARDS.items()]
    return "\n".join(rows)


def metrics_table() -> str:
    rows = ["| metric | labels | meaning |", "| --- | --- | --- |"]
    rows += [
        f"| `{name}` | {', '.join(f'`{label}`' for label in labels) or 'none'} | {meaning} |"
        for name, (labels, meaning) in METRICS.items()
    ]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("environment", environment_table(WatcherSettings).strip()),
        ("rules", rules_table()),
        ("metrics", metrics_table()),
    ],
)
def test_the_readmes_tables_are_those_of_the_program(name: str, made: str) -> None:
    # `python tests/unit/sidecars/peer_watcher/test_program.py` writes them.
    assert between(README.read_text(encoding="utf-8"), name) == made


def write_tables() -> None:
    text = README.read_text(encoding="utf-8")
    for name, made in (
        ("environment", environment_table(WatcherSettings).strip()),
        ("rules", rules_table()),
        ("metrics", metrics_table()),
    ):
        old = between(text, name)
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        kept = f"{begin}{old}\n{end}" if old else f"{begin}{end}"
        text = text.replace(kept, f"{begin}{made}\n{end}")
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_tables()
