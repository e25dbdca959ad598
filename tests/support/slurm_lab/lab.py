"""A real Slurm on one machine: slurmctld, munged, and N nodes in namespaces of their own.

The controller has net, uts, ipc, pid and mount namespaces; each node has such of its own inside
them: its own address, host name, process table, /tmp and /dev/shm, and a slurmd. Everything else
of the file system is the machine's, the same for all: the lab's folder, and what is in it, is
the shared file system. When the controller's pid 1 ends, the kernel ends all that was started in
there: processes, networks, mounts. Its folder and its freezer cgroups remain, and `down` removes
the cgroups.

What it is not: nodes have the machine's few processors and its memory whatever they say, there
are no GPUs (device files that are /dev/null), everybody is root, and no accounting.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from support.slurm_lab import inside, leftovers
from support.slurm_lab.jobs import Job, parse_jobs
from support.slurm_lab.namespaces import (
    Process,
    Program,
    command_of,
    entered,
    first_of,
    in_namespace,
    start,
    until,
)
from support.slurm_lab.settings import (
    MAX_FOLDER,
    NETWORK,
    Proctrack,
    Settings,
    name,
    texts,
)
from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import ROOT

Result = subprocess.CompletedProcess[str]

_FREEZER = Path("/sys/fs/cgroup/freezer")
#: How the links of its network are called, and its cgroups.
_LINK = "slurmlab"
_PLUGIN = Path(__file__).with_name("fake_pyxis.c")
_PROGRAMS = (
    "slurmctld", "slurmd", "munged", "srun", "sbatch", "salloc", "scancel", "scontrol", "sinfo",
    "gcc", "ip", "nsenter", "setpriv", "unshare",
)  # fmt: skip
_SPANK = Path("/usr/include/slurm/spank.h")
#: Two slow cores that others use too.
_PATIENCE = 60.0


def best_proctrack() -> Proctrack:
    """Return how Slurm can track processes here: by cgroup v1's freezer, if there is one."""
    usable = _FREEZER.is_mount() and os.access(_FREEZER, os.W_OK)
    return "cgroup" if usable else "linuxproc"


@dataclass
class Lab:
    """One lab, in a folder of its own."""

    folder: Path
    settings: Settings = field(default_factory=Settings)
    #: The lab outlives the program that brings it up.
    lasting: bool = False
    _outer: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        """Let the folder have one name only."""
        self.folder = self.folder.resolve()

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the lab that another program has brought up in a folder.

        Raises:
            UserError: There is none.
        """
        try:
            spec = json.loads((folder.resolve() / "lab.json").read_text())
        except OSError as error:
            raise UserError(
                Problem(f"there is no lab in {folder}: {error.strerror}", "bring one up")
            ) from error
        return cls(folder, Settings(**spec["settings"]), lasting=True)

    # Up and down

    def up(self, seconds: float = _PATIENCE) -> Self:
        """Bring it up; all nodes are idle then.

        Raises:
            UserError: Something that it needs is missing, with all that is.
            TimeoutError: It did not come up in time; the logs' ends are in the message.
        """
        if problems := self._problems():
            raise UserError(problems)
        self._prepare()
        log = self.folder / "log" / "controller.out"
        words = [
            "unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
            "--mount-proc", *self._inside("controller"),
        ]  # fmt: skip
        if not self.lasting:
            words = ["setpriv", "--pdeathsig=KILL", *words]
        # A session of its own: a Ctrl-C is for who asked for the lab.
        self._outer = start(["setsid", *words], env=_environment(), log=log)
        (self.folder / "run" / "lab.pid").write_text(str(self._outer.pid))
        try:
            until(self._booted, "its processes run", seconds)
            until(self.is_idle, lambda: f"all nodes are idle: {self.states()}", seconds)
        except (TimeoutError, RuntimeError) as error:
            story = self.logs()
            self.down()
            raise TimeoutError(
                f"the lab in {self.folder} did not come up: {error}\n{story}"
            ) from error
        return self

    def down(self, seconds: float = 20.0) -> None:
        """End everything by one signal, and remove the cgroups; a lab that is down stays so.

        Raises:
            TimeoutError: Something of it is still there.
        """
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
        if self._outer is not None:
            self._outer.wait(seconds)
            self._outer = None
        until(
            lambda: not leftovers.processes(self.folder),
            lambda: f"all have ended: {leftovers.processes(self.folder)}",
            seconds,
        )
        until(lambda: leftovers.remove_cgroups(self._cgroup), "the cgroups are removed", seconds)

    def __enter__(self) -> Self:
        """Bring it up."""
        return self.up()

    def __exit__(self, *_: object) -> None:
        """Take it down."""
        self.down()

    @property
    def pid(self) -> int:
        """The process whose end is the end of all; 0 when it is down."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / "run" / "lab.pid").read_text())
            # The number may have been given to another.
            if str(self.folder) in command_of(pid):
                return pid
        return 0

    def leftovers(self) -> list[str]:
        """Return what there is of it on this machine, its folder apart; nothing when it is down."""
        return leftovers.find(self.folder, cgroup=self._cgroup, links=_LINK)

    # Programs inside

    def exec(
        self,
        argv: Sequence[str | Path],
        *,
        seconds: float = _PATIENCE,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Result:
        """Run a program on the controller's host, where sbatch and srun are.

        Args:
            argv: The program and its arguments.
            seconds: After these it is killed.
            check: Whether it has to end with 0.
            env: Variables beside our own.
            cwd: Where; the shared folder by itself.

        Raises:
            AssertionError: It ended with another code, and `check`.
            TimeoutError: It did not end in time.
        """
        return self._run(None, argv, seconds, env, cwd, check=check)

    def node(
        self,
        node: int,
        argv: Sequence[str | Path],
        *,
        seconds: float = _PATIENCE,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Result:
        """Run a program on a node, as `exec` does; no job of Slurm's knows of it."""
        return self._run(node, argv, seconds, env, cwd, check=check)

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        node: int | None = None,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Program:
        """Start a program in the background, on the controller's host or on a node."""
        words, variables = self.command(argv, node=node, env=env, cwd=cwd)
        return Program(start(words, env=variables, log=log))

    def command(
        self,
        argv: Sequence[str | Path],
        *,
        node: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Return what to start out here, and with which environment, to run a program in there."""
        pid = self._first("ctl" if node is None else name(node))
        return entered(pid, argv, cwd=cwd or self.shared), self._variables(env)

    @property
    def shared(self) -> Path:
        """A folder for what jobs read and write."""
        return self.folder / "shared"

    # Jobs

    def submit(self, script: str, *components: Sequence[str]) -> int:
        """Submit a batch script; its output is in `shared`, as `slurm-JOB.out`.

        Args:
            script: The text of it.
            components: sbatch's options for each; more than one make a heterogeneous job.
        """
        path = self.shared / f"batch-{time.monotonic_ns()}.sh"
        path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        done = self.exec(["sbatch", "--parsable", *_joined(components), path])
        return int(done.stdout.partition(";")[0])

    def allocate(self, *components: Sequence[str]) -> int:
        """Take nodes without a batch script, and return the job's number."""
        done = self.exec(["salloc", "--no-shell", *_joined(components)])
        [number] = set(re.findall(r"Granted job allocation (\d+)", done.stderr))
        return int(number)

    def output(self, job: int) -> str:
        """Return what a batch script has printed so far."""
        path = self.shared / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def components(self, job: int) -> list[Job]:
        """Return the components of a job as Slurm shows them; one for a plain job."""
        return parse_jobs(self.exec(["scontrol", "show", "job", str(job)]).stdout)

    def job(self, job: int) -> Job:
        """Return a job, or the component of that number."""
        return next(each for each in self.components(job) if each.id == job)

    def wait(
        self, job: int, holds: Callable[[Job], bool], what: str, seconds: float = _PATIENCE
    ) -> Job:
        """Wait until something holds for a job, and return it.

        Raises:
            TimeoutError: It does not within that time.
        """
        until(
            lambda: holds(self.job(job)),
            lambda: f"job {job} {what}: {dict(self.job(job).fields)}\n{self.output(job)}",
            seconds,
        )
        return self.job(job)

    def wait_running(self, job: int) -> Job:
        """Wait until a job runs."""
        return self.wait(job, lambda seen: seen.state == "RUNNING", "runs")

    def wait_ended(self, job: int, seconds: float = _PATIENCE) -> Job:
        """Wait until a job has ended, whichever way."""
        return self.wait(job, lambda seen: seen.ended, "has ended", seconds)

    def steps(self) -> list[str]:
        """Return the running steps, as `JOB.STEP`, without the batch and extern ones."""
        said = self.exec(["squeue", "--steps", "--noheader", "--format=%i"]).stdout.split()
        return [step for step in said if step.rpartition(".")[2].isdigit()]

    # Nodes

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as `idle`, `alloc`, `down*`."""
        said = self.exec(["sinfo", "--noheader", "--Node", "--format=%N %t"], check=False)
        return dict(line.split(maxsplit=1) for line in said.stdout.splitlines())

    def is_idle(self) -> bool:
        """Whether no job is there, and all nodes wait for one."""
        jobs = self.exec(["squeue", "--noheader"], check=False)
        states = self.states()
        return (
            jobs.returncode == 0
            and not jobs.stdout.strip()
            and len(states) == self.settings.nodes
            and set(states.values()) == {"idle"}
        )

    def wait_idle(self, seconds: float = _PATIENCE) -> None:
        """Wait for it; a heterogeneous job that meets a node that is completing is held back."""
        until(self.is_idle, lambda: f"idle: {self._squeue()} {self.states()}", seconds)

    def processes_of(self, node: int) -> list[Process]:
        """Return what runs on a node: steps and their tasks, and what was left by them."""
        found = in_namespace(self._namespace(name(node)))
        return [
            process for process in found if process.inner != 1 and not _of_slurmd(process.command)
        ]

    def crash(self, node: int) -> None:
        """Let a node end at once, with all that runs on it and without a word to anybody."""
        namespace = self._namespace(name(node))
        if pid := first_of(namespace):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not in_namespace(namespace), f"node {node} is dead", _PATIENCE)
        (self.folder / "run" / f"{name(node)}.ns").unlink(missing_ok=True)

    def revive(self, node: int) -> None:
        """Boot a node that has crashed; Slurm sees it a little later."""
        self.exec(self._inside("boot", node))

    def crashed(self, node: int) -> bool:
        """Whether a node has crashed."""
        return not first_of(self._namespace(name(node)))

    def cut(self, node: int) -> None:
        """Take a node off the network; what runs on it goes on."""
        self.exec(["ip", "link", "set", f"{_LINK}{node}", "down"])

    def heal(self, node: int) -> None:
        """Put a node back on the network."""
        self.exec(["ip", "link", "set", f"{_LINK}{node}", "up"])

    def declare_down(self, node: int) -> None:
        """Let Slurm take a node for dead at once, as it does with one that is silent too long."""
        self.exec(["scontrol", "update", f"NodeName={name(node)}", "State=DOWN", "Reason=test"])

    def stop_slurmctld(self) -> None:
        """End the controller as its service does: it writes its state down; jobs go on."""
        for process in self._controllers():
            os.kill(process.pid, signal.SIGTERM)
        until(lambda: not self._controllers(), "slurmctld has ended", _PATIENCE)

    def start_slurmctld(self) -> None:
        """Start the controller again, with the state that it had."""
        self.exec(["slurmctld", "-f", self.folder / "slurm.conf"])

    def tidy(self, seconds: float = _PATIENCE) -> None:
        """Make it as if new: no job, all nodes up and idle, nothing of a job on them."""
        if not self._controllers():
            self.start_slurmctld()
        for node in range(1, self.settings.nodes + 1):
            if self.crashed(node):
                self.revive(node)
            else:
                self.heal(node)
        self.exec(["scancel", "--user=root"], check=False)
        until(self._resumed, lambda: f"idle: {self._squeue()} {self.states()}", seconds)

    def logs(self, lines: int = 15) -> str:
        """Return the last lines of every log that has any."""
        told = []
        for log in sorted((self.folder / "log").glob("*")):
            if found := log.read_text(errors="replace").splitlines()[-lines:]:
                told += [f"==> {log}", *found]
        return "\n".join(told)

    # Its own matters

    @property
    def _cgroup(self) -> str:
        # Two labs differ in their folders.
        return f"{_LINK}-{re.sub('[^A-Za-z0-9_-]', '-', str(self.folder).strip('/'))}"

    def _problems(self) -> list[Problem]:
        found = [Problem(what, "give another value") for what in self.settings.problems()]
        if os.geteuid() != 0:
            found.append(Problem(f"namespaces need root, and this is user {os.geteuid()}", "sudo"))
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        missing = [program for program in _PROGRAMS if not shutil.which(program, path=path)]
        missing += [] if _SPANK.exists() else [str(_SPANK)]
        if missing:
            found.append(Problem(f"missing: {' '.join(missing)}", "make system"))
        if self.settings.proctrack == "cgroup" and best_proctrack() != "cgroup":
            found.append(Problem(f"no cgroup v1 at {_FREEZER}", "proctrack linuxproc"))
        if len(str(self.folder)) > MAX_FOLDER:
            found.append(
                Problem(
                    f"the folder's path has {len(str(self.folder))} characters: {self.folder}",
                    f"at most {MAX_FOLDER}",
                )
            )
        if any(self.folder.is_relative_to(hidden) for hidden in ("/tmp", "/dev/shm")):  # noqa: S108
            found.append(
                Problem(
                    f"{self.folder} is no shared folder: nodes have /tmp and /dev/shm of their own",
                    "one of /var/tmp",
                )
            )
        if self.pid:
            found.append(Problem(f"a lab is up in {self.folder}", "take it down"))
        return found

    def _prepare(self) -> None:
        for stale in ("run", "state", "spool"):
            shutil.rmtree(self.folder / stale, ignore_errors=True)
        for made in ("run", "state", "spool", "log", "dev", "shared"):
            (self.folder / made).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge.key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))
        for gpu in range(self.settings.gpus):
            device = self.folder / "dev" / f"nvidia{gpu}"
            # Slurm wants a device; this one is /dev/null's.
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        plugin = compile_plugin(self.folder)
        for file, text in texts(self.settings, self.folder, plugin).items():
            (self.folder / file).write_text(text)
        spec = {
            "settings": asdict(self.settings), "nodes": self.settings.nodes, "network": NETWORK,
            "bridge": f"{_LINK}0", "link": _LINK, "cgroup": self._cgroup,
            "freezer": self.settings.proctrack == "cgroup", "visible": _visible(),
        }  # fmt: skip
        (self.folder / "lab.json").write_text(json.dumps(spec, indent=2))

    def _inside(self, role: str, *words: object) -> list[str]:
        return [
            sys.executable, "-S", "-E", str(Path(inside.__file__).resolve()), role,
            str(self.folder), *map(str, words),
        ]  # fmt: skip

    def _booted(self) -> bool:
        if self._outer is not None and self._outer.poll() is not None:
            raise RuntimeError(f"it ended with {self._outer.returncode}")
        return (self.folder / "run" / "booted").exists()

    def _namespace(self, who: str) -> int:
        with suppress(OSError):
            return int((self.folder / "run" / f"{who}.ns").read_text())
        return 0

    def _first(self, who: str) -> int:
        if pid := first_of(self._namespace(who)):
            return pid
        raise AssertionError(f"{who} of the lab in {self.folder} is not up")

    def _run(
        self,
        node: int | None,
        argv: Sequence[str | Path],
        seconds: float,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        *,
        check: bool,
    ) -> Result:
        words, variables = self.command(argv, node=node, env=env, cwd=cwd)
        said = shlex.join(map(str, argv))
        try:
            done = subprocess.run(
                words, check=False, capture_output=True, text=True, timeout=seconds,
                stdin=subprocess.DEVNULL, env=variables,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise TimeoutError(f"not within {seconds:g} s: {said} ends") from late
        if check and done.returncode:
            raise AssertionError(f"{said} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def _variables(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**_environment(), "SLURM_CONF": str(self.folder / "slurm.conf"), **(more or {})}

    def _controllers(self) -> list[Process]:
        # Its helper, slurmscriptd, ends with it.
        found = in_namespace(self._namespace("ctl"))
        return [process for process in found if process.command.startswith("slurmctld ")]

    def _squeue(self) -> str:
        return self.exec(["squeue", "--noheader"], check=False).stdout

    def _resumed(self) -> bool:
        """Whether it is idle; a node that Slurm has given up for good is asked for again."""
        if self.is_idle():
            return True
        for node, state in self.states().items():
            if state in {"down", "drain", "fail"}:
                self.exec(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        return False


def compile_plugin(folder: Path) -> Path:
    """Compile the fake of pyxis into a folder.

    Raises:
        UserError: It does not compile, with the compiler's words.
    """
    made = folder / "fake_pyxis.so"
    words = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", made, _PLUGIN]
    done = subprocess.run(
        list(map(str, words)), check=False, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise UserError(
            Problem(f"{_PLUGIN} does not compile:\n{done.stderr}", "make system"),
            ExitCode.FAILURE,
        )
    return made


def _joined(components: Sequence[Sequence[str]]) -> list[str]:
    """Return the options of all components, with a colon between two."""
    words = list(components[0]) if components else []
    for component in components[1:]:
        words += [":", *component]
    return words


def _of_slurmd(command: str) -> bool:
    return command.startswith("slurmd ")


def _environment() -> dict[str, str]:
    """Return our environment, without what tells of a job that we may be in ourselves."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return {**env, "PATH": f"{env.get('PATH', '')}:/usr/sbin:/sbin"}


def _visible() -> list[str]:
    """Return what of the machine's /tmp every node has to see: this checkout and its Python."""
    wanted = {ROOT.resolve(), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    below = [path for path in wanted if path.is_relative_to("/tmp")]  # noqa: S108 - see above
    return sorted(
        str(path)
        for path in below
        if not any(path != up and path.is_relative_to(up) for up in below)
    )
