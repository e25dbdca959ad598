"""End a run that can no longer succeed, so that it holds neither its name nor its GPUs."""

from __future__ import annotations

from http import HTTPStatus

import urllib3
from kubernetes import client, config

from tandem.console import console
from tandem.run.kube import CALL_TIMEOUT_SECONDS, kubeconfig
from tandem.run.shapes import Run
from tandem.run.verdict import Verdict


def end_lingering(run: Run, verdict: Verdict) -> bool:
    """Delete the run's top object if the verdict is ours alone, and say so; else leave it be.

    What its operator itself has ended goes by its own time to live. The deletion names
    the run's uid: a newer run of the same name is never hit. Call it after everything that
    tells about the run has been collected.
    """
    if not verdict.lingers:
        return False
    config.load_kube_config(str(kubeconfig()))
    try:
        client.CustomObjectsApi().delete_namespaced_custom_object(
            run.top.group, run.top.version, run.namespace, run.top.plural, run.name,
            body=client.V1DeleteOptions(
                preconditions=client.V1Preconditions(uid=run.uid),
                propagation_policy="Background",
            ),
            _request_timeout=CALL_TIMEOUT_SECONDS,
        )  # fmt: skip
    except client.ApiException as error:
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            return False
        why = f"{error.status} {error.reason}"
    except (urllib3.exceptions.HTTPError, OSError) as error:
        why = str(error)
    else:
        console.note(f"ended run {run.name}: it could no longer succeed ({verdict.reason})")
        return True
    console.warn(
        f"run {run.name} goes on and could not be ended ({why}):"
        f" kubectl delete {run.top.group_resource} {run.name} -n {run.namespace}"
    )
    return False
