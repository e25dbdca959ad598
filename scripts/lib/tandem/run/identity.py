"""What makes a variant one run among others: its id, in every name and label.

`.runs/<id>/kustomization.yaml` is an overlay like any other: `kubectl apply -k .runs/<id>`
is what `make run` does, and a person without this program can do it too.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endpoint_registry.records import NAME_PREFIX, object_name
from peer_watcher.convert import RUN_ID_LABEL
from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import ROOT
from tandem.render import render_variant
from tandem.run import queueing
from tandem.yamls import dump
from tandem_common.kube.resources import DEPLOYMENTS, JOBSETS, RAYCLUSTERS, RAYJOBS, Resource

RUNS = ROOT / ".runs"
#: The longest value that is made of it is a JobSet's label with its coordinator's DNS name,
#: which holds the JobSet's name twice: `run-<id>-rl-head-0-0.run-<id>`; 63 is the limit.
RUN_ID_LENGTH = 20
_RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RECORD = "run.json"
#: The run's objects in this order, all others after them. Kustomize's own order puts KAI's
#: PodGroup last, and KAI leaves a pod alone whose PodGroup is not there.
ORDER_FIRST = (
    "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Secret", "PodGroup", "Service",
    "Deployment", "PodDisruptionBudget",
)  # fmt: skip
#: Counts workers and names the queue in the PodGroup anew: overlays may have changed both.
_FOLLOW = "gang-kai/rayclusters/follow"
#: No run id holds a dot.
_TO_BE = ".new-"
#: Where labels of pods are, in kinds that kustomize does not know. They are there already: to
#: create them would give a RayCluster without worker groups an empty one.
_POD_LABELS = (
    (RAYCLUSTERS, "spec/headGroupSpec/template/metadata/labels"),
    (RAYCLUSTERS, "spec/workerGroupSpecs/template/metadata/labels"),
    (RAYJOBS, "spec/rayClusterSpec/headGroupSpec/template/metadata/labels"),
    (RAYJOBS, "spec/rayClusterSpec/workerGroupSpecs/template/metadata/labels"),
    (JOBSETS, "spec/replicatedJobs/template/metadata/labels"),
    (JOBSETS, "spec/replicatedJobs/template/spec/template/metadata/labels"),
)
_SERVICES = Resource("", "v1", "services", "Service")
_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
#: Where objects choose pods by labels: without the run's id they would choose other runs' too.
_SELECTORS = (
    (DEPLOYMENTS, "spec/selector/matchLabels"),
    (_SERVICES, "spec/selector"),
    (_BUDGETS, "spec/selector/matchLabels"),
    (_POLICIES, "spec/podSelector/matchLabels"),
    (_POLICIES, "spec/ingress/from/podSelector/matchLabels"),
)


def require_run_id(run_id: str) -> None:
    """Refuse a run id that cannot be part of every name.

    Raises:
        UserError: It is no DNS label, or too long.
    """
    problems = []
    if not _RUN_ID.fullmatch(run_id):
        problems.append(
            Problem(
                f"run id {run_id!r} is no DNS label",
                "use a-z, 0-9 and - (not at its ends), such as RUN_ID=ppo-7",
            )
        )
    if len(run_id) > RUN_ID_LENGTH:
        problems.append(
            Problem(
                f"run id {run_id!r} has {len(run_id)} characters, more than {RUN_ID_LENGTH}",
                f"use at most {RUN_ID_LENGTH}: names of pods and Services are made of it",
            )
        )
    if problems:
        raise UserError(problems, ExitCode.USAGE)


def new_run_id(prefix: str = "") -> str:
    """Return a run id of this moment, such as `1202-141503`."""
    return prefix + time.strftime("%m%d-%H%M%S")


def _registry_patches(objects: Iterable[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    """Return the patches that put the run's registry into its Roles."""
    found = []
    for role in (obj for obj in objects if obj["kind"] == "Role"):
        places = [
            f"/rules/{r}/resourceNames/{n}"
            for r, rule in enumerate(role["rules"])
            for n, name in enumerate(rule.get("resourceNames") or [])
            if name.startswith(NAME_PREFIX)
        ]
        if places:
            value = object_name(run_id)
            found.append({
                "target": {"kind": "Role", "name": role["metadata"]["name"]},
                "patch": dump([{"op": "replace", "path": p, "value": value} for p in places]),
            })  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class Placing:
    """Who places a run, where that is not what its variant says.

    Attributes:
        scheduler: One of `queueing.SCHEDULERS`; "" leaves the variant's.
        queue: The queue there; "" leaves the component's.
    """

    scheduler: str = ""
    queue: str = ""


AS_THE_VARIANT_SAYS = Placing()


def placing_of(scheduler: str, queue: str) -> Placing:
    """Return who is to place a run, as a command line has it.

    Raises:
        UserError: A queue without a scheduler: whose it is would not be known.
    """
    if queue and not scheduler:
        raise UserError(
            Problem(
                f"--queue {queue} without --scheduler: a variant's queue is in its overlay",
                "SCHEDULER=kueue QUEUE=…, or a patch in the overlay",
            ),
            ExitCode.USAGE,
        )
    return Placing(scheduler, queue)


def overlay(
    variant: str,
    run_id: str,
    objects: Iterable[dict[str, Any]],
    placing: Placing = AS_THE_VARIANT_SAYS,
) -> dict[str, Any]:
    """Return the kustomization that makes a run of a variant.

    Args:
        variant: Folder of kustomize/overlays.
        run_id: The run's id.
        objects: What the variant renders to.
        placing: Who places it.

    Raises:
        UserError: The variant cannot be placed so.
    """
    listed = list(objects)
    components = ["name-references"]
    if any(obj["kind"] == "PodGroup" for obj in listed):
        components.append(_FOLLOW)
    grouped = queueing.has_group(listed)
    if placing.scheduler == queueing.KUEUE:
        component = queueing.component_of(listed, variant)
        components.append(component)
        grouped = component.endswith("/rayclusters")
    queued = queueing.patches_of(listed, group=run_id if grouped else "", queue=placing.queue)
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../../kustomize/overlays/{variant}"],
        "components": [f"../../kustomize/components/{each}" for each in components],
        "nameSuffix": f"-{run_id}",
        "labels": [
            {
                "pairs": {RUN_ID_LABEL: run_id},
                "includeTemplates": True,
                "fields": [
                    {"group": each.group, "kind": each.kind, "path": path}
                    for each, path in (*_POD_LABELS, *_SELECTORS)
                ],
            }
        ],
        "patches": [*_registry_patches(listed, run_id), *queued],
        "sortOptions": {
            "order": "legacy",
            "legacySortOptions": {"orderFirst": list(ORDER_FIRST), "orderLast": []},
        },
    }


def write_overlay(variant: str, run_id: str, placing: Placing = AS_THE_VARIANT_SAYS) -> Path:
    """Write the overlay of a run that is to be and return its folder.

    It becomes the run's with `keep_overlay`: a start that is refused leaves the folder of
    the run that goes on under this id as it is.

    Raises:
        UserError: The id or the variant is wrong, or it cannot be placed so.
    """
    require_run_id(run_id)
    objects = render_variant(variant)
    content = overlay(variant, run_id, objects, placing)
    RUNS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{run_id}{_TO_BE}", dir=RUNS))
    folder.chmod(0o755)
    head = f"# Run {run_id} of variant {variant}, written by `make run`.\n"
    text = head + dump(content)
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
    record = json.dumps({"variant": variant, "run_id": run_id}, indent=2)
    (folder / _RECORD).write_text(record + "\n", encoding="utf-8")
    return folder


def keep_overlay(folder: Path, run_id: str) -> Path:
    """Make the overlay that was written the run's, in place of a former one."""
    forget(run_id)
    return folder.rename(RUNS / run_id)


def drop_overlay(folder: Path) -> None:
    """Remove the overlay of a run that was refused."""
    shutil.rmtree(folder, ignore_errors=True)


def variant_of(run_id: str) -> str:
    """Return the variant that a run of this checkout was made of, "" when it is not known."""
    try:
        loaded = json.loads((RUNS / run_id / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(loaded.get("variant", ""))


def forget(run_id: str) -> None:
    """Remove the run's folder."""
    shutil.rmtree(RUNS / run_id, ignore_errors=True)
