"""The command `slurm-launcher`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from slurm_launcher import checks, front, jobs, plan, wait
from slurm_launcher.config import Config
from slurm_launcher.submit import submit
from tandem_common.errors import ExitCode, Problem, UserError, run_main

_EPILOG: Final = """\
examples:
  slurm-launcher example > pools.yaml          a file to begin with
  slurm-launcher validate pools.yaml           all that is wrong, at once
  slurm-launcher plan pools.yaml               nodes, ports, commands, files; nothing is started
  slurm-launcher plan pools.yaml --output json
  slurm-launcher submit pools.yaml
  slurm-launcher status pools.yaml             the newest job, or --job ID
  slurm-launcher drain pools.yaml
  slurm-launcher stop pools.yaml

exit codes: 0 done, 1 a defect, 2 the file or the arguments are wrong,
3 Slurm is not there or refuses, 4 not ready in time
"""
EXAMPLE: Final = """\
version: 1
name: grpo
shared_root: /lustre
log_dir: /lustre/logs
slurm:
  partition: batch
  account: research
  time: "4:00:00"
training:
  nodes: 4
  gpus_per_node: 8
  container: /lustre/images/nemo-rl.sqsh
  command: [python, examples/run_grpo.py, "env.judge.base_url=__JUDGE_URL__"]
components:
  - {name: judges, gpus_per_node: 8}
pools:
  - name: JUDGE
    model: /lustre/models/judge
    container: /lustre/images/vllm.sqsh
    replicas: 2
    spares: 1
    min_ready: 1
    tensor_parallel_size: 8
    port: 9213
    placeholder: __JUDGE_URL__
"""


def _config(given: argparse.Namespace) -> Config:
    """Return the configuration: of the file, or of the variables."""
    if bool(given.config) == given.from_environment:
        raise UserError(
            Problem("a file or --from-environment is needed, not both", "name pools.yaml"),
            ExitCode.USAGE,
        )
    if given.config:
        return checks.read(given.config)
    return checks.load(yaml.safe_dump(front.configuration()))


def _validate(given: argparse.Namespace) -> int:
    config = _config(given)
    made = plan.build(config)
    if given.output == "json":
        print(json.dumps({"ok": True, "components": len(made.components)}))
    else:
        nodes = sum(part.nodes for part in made.components)
        where = given.config or "the variables"
        print(f"{where}: right; {len(made.components)} components, {nodes} nodes")
    return ExitCode.OK


def _plan(given: argparse.Namespace) -> int:
    made = plan.build(_config(given))
    print(json.dumps(made.as_json(), indent=2) if given.output == "json" else plan.text(made))
    return ExitCode.OK


def _submit(given: argparse.Namespace) -> int:
    said = submit(_config(given))
    text = f"job {said['job']} is submitted; its files: {said['folder']}"
    print(json.dumps(said, indent=2) if given.output == "json" else text)
    return ExitCode.OK


def _status(given: argparse.Namespace) -> int:
    config = _config(given)
    said = jobs.status(config, given.job or jobs.newest(config))
    print(json.dumps(said, indent=2) if given.output == "json" else jobs.text(said))
    return ExitCode.OK


def _drain(given: argparse.Namespace) -> int:
    config = _config(given)
    job = given.job or jobs.newest(config)
    jobs.signal(job, "USR1")
    text = f"job {job}: the training is told that time is short; it ends by itself"
    print(json.dumps({"job": job}) if given.output == "json" else text)
    return ExitCode.OK


def _stop(given: argparse.Namespace) -> int:
    config = _config(given)
    job = given.job or jobs.newest(config)
    jobs.cancel(job)
    print(json.dumps({"job": job}) if given.output == "json" else f"job {job} is asked to end")
    return ExitCode.OK


def _wait(given: argparse.Namespace) -> int:
    wait.wait(os.environ, given.timeout)
    return ExitCode.OK


def _example(_: argparse.Namespace) -> int:
    print(EXAMPLE, end="")
    return ExitCode.OK


_COMMANDS: Final[Mapping[str, tuple[Callable[[argparse.Namespace], int], str]]] = {
    "example": (_example, "print a configuration to begin with"),
    "validate": (_validate, "check a configuration; nothing is started"),
    "plan": (_plan, "print all that a submission would be; nothing is started"),
    "submit": (_submit, "submit the job"),
    "status": (_status, "tell how a job does: its pools, replicas and nodes"),
    "wait-ready": (_wait, "in a training that starts at once: wait until all pools are ready"),
    "drain": (_drain, "tell the training that time is short (USR1), as before a time limit"),
    "stop": (_stop, "end a job"),
}


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code.

    Raises:
        UserError: Something that the user can mend.
    """
    if argv[:1] and argv[0] in ("run-in-allocation", "task"):
        # What runs in a job needs more than a person's commands do.
        from slurm_launcher.allocation import program  # noqa: PLC0415

        inside = program.task if argv[0] == "task" else program.run_in_allocation
        return inside(argv[1:])
    parser = argparse.ArgumentParser(
        prog="slurm-launcher", epilog=_EPILOG, allow_abbrev=False,
        description="Training and external vLLM pools as one heterogeneous Slurm job.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in _COMMANDS.items():
        one = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == "wait-ready":
            one.add_argument("--timeout", type=float, default=3600.0, help="seconds")
        if name in ("example", "wait-ready"):
            continue
        one.add_argument("config", type=Path, nargs="?", help="the configuration, pools.yaml")
        one.add_argument(
            "--from-environment", action="store_true",
            help="the variables that scripts/slurm/pool_config.sh sets, instead of a file",
        )  # fmt: skip
        if name in ("status", "drain", "stop"):
            one.add_argument("--job", help="id of the job; the newest that has begun")
        one.add_argument("--output", choices=("text", "json"), default="text")
    given = parser.parse_args(argv)
    return _COMMANDS[given.command][0](given)


def entry() -> None:
    """Run as the program that the package installs."""
    run_main(partial(main, sys.argv[1:]))


if __name__ == "__main__":
    entry()
