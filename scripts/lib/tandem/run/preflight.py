"""What would keep a demo from its end, found before its first long phase.

Tools and images take a quarter of an hour on a bare machine; what is wrong with the
command, the machine or the cluster is known before. Everything is said at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem import cluster, crds
from tandem.bundle.kai import kai_of
from tandem.bundle.layout import Layout
from tandem.errors import ExitCode, Problem, UserError
from tandem.images.engine import detect
from tandem.paths import BIN, KUBECONFIG
from tandem.render import OVERLAYS, require_variant
from tandem.run.kube import CannotTell, asker
from tandem.tools.build import check_disk, require_go
from tandem.tools.catalogue import go_modules
from tandem.yamls import load_all
from tandem_common.kube.resources import JOBS, JOBSETS, RAYJOBS

#: Folder of the components of variants that only the KAI scheduler can place.
GANG_COMPONENT = "gang-kai"


def _problems_of(check: Callable[[], object]) -> list[Problem]:
    try:
        check()
    except UserError as error:
        return error.problems
    return []


def _compiler() -> None:
    """Refuse a machine that cannot compile the tools that are still missing."""
    missing = [m for m in go_modules() if not all((BIN / p.name).is_file() for p in m.programs)]
    if missing:
        require_go()
        check_disk(missing)


def _makers() -> list[Problem]:
    """Return what `make tools` and `make images` lack, and would say only in their turn."""
    return [problem for check in (_compiler, detect) for problem in _problems_of(check)]


def _listed(folder: Path, field: str) -> list[str]:
    """Return the paths that a kustomization lists in a field."""
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    return list(load_all(text)[0].get(field) or [])


def components_of(variant: str) -> list[str]:
    """Return the paths of the components that an overlay lists; needs no tool."""
    folder = "/components/"
    return [path.partition(folder)[2] for path in _listed(OVERLAYS / variant, "components")]


def kinds_of(folder: Path) -> set[str]:
    """Return the kinds of a kustomization's own resources (not components'); needs no tool."""
    kinds: set[str] = set()
    for resource in _listed(folder, "resources"):
        path = folder / resource
        if path.is_dir():
            kinds |= kinds_of(path)
        else:
            kinds |= {str(obj["kind"]) for obj in load_all(path.read_text(encoding="utf-8"))}
    return kinds


def require_followable(variant: str) -> None:
    """Refuse a variant that there is not, or that has no object whose end is the run's.

    Raises:
        UserError: With code 2.
    """
    require_variant(variant)
    kinds = kinds_of(OVERLAYS / variant)
    if not kinds & {RAYJOBS.kind, JOBSETS.kind, JOBS.kind}:
        raise UserError(
            Problem(
                f"variant {variant} holds no RayJob, JobSet or Job: it has no end to follow",
                f"make cluster-up sync, then make deploy VARIANT={variant}",
            ),
            ExitCode.USAGE,
        )


def _gang_without_kai(variant: str) -> list[Problem]:
    """Return why a variant for KAI cannot run on a host cluster that is still to be made."""
    # Of a cluster that is up, the run's own check knows more.
    gang = any(path.partition("/")[0] == GANG_COMPONENT for path in components_of(variant))
    if KUBECONFIG.is_file() or not gang:
        return []
    kai = kai_of(Layout())
    if kai.complete:
        return []
    return [
        Problem(
            f"variant {variant} needs the KAI scheduler, which the bundle cannot install"
            f" ({kai.why})",
            "put KAI's chart and images into .bundle, or take a variant with component"
            " scheduler-default",
        )
    ]


def _not_local(kubeconfig: str) -> list[Problem]:
    """Return why the demo's environment must not be installed on the cluster of KUBECONFIG."""
    try:
        found = asker(kubeconfig)("/api/v1/nodes")
    except CannotTell:
        return []
    return crds.not_local(found["items"]) if found else []


def look(variant: str, provider: str, kubeconfig: str) -> tuple[list[Problem], list[Problem]]:
    """Return what is wrong with the command, and what with machine or cluster.

    Args:
        variant: The variant to run.
        provider: The provider that is asked for; `auto` chooses.
        kubeconfig: The environment's KUBECONFIG, "" when unset.
    """
    usage = _problems_of(lambda: require_followable(variant))
    lacks = _makers()
    try:
        chosen, _ = cluster.chosen_for(provider)
    except UserError as error:
        return [*usage, *error.problems], lacks
    here = cluster.PROVIDERS[chosen].foresee()
    if chosen == "host" and not usage:
        here += _gang_without_kai(variant)
    if chosen == "existing" and not here:
        here += _not_local(kubeconfig)
    return usage, [*here, *lacks]


def check(variant: str, provider: str, kubeconfig: str) -> None:
    """Refuse a demo that cannot come to its end; nothing has been started by then.

    Raises:
        UserError: Every problem; code 2 when the command itself is wrong, else 3.
    """
    usage, lacks = look(variant, provider, kubeconfig)
    if usage or lacks:
        raise UserError([*usage, *lacks], ExitCode.USAGE if usage else ExitCode.PRECONDITION)
