"""The program: what it takes, what it prints, how it ends."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.kai_objects import (
    PLATFORM,
    jobset,
    raycluster,
    replicated_job,
    template,
    worker_group,
    workload,
)
from tandem import runs
from tandem.errors import ExitCode, UserError
from tandem.explain import __main__ as program
from tandem.explain import inputs
from tandem.explain.report import Report, report_of
from tandem.explain.text import WIDTH, text
from tandem.yamls import dump, dump_all

GOOD = raycluster(worker_group(template(8), replicas=2))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(dump(PLATFORM))
    return path


def manifests(folder: Path, *objects: dict[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(dump_all(objects))
    return path


def explain(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["explain", *map(str, words)])
    return program.main()


def refused(monkeypatch: pytest.MonkeyPatch, *words: object) -> UserError:
    with pytest.raises(UserError) as caught:
        explain(monkeypatch, *words)
    return caught.value


def test_a_run_in_a_tree(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = manifests(tmp_path, GOOD, workload("Job", template(scheduler="default-scheduler")))
    assert explain(monkeypatch, run, "--queues", site, "--kai", "v0.17.1") == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith(f"{run}: 1 gang, 3 pods, 16 GPUs, as the model of KAI v0.17.1 has it\n")
    for line in (
        "PodGroup pg-rl-<uid>  made of RayCluster/rl",
        "  queue low-prio < tandem; priority rl-head or rl-worker; preemptible",
        "  starts with 16 GPUs, 3 cores, 3.0 GB",
        "  all of 2 subgroups",
        "  ├─ headgroup  1 of 1 pod   RayCluster/rl headgroup",
        "  └─ workers    2 of 2 pods  RayCluster/rl workers: 8 GPUs each",
        "  Job/job: 1 pod, default-scheduler",
        "fits, as far as queues tell",
    ):
        assert line in said.splitlines()


def test_stdin_and_a_list(site: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    listed = {"kind": "List", "apiVersion": "v1", "items": [GOOD]}
    monkeypatch.setattr("sys.stdin", io.StringIO(dump(listed)))
    assert explain(monkeypatch, "-", "--queues", site) == ExitCode.OK
    assert capsys.readouterr().out.startswith("stdin: 1 gang, 3 pods")


def test_json_holds_the_tree_and_the_findings(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = manifests(tmp_path, jobset(replicated_job("w", template(8), parallelism=4)))
    nodes = tmp_path / "nodes.json"
    allocatable = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"}
    nodes.write_text(json.dumps({"items": [
        {"metadata": {"name": "n1"}, "status": {"allocatable": allocatable}}
    ]}))  # fmt: skip
    error = refused(monkeypatch, run, "--queues", site, "--nodes", nodes, "--output", "json")
    assert error.code == ExitCode.FAILURE
    assert "1 error (too-few-nodes)" in str(error)
    said = json.loads(capsys.readouterr().out)
    assert said["nodes"] == 1
    [group] = said["groups"]
    assert group["needed"] == {"gpus": 32, "cpuMillicores": 4000, "memoryMB": 4000}
    assert (group["queue"], group["pods"], group["gpus"]) == ("low-prio", 4, 32)
    [parent] = group["tree"]["subGroups"]
    assert [leaf["name"] for leaf in parent["subGroups"]] == ["w-replica-0"]
    assert parent["subGroups"][0]["minMember"] == 4
    [finding] = said["findings"]
    assert set(finding) == {"rule", "level", "place", "what", "reason", "fix"}


def test_an_error_is_told_whole_and_ends_with_code_1(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = raycluster(worker_group(template(8), suspend=True))
    run["metadata"]["labels"]["kai.scheduler/queue"] = "mid-prio"
    error = refused(monkeypatch, manifests(tmp_path, run), "--queues", site)
    assert error.code == ExitCode.FAILURE
    assert "2 errors (suspended-group, queue-unknown)" in str(error)
    said = capsys.readouterr().out
    assert "error: queue-unknown: RayCluster/rl" in said
    assert "  why: " in said
    assert "  fix: " in said


def test_a_warning_is_no_failure(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = manifests(tmp_path, GOOD, raycluster(name="gym"))
    assert explain(monkeypatch, run, "--queues", site) == ExitCode.OK
    assert "warning: several-gangs: run r1" in capsys.readouterr().out


def test_another_version_of_kai_has_its_own_traps(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = manifests(tmp_path, GOOD)
    error = refused(monkeypatch, run, "--queues", site, "--kai", "v0.16.7")
    assert "evicted-after-first-success" in str(error)


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["no-such-variant"], ExitCode.USAGE, "is no variant, no file and no folder"),
        (["FILE", "--kai", "newest"], ExitCode.USAGE, "'newest' is no version"),
        (["FILE", "--queues", "GONE"], ExitCode.PRECONDITION, "cannot be read"),
        (["FILE", "--queues", "EMPTY"], ExitCode.PRECONDITION, "is empty"),
        (["FILE", "--queues", "FILE"], ExitCode.PRECONDITION, "has no queues"),
        (["FILE", "--queues", "BROKEN"], ExitCode.PRECONDITION, "is no YAML"),
        (["FILE", "--queues", "LIST"], ExitCode.PRECONDITION, "does not tell of queues"),
        (["FILE", "--nodes", "GONE"], ExitCode.PRECONDITION, "cannot be read"),
        (["FILE", "--nodes", "FILE"], ExitCode.PRECONDITION, "kubectl get nodes"),
        (["EMPTY"], ExitCode.PRECONDITION, "is empty"),
        (["BROKEN"], ExitCode.PRECONDITION, "is no YAML"),
        (["LIST"], ExitCode.PRECONDITION, "document 1 has no kind or no metadata"),
        (["ODD"], ExitCode.PRECONDITION, "an object is not of its kind's shape"),
    ],
)
def test_bad_input_is_refused_with_a_fix(
    words: list[str], code: ExitCode, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {
        "EMPTY": "", "BROKEN": "a: [", "LIST": "- a\n", "FILE": dump(GOOD),
        "ODD": "kind: JobSet\nmetadata: {name: x}\nspec: {}\n",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    places = {name: tmp_path / name for name in (*contents, "GONE")}
    error = refused(monkeypatch, *[places.get(word, word) for word in words])
    assert error.code == code
    assert what in str(error)
    assert "fix: " in str(error)


def test_nodes_of_the_cluster_are_asked_of_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_run(words: list[str], **_: object) -> str:
        assert words[:3] == ["kubectl", "get", "nodes"]
        return json.dumps({"items": [{"metadata": {"name": "n"}, "status": {"allocatable": {}}}]})

    monkeypatch.setattr(inputs, "run", fake_run)
    assert [node.name for node in inputs.nodes_of("cluster")] == ["n"]


def wide() -> Report:
    """A run of 64 workers with all that makes lines long, and findings."""
    long = "a-replicated-job-with-a-name-of-as-many-letters-as-it-may-have"
    place = {
        "kai.scheduler/topology": "gb300-with-a-long-name",
        "kai.scheduler/topology-required-placement": "topology.example.com/a-long-label",
        "kai.scheduler/topology-preferred-placement": "topology.example.com/another-long-label",
    }
    claims = [{"name": f"claim-number-{index}"} for index in range(4)]
    job = jobset(
        replicated_job("head", template(priority="rl-head")),
        replicated_job(long, template(8, resourceClaims=claims), replicas=64, annotations=place),
        replicated_job("odd", template(1), parallelism=4, completions=6),
        annotations=place,
    )
    job["metadata"]["labels"]["kai.scheduler/queue"] = "a-queue-with-a-long-name-that-is-unknown"
    facts = inputs.read_facts()
    return report_of("wide", [job, raycluster(name="another")], facts)


def test_no_line_is_longer_than_100_columns() -> None:
    said = text(wide())
    assert "error: uneven-waves" in said
    # A single word may be longer than any line.
    assert [line for line in said.splitlines() if len(line) > WIDTH and " " in line.strip()] == []


def test_equal_replicas_are_one_line() -> None:
    said = text(wide())
    assert len(re.findall(r"-replica-0 … 63", said)) == 1
    assert "-replica-1 " not in said
    narrow = jobset(replicated_job("w", template(8), replicas=64))
    line = "└─ w-replica-0 … 63  1 of 1 pod each  JobSet/mono w: 8 GPUs each"
    assert line in text(report_of("narrow", [narrow], inputs.read_facts()))
    rows = [line for line in said.splitlines() if "─ " in line]
    # Three replicatedJobs with a leaf each, and the head of the RayCluster.
    assert len(rows) == 7


def test_a_variant_in_a_queue_of_kueues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(monkeypatch, "disagg-rayclusters", "--scheduler", "kueue") == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith("disagg-rayclusters: 1 Workload, 4 pods, 1 GPU, as the model of Kueue")
    assert "queue low-prio < research < tandem; priority class low-prio" in said
    assert "fits, as far as queues tell" in said
    assert max(map(len, said.splitlines())) <= WIDTH
    words = ("disagg-jobset", "--scheduler", "kueue", "--queue", "nope", "--output", "json")
    error = refused(monkeypatch, *words)
    assert "kueue-queue-unknown" in str(error)
    [unit] = json.loads(capsys.readouterr().out)["workloads"]
    assert (unit["name"], unit["queue"], unit["podCount"]) == ("JobSet/run-run", "nope", 4)
    assert unit["comesBack"]


def test_a_variant_for_kai_is_not_kueues(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "prod-disagg-jobset", "--scheduler", "kueue")
    assert error.code == ExitCode.USAGE


def test_a_queue_without_its_scheduler_is_refused_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = refused(monkeypatch, "disagg-jobset", "--queue", "high-prio")
    assert error.code == ExitCode.USAGE
    assert "--queue high-prio without --scheduler" in str(error)
    # Of a start, before a cluster is asked for.
    words = ["runs", "start", "--variant", "disagg-jobset", "--queue", "high-prio"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(UserError, match="--queue high-prio without --scheduler"):
        runs.main()
