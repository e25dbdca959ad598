"""The manager: asks the replicas, takes what sources and the API say, and tells Envoy.

Each task does the I/O of one thing and ends in a method of `Pool`; `apply` then makes the files
what the pool has become. A task that fails ends the manager, and the supervisor starts another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from tandem_common import logs
from tandem_common.serve import Health as Readiness
from vllm_pool.core import refit
from vllm_pool.core.health import HealthLimits, Probe, Result
from vllm_pool.core.membership import Member, Registration
from vllm_pool.core.refit import Answer, BodyError
from vllm_pool.core.rotation import Standing, State
from vllm_pool.dataplane import config, files
from vllm_pool.dataplane.stats import Admin
from vllm_pool.manager import memory
from vllm_pool.manager.fanout import Call, fan_out
from vllm_pool.manager.metrics import Metrics
from vllm_pool.manager.pool import Launch, Pool, Rules
from vllm_pool.manager.probes import Prober, Times
from vllm_pool.settings import PoolSettings

#: Seconds between two looks at Envoy's counters; the short one while something is drained.
_LOOK_SECONDS: Final = 0.5
_DRAIN_LOOK_SECONDS: Final = 0.1
#: Seconds between two times that leases and slow starts are looked at.
_TICK_SECONDS: Final = 0.25
_RESOLVE_SECONDS: Final = 5.0
_COUNTERS: Final = r"^(http\.pool|cluster\.(keyed|unkeyed))\."


@dataclass(slots=True)
class _Probed:
    """The tasks that ask one launch."""

    prober: Prober
    tasks: tuple[asyncio.Task[None], ...]


def rules_of(settings: PoolSettings) -> Rules:
    """Return what the settings want of the pool."""
    return Rules(
        min_ready=settings.min_ready,
        slow_start_seconds=settings.slow_start_seconds,
        forget_seconds=settings.forget_seconds,
        health=HealthLimits(
            http_down=settings.fail_after,
            canary_down=settings.fail_after,
            up=settings.pass_after,
            canary=settings.canary,
        ),
    )


class Manager:
    """The manager of one balancer; an asynchronous context in which its tasks run."""

    def __init__(self, settings: PoolSettings, metrics: Metrics) -> None:
        """Take the settings, and where to show what happens."""
        self.pool = Pool(rules_of(settings), time.monotonic)
        self.metrics = metrics
        self.log = logs.get_logger(pool=settings.name)
        self._settings = settings
        self._times = Times(
            health_interval=settings.health_interval_seconds,
            health=settings.health_seconds,
            canary_interval=settings.canary_interval_seconds,
            canary=settings.canary_seconds,
            first_canary=settings.first_canary_seconds,
        )
        self._session: aiohttp.ClientSession | None = None
        self._probed: dict[tuple[str, Launch], _Probed] = {}
        self._states: dict[str, Standing] = {}
        self._was_ready: bool | None = None
        self._news = asyncio.Event()
        #: Names whose addresses were asked for, and that there are others.
        self._asked_for: set[str] = set()
        self._renamed = asyncio.Event()

    def ready(self) -> Readiness:
        """Return why the pool is not ready; asked from another thread."""
        return Readiness(self.metrics.not_ready)

    async def run(self, *sources: Coroutine[Any, Any, None]) -> None:
        """Work until cancelled, or until something fails that should not.

        Args:
            sources: Endless tasks that bring members.
        """
        if why := memory.recall(self.pool, self._settings.run_dir):
            self.log.warning("memory_unusable", reason=why)
        async with AsyncExitStack() as stack:
            # No connection is kept: one that a replica closes meanwhile looks like a failure.
            connector = aiohttp.TCPConnector(force_close=True, use_dns_cache=False, limit=0)
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector)
            )
            admin = await stack.enter_async_context(
                Admin(self._settings.run_dir / config.ADMIN_SOCKET)
            )
            stack.push_async_callback(self._stop_probes)
            self.apply()
            async with asyncio.TaskGroup() as group:
                for work in (self._measure(admin), self._tick(), self._resolve(), *sources):
                    group.create_task(work)

    # What is known becomes what is so.

    def apply(self) -> None:
        """Make Envoy's members, the memory, the probes and the metrics what the pool is now.

        Raises:
            OSError: The run directory cannot be written.
        """
        pool, run_dir = self.pool, self._settings.run_dir
        rows = pool.rows()
        files.write_endpoints(run_dir, pool.backends())
        memory.keep(pool, run_dir)
        self._probe()
        quorum = pool.quorum()
        self.metrics.show(rows, quorum, draining=pool.draining)
        for row in rows:
            before = self._states.get(row.member.id)
            if before is None or (before.state, before.reasons) != (
                row.standing.state, row.standing.reasons,
            ):  # fmt: skip
                good = row.standing.in_rotation or row.standing.state is State.JOINING
                say = self.log.info if good or row.member.draining else self.log.warning
                say(
                    "replica", replica=row.member.id, url=row.member.url,
                    state=str(row.standing.state), reasons=list(row.standing.reasons),
                )  # fmt: skip
        gone = self._states.keys() - {row.member.id for row in rows}
        for name in sorted(gone):
            self.log.info("replica_gone", replica=name)
        self._states = {row.member.id: row.standing for row in rows}
        if quorum.ready is not self._was_ready:
            self._was_ready = quorum.ready
            self.log.info("ready" if quorum.ready else "not_ready", reasons=list(quorum.reasons))
        self._news.set()
        if self.pool.names() - self._asked_for:
            self._renamed.set()

    def _probe(self) -> None:
        """Have every launch asked that is a member, and none else."""
        if self._session is None:
            return
        wanted = {
            (name, member.launch): member for name, member in self.pool.membership.members.items()
        }
        for key in self._probed.keys() - wanted.keys():
            for task in self._probed.pop(key).tasks:
                task.cancel()
        for key in wanted.keys() - self._probed.keys():
            prober = self._prober(self._session, wanted[key])
            loops = [prober.health_loop()]
            if self._settings.canary:
                loops.append(prober.canary_loop())
            self._probed[key] = _Probed(prober, tuple(asyncio.create_task(loop) for loop in loops))

    def _prober(self, session: aiohttp.ClientSession, member: Member) -> Prober:
        pool, name, launch = self.pool, member.id, member.launch

        def tell(probe: Probe, *, progress: bool) -> None:
            if progress and probe.result is Result.LATE:
                self.log.info("late_but_working", replica=name, kind=str(probe.kind))
            if pool.probed(name, launch, probe, progress=progress):
                self.apply()

        return Prober(
            session, member.url, self._times,
            model=self._settings.canary_model,
            health=lambda: pool.health(name),
            successes=lambda: pool.successes(name),
            resting=lambda: pool.halted(name),
            tell=tell,
        )  # fmt: skip

    async def _stop_probes(self) -> None:
        tasks = [task for probed in self._probed.values() for task in probed.tasks]
        self._probed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            self.pool.tick()
            for probed in self._probed.values():
                for task in probed.tasks:
                    if task.done():
                        task.result()
            self.apply()
            await asyncio.sleep(_TICK_SECONDS)

    async def _measure(self, admin: Admin) -> None:
        while True:
            try:
                stats = await admin.backends()
                self.metrics.count(await admin.counters(_COUNTERS), stats)
            except (aiohttp.ClientError, OSError, ValueError):
                # It is started again at the moment; its counters begin anew.
                stats = None
            self.pool.measured(stats)
            leaving = any(each.state is State.DRAINING for each in self._states.values())
            self._news.clear()
            if leaving:
                self.apply()
                await asyncio.sleep(_DRAIN_LOOK_SECONDS)
                continue
            with suppress(TimeoutError):
                # A drain that begins is looked at soon.
                await asyncio.wait_for(self._draining_begins(), _LOOK_SECONDS)

    async def _draining_begins(self) -> None:
        while not any(each.state is State.DRAINING for each in self._states.values()):
            self._news.clear()
            await self._news.wait()

    async def _resolve(self) -> None:
        """Keep the addresses of names; Envoy is told addresses only."""
        loop = asyncio.get_running_loop()
        while True:
            names = self.pool.names()
            for name in names:
                try:
                    found = await loop.getaddrinfo(name, None, type=2)
                except OSError as error:
                    # What is known stays: names are away for a moment more often than replicas.
                    self.log.warning("name_unresolved", name=name, reason=str(error))
                    continue
                addresses = sorted(str(each[4][0]) for each in found)
                if self.pool.address_of(name) not in addresses:
                    self.pool.resolved(name, addresses[0])
                    self.apply()
            self._asked_for = names
            self._renamed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._renamed.wait(), _RESOLVE_SECONDS)

    # What the API and the sources ask for.

    def synced(self, source: str, listed: list[Registration]) -> None:
        """Take the whole list of a source."""
        self.pool.sync(source, listed)
        self.apply()

    async def refit(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        """Pass a call of a refit to all; return the status and the body of the one answer."""
        path = target.split("?", 1)[0]
        members = self.pool.targets()
        try:
            bodies = refit.bodies(body, members)
        except BodyError as error:
            return HTTPStatus.BAD_REQUEST, {"ok": False, "replicas": {}, "error": str(error)}
        answers: dict[str, Answer] = {}
        if members and self._session is not None:
            call = Call(method, target, headers, bodies)
            urls = {name: member.url for name, member in members.items()}
            self.pool.calling(members)
            try:
                answers = await fan_out(self._session, call, urls, self._settings.refit_seconds)
            finally:
                self.pool.called_over(members)
        launches = {(name, members[name].launch): answer for name, answer in answers.items()}
        self.pool.called(path, launches, refit.version_of(body))
        status, said = refit.one_answer(answers)
        self.metrics.refit(refit.word(path), ok=said["ok"])
        if refit.kind(path) is not refit.Kind.LOOK:
            failed = {name: answer.status for name, answer in answers.items() if not answer.ok}
            say = self.log.info if said["ok"] else self.log.warning
            say("refit", path=path, replicas=len(answers), failed=failed)
        self.apply()
        return status, said

    async def canaries(self, name: str | None) -> dict[str, dict[str, Any]]:
        """Ask for a token now, from one replica or from all; return what came, by id.

        Raises:
            KeyError: There is no replica of that id.
        """
        probed = {key[0]: each for key, each in self._probed.items()}
        chosen = probed if name is None else {name: probed[name]}
        answers = await _all({each: one.prober.canary for each, one in chosen.items()})
        return {
            each: {
                "ok": probe.result is Result.OK, "result": str(probe.result),
                "seconds": round(probe.seconds, 4), "detail": probe.detail, "working": progress,
            }
            for each, (probe, progress) in answers.items()
        }  # fmt: skip


async def _all(
    asks: Mapping[str, Callable[[], Coroutine[Any, Any, tuple[Probe, bool]]]],
) -> dict[str, tuple[Probe, bool]]:
    names = sorted(asks)
    answers = await asyncio.gather(*(asks[name]() for name in names))
    return dict(zip(names, answers, strict=True))
