"""`make rehearsal`: many large runs on simulated nodes, and what that costs the control plane.

The runs are rendered as `make run` renders them (a variant, a run's own id), with component
`kwok`, more workers and more GPUs for each. Everything between them and the simulated kubelets
is real: API server, etcd, scheduler, Job controller, JobSet, and Kueue where it is to let the runs
in. All of it is removed at the end.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from kubernetes import client

from peer_watcher.convert import RUN_ID_LABEL
from tandem import platform, rehearsal_kueue
from tandem.cli import Parser, whole_number
from tandem.cluster import MOST_NODES, profile_name
from tandem.console import console
from tandem.errors import ExitCode, Problem, UserError, run_main
from tandem.explain.pods import pod_sets
from tandem.figures import Figure, report
from tandem.paths import KUBECONFIG
from tandem.process import stream
from tandem.render import kustomize, render_variant
from tandem.run.identity import drop_overlay, placing_of, write_overlay
from tandem.run.kube import api_client, kubectl, require_cluster
from tandem.run.queueing import KUEUE
from tandem.run.remove import remove_all
from tandem.run.watches import Seen, WatchInto
from tandem.yamls import dump, dump_all, load_all
from tandem_host import kwok, settings, status
from tandem_host.probes import Api, ApiError

Object = dict[str, Any]

NAMESPACE = "tandem"
WORKERS = "rl-workers"
PREFIX = "scale"
_MOST_RUNS = 99
#: Far beyond what two cores need for 1,280 pods: only a hang uses it up.
_RUNNING_SECONDS = 900.0
_PROGRESS_SECONDS = 10.0
_REQUESTS = re.compile(r"(?m)^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$")
_COMPONENTS = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "kwok")
#: Controllers on the real node, and how their pods are called.
_PODS = {"the JobSet controller": "jobset-controller-", "Kueue": "kueue-controller-manager-"}
#: Kubernetes' own: what the variants for simulated nodes have.
DEFAULT = "default"
_KAI = "kai"
SCHEDULERS = (DEFAULT, KUEUE, _KAI)

_EPILOG = """\
examples:
  python -m tandem.rehearsal                                  20 runs of 64 pods, 1,000 nodes
  python -m tandem.rehearsal --nodes 30 --runs 1 --pods 16
  python -m tandem.rehearsal --profile gb300-nvl72 --output json
  python -m tandem.rehearsal --scheduler kueue                each run let in whole, by Kueue

Uses this checkout's host cluster, or makes one and takes it down again. Not with runs on it.

exit codes: 0 ok, 1 the pods did not all run, 2 usage, 3 a precondition is not met
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is rehearsed.

    Attributes:
        variant: Folder of kustomize/overlays; has to make a JobSet with `rl-workers`.
        runs: How many runs.
        pods: Pods of each run, all of them.
        workers: Those of the pods that hold GPUs.
        gpus: GPUs of each worker.
        nodes: Simulated nodes.
        profile: What they are like.
        scheduler: Who lets the runs in: `default` (each pod by itself) or `kueue` (whole runs).
    """

    variant: str
    runs: int
    pods: int
    workers: int
    gpus: int
    nodes: int
    profile: str
    scheduler: str = DEFAULT

    @property
    def run_ids(self) -> list[str]:
        """The runs' ids."""
        return [f"{PREFIX}-{number:02}" for number in range(1, self.runs + 1)]


def gpus_that_fit(node_gpus: int, nodes: int, workers: int) -> int:
    """Return the most GPUs that each of so many workers can have; 0 when not even one.

    A divisor of a node's, so that no node is left with a rest that nobody can use.
    """
    for each in range(node_gpus, 0, -1):
        if node_gpus % each == 0 and node_gpus // each * nodes >= workers:
            return each
    return 0


def others_of(objects: Iterable[Object]) -> int:
    """Return how many pods a rendered run has beside its workers.

    Raises:
        UserError: It has no workers that could be made more.
    """
    listed = list(objects)
    found = [pods for obj in listed for pods in pod_sets(obj)]
    if not any(obj["kind"] == "JobSet" and _has_workers(obj) for obj in listed):
        raise UserError(
            Problem(f"the variant has no JobSet with a group {WORKERS}",
                    "VARIANT=disagg-jobset, or another one with a JobSet"),
            ExitCode.USAGE,
        )  # fmt: skip
    return sum(pods.count for pods in found if pods.role != WORKERS)


def _has_workers(jobset: Object) -> bool:
    return any(job["name"] == WORKERS for job in jobset["spec"]["replicatedJobs"])


def scaled(made: Object, objects: Iterable[Object], plan: Plan) -> Object:
    """Return a run's overlay with the plan's workers and GPUs, on simulated nodes. Pure.

    Args:
        made: The overlay as `make run` has it.
        objects: What the variant renders to.
        plan: How many workers, with how many GPUs.
    """
    [jobset] = [obj for obj in objects if obj["kind"] == "JobSet"]
    groups = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    [first, *_] = groups[WORKERS]["template"]["spec"]["template"]["spec"]["containers"]
    gpus = {"nvidia.com/gpu": plan.gpus}
    container = {"name": first["name"], "resources": {"requests": gpus, "limits": gpus}}
    # By names: the components of a scheduler put the groups into another order.
    patch = {
        "apiVersion": jobset["apiVersion"],
        "kind": "JobSet",
        "metadata": {"name": jobset["metadata"]["name"]},
        "spec": {
            "replicatedJobs": [
                {
                    "name": WORKERS,
                    "template": {
                        "spec": {
                            "parallelism": plan.workers,
                            "completions": plan.workers,
                            "template": {"spec": {"containers": [container]}},
                        }
                    },
                }
            ]
        },
    }
    components = [f"../../kustomize/components/{each}" for each in ("crd-schema", "kwok")]
    return {
        **made,
        "components": [*made["components"], *components],
        "patches": [*made["patches"], {"target": {"kind": "JobSet"}, "patch": dump(patch)}],
    }


def requests_of(metrics: str) -> dict[str, float]:
    """Return how many requests the API server has answered, by resource ("" for others)."""
    found: dict[str, float] = {}
    for match in _REQUESTS.finditer(metrics):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        resource = labels.get("resource", "")
        found[resource] = found.get(resource, 0.0) + float(match["value"])
    return found


def spread_of(pods: Iterable[Object]) -> tuple[float, float]:
    """Return the seconds from the first pod's creation to the last one bound, and Ready."""
    made, bound, ready = [], [], []
    for pod in pods:
        times = {c["type"]: c["lastTransitionTime"] for c in pod["status"]["conditions"]}
        made.append(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]))
        bound.append(datetime.fromisoformat(times["PodScheduled"]))
        ready.append(datetime.fromisoformat(times["Ready"]))
    first = min(made)
    return (max(bound) - first).total_seconds(), (max(ready) - first).total_seconds()


def faults_of(pods: Iterable[Object], plan: Plan) -> list[Problem]:
    """Return why the pods are not those that were planned, all running on simulated nodes."""
    listed = list(pods)
    problems = []
    wanted = plan.runs * plan.pods
    if len(listed) != wanted:
        problems.append(Problem(f"there are {len(listed)} pods instead of {wanted}", "see above"))
    for pod in listed:
        phase, node = pod["status"].get("phase"), pod["spec"].get("nodeName", "")
        if phase != "Running" or not node.startswith(f"{plan.profile}-"):
            name = pod["metadata"]["name"]
            problems.append(Problem(f"pod {name} is {phase} on node {node!r}", "see its Events"))
    return problems[:5]


def render_runs(plan: Plan) -> dict[str, str]:
    """Return the manifests of each run, by its id."""
    objects = render_variant(plan.variant)

    def render(run_id: str) -> str:
        with run_folder(plan, run_id, objects) as folder:
            return dump_all(kustomize(folder))

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(render, plan.run_ids))
    return dict(zip(plan.run_ids, texts, strict=True))


@contextmanager
def run_folder(plan: Plan, run_id: str, objects: Sequence[Object]) -> Iterator[Path]:
    """Have a folder with a run's kustomization for as long as it is looked at.

    Args:
        plan: What the run is like.
        run_id: Its id.
        objects: What the plan's variant renders to.
    """
    placing = placing_of("" if plan.scheduler == DEFAULT else plan.scheduler, "")
    folder = write_overlay(plan.variant, run_id, placing)
    try:
        file = folder / "kustomization.yaml"
        [made] = load_all(file.read_text(encoding="utf-8"))
        file.write_text(dump(scaled(made, objects, plan)), encoding="utf-8")
        yield folder
    finally:
        drop_overlay(folder)


def plan_of(
    variant: str, runs: int, pods: int, nodes: int, profile: str, *, scheduler: str = DEFAULT
) -> Plan:
    """Return the plan for so many runs of so many pods.

    Raises:
        UserError: The variant is of another shape, it would never fit, or KAI is asked for.
    """
    if scheduler == _KAI:
        raise UserError(
            Problem("--scheduler kai: the local platform has no KAI unless the bundle brings it,"
                    " and then no variant of its kind for simulated nodes",
                    "--scheduler kueue lets whole runs in; make check-kai looks at gangs of a real"
                    " KAI, on 36 simulated nodes"),
            ExitCode.USAGE,
        )  # fmt: skip
    others = others_of(render_variant(variant))
    workers = pods - others
    if workers < 1:
        raise UserError(
            Problem(f"a run of {variant} has {others} pods beside its workers: {pods} are too few",
                    f"PODS={others + 1} or more"),
            ExitCode.USAGE,
        )  # fmt: skip
    kind = kwok.profile(profile)
    gpus = gpus_that_fit(kind.gpus, nodes, runs * workers)
    if not gpus:
        raise UserError(
            Problem(
                f"{runs} x {workers} workers need a GPU each, {nodes} nodes of {profile} have"
                f" {nodes * kind.gpus}",
                f"KWOK_NODES={-(-runs * workers // kind.gpus)} or more, or fewer runs",
            ),
            ExitCode.USAGE,
        )
    return Plan(variant, runs, pods, workers, gpus, nodes, profile, scheduler)


def _await_running(plan: Plan) -> None:
    """Watch the Jobs until all their pods are ready; tell how far it is every now and then."""
    batch = client.BatchV1Api(api_client())
    seen: Queue[Seen] = Queue()
    watch = WatchInto(
        "Job", seen, batch.list_namespaced_job, namespace=NAMESPACE,
        label_selector=f"{RUN_ID_LABEL} in ({','.join(plan.run_ids)})",
    )  # fmt: skip
    watch.start()
    wanted, ready = plan.runs * plan.pods, 0
    counts: dict[str, int] = {}
    deadline = time.monotonic() + _RUNNING_SECONDS
    told = time.monotonic()
    try:
        while ready < wanted:
            if time.monotonic() > deadline:
                raise UserError(
                    Problem(f"{ready} of {wanted} pods run after {_RUNNING_SECONDS:.0f} s",
                            "kubectl get events -n tandem, .cluster/host/logs"),
                    ExitCode.FAILURE,
                )  # fmt: skip
            with suppress(Empty):
                job = seen.get(timeout=1.0).obj
                counts[job["metadata"]["name"]] = int((job.get("status") or {}).get("ready") or 0)
                ready = sum(counts.values())
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                console.note(f"{ready} of {wanted} pods run")
    finally:
        watch.stop()


def _pods(plan: Plan) -> list[Object]:
    selector = f"{RUN_ID_LABEL} in ({','.join(plan.run_ids)})"
    said = kubectl("get", "pods", "-n", NAMESPACE, f"--selector={selector}", "-o", "json",
                   timeout=120)  # fmt: skip
    found: list[Object] = json.loads(said)["items"]
    return found


def _controllers_mib(api: Api) -> dict[str, float]:
    """Return what the controllers hold in RAM, as their kubelet counts; without those unknown."""
    found: dict[str, float] = {}
    with suppress(OSError, ApiError, KeyError, ValueError, TypeError):
        summary = api.call("GET", "/api/v1/nodes/local/proxy/stats/summary")
        for pod in summary["pods"]:
            for name, prefix in _PODS.items():
                if pod["podRef"]["name"].startswith(prefix):
                    sizes = (int(each["memory"]["rssBytes"]) for each in pod["containers"])
                    found[name] = found.get(name, 0.0) + sum(sizes) / 2**20
    return found


def _memory(api: Api, when: str) -> list[Figure]:
    found = status.look(settings.current(), "")
    sizes = {component.name: component.rss_mib for component in found.components}
    figures = [
        Figure(f"memory of {name}, {when}", float(sizes[name]), unit="MiB")
        for name in _COMPONENTS
        if name in sizes
    ]
    pods = _controllers_mib(api)
    return figures + [
        Figure(f"memory of {name}, {when}", size, unit="MiB") for name, size in pods.items()
    ]


@contextmanager
def _nodes(plan: Plan, *, was_up: bool) -> Iterator[float]:
    """Have the simulated nodes, and afterwards what was there before; yield the seconds."""
    before = settings.current() if was_up else settings.default()
    try:
        if not was_up:
            stream("tandem.cluster", "up", "--provider", "host", "--kwok-nodes", "0")
        started = time.monotonic()
        stream("tandem.cluster", "up", "--provider", "host", "--kwok-nodes", str(plan.nodes),
               "--kwok-profile", plan.profile)  # fmt: skip
        yield time.monotonic() - started
    finally:
        if was_up:
            stream("tandem.cluster", "up", "--provider", "host", "--kwok-nodes",
                   str(before.kwok_nodes), "--kwok-profile", before.kwok_profile)  # fmt: skip
        else:
            stream("tandem.cluster", "down", "--provider", "host")


@contextmanager
def _platform(plan: Plan, *, was_up: bool) -> Iterator[None]:
    """Have the platform with whom the plan asks for, and afterwards what was there before.

    A cluster that goes down anyhow takes the platform along.
    """
    shared_out = platform.kueue_gpus()
    gpus = plan.nodes * kwok.profile(plan.profile).gpus
    try:
        with console.phase(f"the platform, scheduler {plan.scheduler}"):
            if plan.scheduler == KUEUE:
                platform.sync(KUEUE, values={"kueue.gpus": gpus})
            else:
                platform.sync("default")
        yield
    finally:
        if was_up and shared_out is not None:
            with console.phase("the platform as it was, with Kueue"):
                platform.sync(KUEUE, values={"kueue.gpus": shared_out})
        elif was_up and plan.scheduler == KUEUE:
            with console.phase("remove Kueue"):
                platform.remove_kueue()


def _require_free() -> None:
    said = kubectl("get", "pods", "-n", NAMESPACE, f"--selector={RUN_ID_LABEL}", "-o", "name",
                   "--ignore-not-found")  # fmt: skip
    if said.strip():
        raise UserError(
            Problem(f"{len(said.split())} pods of runs are on the cluster: figures would be theirs"
                    " too", "wait for them, or make stop RUN_ID=… and make clean")
        )  # fmt: skip


def group_size(objects: Iterable[Object]) -> int:
    """Return how many pods of a rendered run its JobSet has: Kueue lets in these, no watchers."""
    return sum(pods.count for obj in objects if obj["kind"] == "JobSet" for pods in pod_sets(obj))


def _admission(plan: Plan, size: int, applied: float) -> list[Figure]:
    """Return what Kueue tells of the runs.

    Args:
        plan: What the runs are like.
        size: Pods of each that Kueue lets in.
        applied: When the first one was applied, as `time.time` counts.

    Raises:
        UserError: They are not one group each, or are not said to be let in.
    """
    said = kubectl("get", rehearsal_kueue.WORKLOADS, "-n", NAMESPACE, "-o", "json", timeout=120)
    workloads = json.loads(said)["items"]
    if faults := rehearsal_kueue.faults_of(workloads, plan.run_ids, size):
        raise UserError(faults, ExitCode.FAILURE)
    admissions = rehearsal_kueue.admissions_of(workloads, plan.run_ids)
    return rehearsal_kueue.figures_of(admissions, applied)


def _measure(plan: Plan, texts: Mapping[str, str], figures: list[Figure]) -> None:
    """Apply every run, wait until all pods run, look, and remove them.

    What is measured is there before the removal begins, which may fail on a busy machine.
    """
    api = Api(settings.current(), timeout=60.0)
    before = requests_of(str(api.call("GET", "/metrics", accept="text/plain")))
    started, at = time.monotonic(), time.time()
    try:
        with console.phase(f"apply {plan.runs} runs") as phase:
            for text in texts.values():
                kubectl("apply", "-f", "-", stdin=text, timeout=120)
            applied = phase.seconds
        with console.phase(f"{plan.runs * plan.pods} pods run"):
            _await_running(plan)
        running = time.monotonic() - started
        after = requests_of(str(api.call("GET", "/metrics", accept="text/plain")))
        memory = _memory(api, "all running")
        pods = _pods(plan)
        if faults := faults_of(pods, plan):
            raise UserError(faults, ExitCode.FAILURE)
        bound, ready = spread_of(pods)
        admission: list[Figure] = []
        if plan.scheduler == KUEUE:
            size = group_size(load_all(texts[plan.run_ids[0]]))
            admission = _admission(plan, size, at)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        figures += [
            Figure("all runs applied", applied),
            *admission,
            Figure("first apply to the last pod Running", running),
            Figure("first pod made to the last bound (whole seconds)", bound),
            Figure("first pod made to the last Ready (whole seconds)", ready),
            Figure("requests to the API server meanwhile", sum(grown.values()), unit=""),
            Figure("of these about pods", grown.get("pods", 0.0), unit=""),
            Figure("of these leases, nearly all of nodes", grown.get("leases", 0.0), unit=""),
            *memory,
        ]
    finally:
        with console.phase(f"remove {plan.runs} runs") as phase, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda run_id: remove_all(NAMESPACE, run_id), plan.run_ids))
            removed = phase.seconds
    figures.append(Figure("all runs removed", removed))


def rehearse(plan: Plan, figures: list[Figure] | None = None) -> list[Figure]:
    """Rehearse, clean up, and return the figures.

    Args:
        plan: What is rehearsed.
        figures: Gets each figure as soon as it is measured: some are there when the rest fails.

    Raises:
        UserError: A precondition is not met, or the pods did not all run.
    """
    figures = [] if figures is None else figures
    os.environ["KUBECONFIG"] = str(KUBECONFIG)
    with console.phase(f"render {plan.runs} runs") as phase:
        texts = render_runs(plan)
        rendered = phase.seconds
    was_up = status.look(settings.current(), "").running
    with _nodes(plan, was_up=was_up) as seconds:
        require_cluster()
        _require_free()
        with _platform(plan, was_up=was_up):
            figures += [
                Figure(f"{plan.runs} runs rendered", rendered),
                Figure(f"{plan.nodes} simulated nodes made and Ready", seconds),
                *_memory(Api(settings.current(), timeout=60.0), "before"),
            ]
            _measure(plan, texts, figures)
    return figures


def main() -> int:
    """Rehearse and print."""
    parser = Parser("tandem.rehearsal", "Rehearse many large runs on simulated nodes.", _EPILOG)
    parser.add_argument("--variant", default="disagg-jobset", help="default: disagg-jobset")
    parser.add_argument("--runs", type=whole_number(1, _MOST_RUNS, example=20), default=20)
    parser.add_argument("--pods", type=whole_number(1, 1000, example=64), default=64,
                        help="of each run (default: 64)")  # fmt: skip
    parser.add_argument("--nodes", type=whole_number(1, MOST_NODES, example=1000), default=1000)
    parser.add_argument("--profile", type=profile_name, default=settings.DEFAULT_PROFILE)
    parser.add_argument("--scheduler", choices=SCHEDULERS, default=DEFAULT,
                        help="who lets runs in: default (Kubernetes' own, pod by pod) or kueue"
                        " (whole runs)")  # fmt: skip
    parser.add_argument("--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    plan = plan_of(args.variant, args.runs, args.pods, args.nodes, args.profile,
                   scheduler=args.scheduler)  # fmt: skip
    console.note(
        f"{plan.runs} runs of {plan.variant}, {plan.pods} pods each, {plan.workers} of them with"
        f" {plan.gpus} GPUs (as many as {plan.nodes} nodes of {plan.profile} have room for)"
    )
    figures: list[Figure] = []
    try:
        rehearse(plan, figures)
    finally:
        if figures:
            report(figures, args.output)
    return ExitCode.OK


if __name__ == "__main__":
    run_main(main)
