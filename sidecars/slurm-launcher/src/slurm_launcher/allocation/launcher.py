"""The launcher in the allocation: balancers, replicas and the training, from start to end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from slurm_launcher import checks, placement, plan, ports
from slurm_launcher.allocation import decide, records, steps
from slurm_launcher.allocation.decide import Replica, Why
from slurm_launcher.allocation.environment import Allocation
from slurm_launcher.allocation.lease import Leases
from slurm_launcher.config import Config, Pool
from slurm_launcher.placement import Place
from tandem_common import logs
from tandem_common.clock import Deadline
from tandem_common.processes import exit_code

_LOOK_SECONDS: Final = 0.25
_PROGRESS_SECONDS: Final = 15.0
_NODE_FAILURE: Final = ("Node failure on", "node failure")
_FAILED: Final = 1
#: Codes of an agent's that another try does not change: called wrongly, cannot be started.
_REFUSED: Final = frozenset({2, 3})


@dataclass(slots=True)
class _Pool:
    """A pool while it runs."""

    config: Pool
    places: list[Place]
    state: decide.Pool
    balancer: asyncio.subprocess.Process | None = None
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    run_dir: tempfile.TemporaryDirectory[str] | None = None

    @property
    def min_ready(self) -> int:
        """Replicas that it takes to be ready."""
        wanted = self.config.min_ready
        return self.config.replicas if wanted is None else wanted


class EndError(Exception):
    """The job cannot go on; the reason is in words."""


class Launcher:
    """The launcher; `run` is its life."""

    def __init__(
        self, config: Config, allocation: Allocation, environment: Mapping[str, str]
    ) -> None:
        """Take what to do and where.

        Args:
            config: The configuration.
            allocation: The nodes.
            environment: Variables of this process.
        """
        self._config, self._allocation = config, allocation
        self._environment = dict(environment)
        again = f"-{allocation.restarts}" if allocation.restarts else ""
        self._folder = Path(plan.files(config.log_dir, f"{allocation.job}{again}")["folder"])
        self._leases = Leases()
        self._lease_port = 0
        self._token = self._folder / "token"
        self._pools = [self._pool(pool) for pool in config.pools]
        self._training: asyncio.subprocess.Process | None = None
        self._stop = asyncio.Event()
        self._ending = False
        self._wrong: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._log = logs.get_logger(job=allocation.job)
        self._events: list[dict[str, Any]] = []

    def _pool(self, pool: Pool) -> _Pool:
        for number, component in enumerate(checks.components(self._config), start=1):
            mine = checks.pools_of(self._config, component)
            if pool in mine:
                every = placement.place(mine, component.gpus_per_node, number)
                places = [each for each in every if each.pool == pool.name]
                hosts = self._allocation.components[number]
                nodes = [hosts[p.first_node : p.first_node + p.nodes] for p in places]
                replicas = {
                    f"{pool.name.lower()}-{index}": Replica(f"{pool.name.lower()}-{index}", index)
                    for index in range(pool.replicas)
                }
                return _Pool(pool, places, decide.Pool(replicas, nodes))
        raise LookupError(f"pool {pool.name} is in no component")

    async def run(self) -> int:
        """Run the job; return the training's exit code, or 1 when it could not be run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGUSR1, self._time_is_short)
        self._folder.mkdir(parents=True, exist_ok=True)
        records.token(self._token)
        code, reason = _FAILED, ""
        try:
            self._lease_port = await self._leases.start("0.0.0.0")  # noqa: S104 - all nodes hold one
            for pool in self._pools:
                await self._start_balancer(pool)
                for name in pool.state.replicas:
                    self._start_replica(pool, name, 0.0)
            if self._config.training.start == "when-ready":
                await self._ready()
                code = await self._train()
            else:
                code = await self._train_meanwhile()
            reason = f"the training ended with {code}"
        except EndError as error:
            reason = str(error)
        finally:
            await self._end()
            await self._leases.close()
            self._record("ended", reason=reason, code=code)
            with suppress(OSError):
                records.write(self._folder / "reason.json", {"code": code, "reason": reason})
        return code

    # Signals.

    def _asked(self, name: str) -> None:
        self._record("end_asked", signal=name)
        self._stop.set()

    def _time_is_short(self) -> None:
        """Pass the sign on: the training saves what it has, and ends by itself."""
        self._record("time_is_short")
        if self._training is not None and self._training.returncode is None:
            self._training.send_signal(signal.SIGUSR1)
        else:
            self._stop.set()

    def _record(self, event: str, **fields: Any) -> None:
        """Log an event, and make the state's file what is so now."""
        self._log.info(event, **fields)
        self._events.append({"event": event, "time": round(time.time(), 1), **fields})
        state = {
            "job": self._allocation.job,
            "restarts": self._allocation.restarts,
            "pools": {
                pool.config.name: {
                    "url": self._url(pool),
                    "min_ready": pool.min_ready,
                    "lost_nodes": sorted(pool.state.lost),
                    "replicas": {
                        name: {
                            "nodes": [] if each.place is None
                            else list(pool.state.nodes[each.place]),
                            "restarts": each.restarts,
                        }
                        for name, each in pool.state.replicas.items()
                    },
                }
                for pool in self._pools
            },
            "events": self._events[-200:],
        }  # fmt: skip
        try:
            records.write(self._folder / "state.json", state)
        except OSError as error:
            # The shared folder may be away for a while: the job goes on without its record.
            self._log.warning("state_unwritten", reason=str(error))

    # The balancers.

    def _url(self, pool: _Pool) -> str:
        return f"http://{self._allocation.batch_host}:{pool.config.port}"

    async def _start_balancer(self, pool: _Pool) -> None:
        # Sockets are in it: it has to be local, and its path short.
        if pool.run_dir is None:
            pool.run_dir = tempfile.TemporaryDirectory(prefix="pool-")
        name, port = pool.config.name.lower().replace("_", "-"), pool.config.port
        argv = [
            sys.executable, "-m", "vllm_pool", "serve", "--name", name,
            "--listen-port", str(port), "--metrics-port", str(port + ports.METRICS_OFFSET),
            "--min-ready", str(pool.min_ready), "--run-dir", pool.run_dir.name,
            "--token-file", str(self._token), "--drain-seconds", "10",
            "--drain-notice-seconds", "0",
        ]  # fmt: skip
        with (self._folder / f"balancer-{pool.config.name.lower()}.log").open("ab") as log:
            pool.balancer = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        self._record("balancer_started", pool=pool.config.name, url=self._url(pool))
        pool.tasks["balancer"] = asyncio.create_task(self._keep_balancer(pool, pool.balancer))

    async def _keep_balancer(self, pool: _Pool, process: asyncio.subprocess.Process) -> None:
        code = exit_code(await process.wait())
        if self._ending:
            return
        self._record("balancer_ended", pool=pool.config.name, code=code)
        if code != 0 and code not in (2, 3):
            # Killed: the next one finds its members in the same folder.
            await self._start_balancer(pool)
            return
        self._fail(f"the balancer of {pool.config.name} ended with {code}")

    def _fail(self, reason: str) -> None:
        if not self._wrong.done():
            self._wrong.set_result(reason)

    # The replicas.

    def _start_replica(self, pool: _Pool, name: str, wait: float) -> None:
        pool.tasks[name] = asyncio.create_task(self._run_replica(pool, name, wait))

    async def _run_replica(self, pool: _Pool, name: str, wait: float) -> None:
        await asyncio.sleep(wait)
        index = pool.state.replicas[name].place
        if index is None or self._ending:
            return
        self._leases.renewed(name)
        place, nodes = pool.places[index], pool.state.nodes[index]
        port = pool.config.vllm_port + place.slot
        agent_port = str(port + ports.AGENT_OFFSET)
        step = steps.replica(
            pool.config, place, name=name, nodes=nodes,
            log=str(self._folder / f"replica-{name}.log"),
            command=self._task(pool, name, nodes, port, place),
            environment={**pool.config.env, "VLLM_POOL_REPLICA_HEALTH_PORT": agent_port},
            basic=plan.BASIC_ENV,
        )  # fmt: skip
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *step.argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, env={**self._environment, **step.environment},
            start_new_session=True,
        )  # fmt: skip
        self._record("replica_started", replica=name, nodes=list(nodes))
        try:
            said = await self._said(process)
            code = exit_code(await process.wait())
        finally:
            if process.returncode is None:
                # srun kills its tasks when it is asked to end; they have been drained before.
                process.terminate()
        lost = [node for node in nodes if any(f"{w} {node}" in said for w in _NODE_FAILURE)]
        self._record("step_ended", replica=name, code=code, said=said.strip()[-500:])
        why = Why.NODE_LOST if lost else Why.REFUSED if code in _REFUSED else Why.EXITED
        pool.state = replace(pool.state, lost=pool.state.lost | set(lost))
        self._ended(pool, name, why, time.monotonic() - began)

    async def _said(self, process: asyncio.subprocess.Process) -> str:
        """Return the last of what srun says."""
        said = b""
        while process.stderr is not None and (part := await process.stderr.read(4096)):
            said = (said + part)[-8192:]
        return said.decode(errors="replace")

    def _ended(self, pool: _Pool, name: str, why: Why, lived: float) -> None:
        if self._ending:
            return
        then = decide.ended(pool.state, name, why, lived, pool.config.max_restarts)
        pool.state = then.pool
        self._record("replica_ended", replica=name, then=then.reason)
        if then.start is not None:
            self._start_replica(pool, name, then.wait)
        elif reason := decide.hopeless(pool.state, pool.min_ready):
            self._fail(f"pool {pool.config.name}: {reason}; {name}: {then.reason}")

    def _task(
        self, pool: _Pool, name: str, nodes: Sequence[str], port: int, place: Place
    ) -> list[str]:
        server = plan.server(pool.config, port, many=place.nodes > 1)
        agent = [
            sys.executable, "-m", "vllm_pool", "replica", "--id", name, "--manager",
            self._url(pool), "--token-file", str(self._token),
            "--advertise", f"http://{nodes[0]}:{port}",
            "--startup-seconds", str(pool.config.startup_seconds), "--", *server,
        ]  # fmt: skip
        return [
            sys.executable, "-m", "slurm_launcher", "task", "--launcher",
            f"{self._allocation.batch_host}:{self._lease_port}", "--replica", name,
            "--lease-seconds", str(self._config.lease_seconds), "--job", self._allocation.job,
            "--", *agent,
        ]  # fmt: skip

    # Readiness, training, end.

    async def _ready(self) -> None:
        """Wait until every pool is ready.

        Raises:
            EndError: One is not in time, cannot be any more, or the end was asked for.
        """
        began = time.monotonic()
        told = Deadline(_PROGRESS_SECONDS)
        while waiting := [pool for pool in self._pools if not await self._is_ready(pool)]:
            if self._stop.is_set():
                raise EndError("the end was asked for before all pools were ready")
            if self._wrong.done():
                raise EndError(self._wrong.result())
            late = [p for p in waiting if time.monotonic() - began > p.config.startup_seconds]
            if late:
                names = ", ".join(pool.config.name for pool in late)
                raise EndError(f"not ready in time: {names}")
            if told.passed:
                told = Deadline(_PROGRESS_SECONDS)
                self._record("waiting", pools=[pool.config.name for pool in waiting])
            await asyncio.sleep(_LOOK_SECONDS)
        self._record("ready", seconds=round(time.monotonic() - began, 1))

    async def _is_ready(self, pool: _Pool) -> bool:
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"http://127.0.0.1:{pool.config.port}/ready") as answer,
            ):
                return answer.status == 200  # noqa: PLR2004 - OK
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _train_meanwhile(self) -> int:
        """Run the training while the pools load; return its exit code.

        Raises:
            EndError: A pool is not ready in time, cannot go on, or the end was asked for.
        """
        ready = asyncio.create_task(self._ready())
        training = asyncio.create_task(self._train())
        try:
            await asyncio.wait({ready, training}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not training.done():
                ready.result()
            return await training
        finally:
            ready.cancel()
            training.cancel()
            await asyncio.gather(ready, training, return_exceptions=True)

    async def _train(self) -> int:
        """Run the training to its end; return its exit code.

        Raises:
            EndError: A pool cannot go on, or the end was asked for.
        """
        training = self._config.training
        urls = {pool.config.placeholder: self._url(pool) for pool in self._pools}
        argv = plan.injected(training.command, urls)
        addresses = {pool.config.name: self._url(pool) for pool in self._pools}
        environment = {
            **self._environment, **training.env,
            "TANDEM_POOLS": json.dumps(addresses), "TANDEM_POOLS_TOKEN_FILE": str(self._token),
        }  # fmt: skip
        self._training = process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, env=environment, cwd=training.workdir,
            start_new_session=True,
        )  # fmt: skip
        self._record("training_started", command=list(argv), pid=process.pid)
        over = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            either: set[asyncio.Future[Any]] = {over, stop, self._wrong}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return exit_code(over.result())
        finally:
            over.cancel()
            stop.cancel()
        why = self._wrong.result() if self._wrong.done() else "the end was asked for"
        raise EndError(why)

    async def _end(self) -> None:
        """End what is left, in order: the training, the replicas, the balancers."""
        self._ending = True
        if self._training is not None:
            await _stopped(self._training, 15.0)
        for pool in self._pools:
            for name in pool.state.replicas:
                self._leases.drain(name)
        work = [task for pool in self._pools for name, task in pool.tasks.items()
                if name != "balancer"]  # fmt: skip
        if work:
            await asyncio.wait(work, timeout=20.0)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for pool in self._pools:
            if pool.balancer is not None:
                await _stopped(pool.balancer, 15.0)
            if pool.run_dir is not None:
                pool.run_dir.cleanup()
        left = [task for pool in self._pools for task in pool.tasks.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _stopped(process: asyncio.subprocess.Process, grace: float) -> None:
    """End a process and its group: ask, then kill."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
