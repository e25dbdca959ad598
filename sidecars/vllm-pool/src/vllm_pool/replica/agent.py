"""The agent beside one vLLM server: keeps the server known to every balancer while it is fit.

One task looks at the server, one keeps the list of managers, and one a manager registers there and
renews. None of them ends for anything that a manager does or fails to do: a pool without its
manager goes on, and the server must be there when it comes back.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tandem_common import logs
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError
from tandem_common.processes import exit_code
from tandem_common.serve import Health
from vllm_pool.replica import decide
from vllm_pool.replica.child import Child
from vllm_pool.replica.decide import Answer, Fitness, Limits, Move, Registration, Reply
from vllm_pool.replica.link import Link, addresses, own_address
from vllm_pool.replica.metrics import Metrics
from vllm_pool.replica.probe import Probe
from vllm_pool.replica.settings import ReplicaSettings

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
#: Seconds between two looks at how far a drain is.
_DRAIN_LOOK_SECONDS: Final = 0.25
#: States in which a member has heard that it is to be drained.
_LEAVING: Final = frozenset({"draining", "drained"})


@dataclass(slots=True)
class _Kept:
    """One manager and what is known of us there."""

    link: Link
    registration: Registration = field(default_factory=Registration)
    #: Set when there is something new to tell.
    news: asyncio.Event = field(default_factory=asyncio.Event)
    #: Renewals end when the manager has nothing of us to hold any more.
    over: bool = False
    last: Reply | None = None
    task: asyncio.Task[None] | None = None


class SupersededError(Exception):
    """Another process has this replica's id, and it is newer."""


class Agent:
    """The agent; `run` is its life."""

    def __init__(
        self,
        settings: ReplicaSettings,
        command: Sequence[str],
        metrics: Metrics,
        environment: Mapping[str, str],
    ) -> None:
        """Take the settings, the server's command line (empty: it is there already), and more.

        Args:
            settings: What to do.
            command: Command line of the server, empty to watch one that somebody else runs.
            metrics: What is counted.
            environment: This process's environment.
        """
        self._settings = settings
        self._metrics = metrics
        self._log = logs.get_logger(replica=settings.id)
        # vLLM warns of variables that begin with its name and are none of its own.
        kept = {k: v for k, v in environment.items() if not k.startswith("VLLM_POOL_")}
        self._child = Child(command, kept) if command else None
        port = decide.port_of(tuple(command))
        self._target = settings.target or f"http://127.0.0.1:{port}"
        self._limits = Limits(settings.fail_after, settings.pass_after)
        self._fitness = Fitness()
        self._weights: str | None = settings.weight_version or None
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        self._epoch = decide.first_epoch(_wall(), int(restarts) if restarts.isdecimal() else 0)
        self._advertise = settings.advertise
        if not self._advertise and urlsplit(self._target).hostname not in _LOOPBACK:
            self._advertise = self._target
        self._kept: dict[str, _Kept] = {}
        self._was_ready = asyncio.Event()
        self._draining = False
        self._drain: asyncio.Task[bool] | None = None
        #: Requests to end: the second one ends the waiting.
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._superseded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ready(self) -> Health:
        """Return whether the server is fit and some manager has it: the pod's readiness."""
        reasons = [] if self._fitness.ready else [self._fitness.reason]
        if self._draining:
            reasons.append("it is drained")
        if not any(kept.registration.current for kept in self._kept.values()):
            reasons.append("no manager has taken it")
        return Health(tuple(reasons))

    def live(self) -> Health:
        """Return whether the server hangs: then whoever runs it is to start it again."""
        if self._hung:
            return Health((f"it hangs: {self._fitness.reason}",))
        return Health()

    @property
    def _hung(self) -> bool:
        return decide.stuck(self._fitness, self._settings.hung_after)

    async def run(self) -> int:
        """Live until the server ends, or somebody asks for the end; return the exit code.

        Raises:
            UserError: The server cannot be started, or was not ready in time.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked, signal.Signals(number).name)
        # Without keep-alive a server that is gone is seen as gone, and each name is looked up anew.
        connector = aiohttp.TCPConnector(force_close=True, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector) as session:
            control = await self._control()
            try:
                if self._child is not None:
                    self._child.start()
                    self._log.info("server_started", pid=self._child.pid)
                return await self._live(session)
            finally:
                if self._child is not None and self._child.pid:
                    await self._child.stop(self._settings.grace_seconds)
                for kept in self._kept.values():
                    await _cancel(kept.task)
                await _cancel(self._drain)
                await control.cleanup()

    async def _live(self, session: aiohttp.ClientSession) -> int:
        probe = Probe(session, self._target, self._settings.model)
        watch = asyncio.create_task(self._watch(probe))
        names = asyncio.create_task(self._resolve(session))
        asked = asyncio.create_task(self._stop.wait())
        ends: list[asyncio.Future[Any]] = [watch, names, asked, self._superseded]
        ended: asyncio.Task[int] | None = None
        if self._child is not None:
            ended = asyncio.create_task(self._child.wait())
            ends.append(ended)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (watch, names, self._superseded):
                if each.done():
                    each.result()
            if ended is not None and ended.done():
                self._log.error("server_ended", exit_code=exit_code(ended.result()))
                await self._withdraw()
                return exit_code(ended.result())
            drained = await self.drain()
            await self._withdraw()
            self._log.info("withdrawn", drained=drained)
            if self._child is None:
                return ExitCode.OK
            status = await self._child.stop(self._settings.grace_seconds)
            # Ended by the signal that we sent is ended as asked.
            return ExitCode.OK if status == -signal.SIGTERM else exit_code(status)
        except SupersededError:
            raise UserError(
                Problem(
                    f"a newer process has the id {self._settings.id!r} at a manager",
                    "give each replica an id of its own, or end this one: the newer one is used",
                )
            ) from None
        except UserError:
            await self._withdraw()
            raise
        finally:
            for task in (watch, names, asked, ended):
                await _cancel(task)

    def _asked(self, name: str) -> None:
        self._log.info("stop_requested", signal=name)
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    # The server.

    async def _watch(self, probe: Probe) -> None:
        """Look at the server for ever.

        Raises:
            UserError: It was not ready in time.
        """
        settings = self._settings
        deadline, told = Deadline(settings.startup_seconds), 0.0
        while True:
            began = self._was_ready.is_set()
            patience = (
                settings.canary_seconds if self._fitness.was_ready
                else settings.first_canary_seconds
            )  # fmt: skip
            before = self._fitness
            sample = await probe.look(patience if began else deadline.within(patience) or patience)
            self._fitness = decide.judge(before, sample, self._limits)
            self._metrics.canary_seconds.set(sample.seconds)
            self._changed(before)
            if self._hung and self._child is not None:
                # Its clients wait for ever; killed, they are served by another replica.
                self._log.error("server_hung", reason=self._fitness.reason)
                self._child.send(signal.SIGKILL)
            if not began and not self._fitness.ready:
                if deadline.passed:
                    raise UserError(
                        Problem(
                            f"the server at {self._target} was not ready in "
                            f"{settings.startup_seconds:g} s: {self._fitness.reason}",
                            f"read its log; set {settings.variable('startup_seconds')} to more",
                        ),
                        ExitCode.TIMEOUT,
                    )
                if deadline.elapsed - told >= settings.progress_seconds:
                    told = deadline.elapsed
                    self._log.info(
                        "waiting", seconds=round(told), deadline_seconds=settings.startup_seconds,
                        reason=self._fitness.reason,
                    )  # fmt: skip
            # One that is gone or new costs nothing to look at; one that struggles is left in peace.
            often = not self._fitness.ready and (sample.refused or not self._fitness.was_ready)
            await asyncio.sleep(settings.startup_probe_seconds if often else settings.probe_seconds)

    def _changed(self, before: Fitness) -> None:
        """Tell everybody when something else is thought of the server than before."""
        now = self._fitness
        self._metrics.ready.set(now.ready)
        if now.restarts != before.restarts and not self._draining:
            self._metrics.restarts.inc()
            self._epoch = max(self._epoch + 1, decide.first_epoch(_wall()))
            self._log.warning("server_restarted", epoch=self._epoch)
        elif now.ready == before.ready:
            return
        if now.ready:
            self._log.info("server_ready")
            self._was_ready.set()
        elif before.ready:
            self._log.warning("server_not_ready", reason=now.reason)
        self._tell()

    # The managers.

    def _tell(self) -> None:
        for kept in self._kept.values():
            kept.news.set()

    async def _resolve(self, session: aiohttp.ClientSession) -> None:
        """Keep one task for each manager that there is, from the first readiness on."""
        settings = self._settings
        await self._was_ready.wait()
        found: dict[str, list[str]] = {}
        while True:
            for name in settings.manager:
                try:
                    found[name] = await addresses(name)
                except OSError as error:
                    # Those known stay: names are unknown for a moment more often than managers go.
                    self._log.warning("manager_unresolved", manager=name, reason=str(error))
            wanted = {url for urls in found.values() for url in urls}
            for url in wanted - self._kept.keys():
                link = Link(
                    session, url, settings.id,
                    token_file=settings.token_file, seconds=settings.request_seconds,
                )  # fmt: skip
                self._kept[url] = kept = _Kept(link)
                kept.task = asyncio.create_task(self._keep(kept))
                self._log.info("manager_found", manager=url)
            for url in self._kept.keys() - wanted:
                # Its address may be somebody else's already: nothing is sent there any more.
                await _cancel(self._kept.pop(url).task)
                self._log.info("manager_gone", manager=url)
            for kept in self._kept.values():
                if kept.task is not None and kept.task.done():
                    kept.task.result()
            self._metrics.managers.set(len(self._kept))
            await asyncio.sleep(settings.resolve_seconds)

    async def _keep(self, kept: _Kept) -> None:
        """Register with one manager and renew, until nothing of us is there to renew."""
        lease = self._settings.lease_seconds
        while not kept.over:
            kept.news.clear()
            answer = await self._put(kept.link)
            self._metrics.answered(answer)
            others = any(
                each.registration.current for each in self._kept.values() if each is not kept
            )
            then = decide.settle(
                kept.registration, answer,
                now=time.monotonic(), lease=lease, taken_elsewhere=others,
            )  # fmt: skip
            kept.registration = then.registration
            self._metrics.registered.set(
                sum(each.registration.current for each in self._kept.values())
            )
            if answer.reply is not kept.last:
                say = self._log.info if answer.reply is Reply.DONE else self._log.warning
                say(
                    "registration", manager=kept.link.url, reply=answer.reply.value,
                    epoch=self._epoch, reason=answer.reason,
                )  # fmt: skip
                kept.last = answer.reply
            if then.move is Move.YIELD and not self._superseded.done():
                self._superseded.set_exception(SupersededError())
            if then.move is Move.RAISE:
                self._epoch = max(self._epoch + 1, then.epoch)
                self._tell()
            with suppress(TimeoutError):
                await asyncio.wait_for(kept.news.wait(), then.wait)

    async def _put(self, link: Link) -> Answer:
        if not self._advertise:
            try:
                host = await asyncio.to_thread(own_address, link.url)
            except OSError as error:
                return Answer(Reply.AWAY, f"no way there: {error}")
            port = urlsplit(self._target).port
            self._advertise = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return await link.put(
            {
                "url": self._advertise,
                "epoch": self._epoch,
                "lease_seconds": self._settings.lease_seconds,
                # A manager without memory must not take one that is about to go.
                "ready": self._fitness.ready and not self._draining,
                "weight_version": self._weights,
            }
        )

    # The end.

    async def drain(self) -> bool:
        """Have nothing new sent here, and wait for what is under way; return whether it is done.

        Asked again, it waits for the same drain.
        """
        if self._drain is None:
            self._draining = True
            self._metrics.draining.set(1)
            self._log.info("draining", deadline_seconds=self._settings.drain_seconds)
            self._drain = asyncio.create_task(self._drain_all())
        return await asyncio.shield(self._drain)

    async def _drain_all(self) -> bool:
        deadline = Deadline(self._settings.drain_seconds)
        every = list(self._kept.values())
        work = asyncio.create_task(
            _all(self._drain_one(kept, deadline) for kept in every), name="drain"
        )
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait([work, hurry], return_when=asyncio.FIRST_COMPLETED)
            drained = work.done() and work.result()
        finally:
            await _cancel(hurry)
            await _cancel(work)
        self._log.info("drained" if drained else "drain_cut_short", seconds=round(deadline.elapsed))
        return drained

    async def _drain_one(self, kept: _Kept, deadline: Deadline) -> bool:
        asked, away = False, 0
        while not deadline.passed:
            answer = await (kept.link.state() if asked else kept.link.drain())
            away = away + 1 if answer.reply is Reply.AWAY else 0
            if decide.has_drained(answer, away):
                kept.over = True
                kept.news.set()
                return True
            if answer.reply is Reply.DONE:
                # One that has begun anew may have forgotten that we want to go.
                asked = not asked or answer.state in _LEAVING
            await asyncio.sleep(deadline.within(_DRAIN_LOOK_SECONDS))
        self._log.warning("drain_overdue", manager=kept.link.url)
        return False

    async def _withdraw(self) -> None:
        """Take the registration back everywhere; who is away forgets us when the lease ends."""
        every = [kept for kept in self._kept.values() if kept.registration.taken]
        for kept in every:
            kept.over = True
            await _cancel(kept.task)
        answers = await asyncio.gather(*(kept.link.withdraw(self._epoch) for kept in every))
        for kept, answer in zip(every, answers, strict=True):
            if answer.reply not in (Reply.DONE, Reply.UNKNOWN):
                self._log.warning("not_withdrawn", manager=kept.link.url, reason=answer.reason)

    # For a preStop hook: the server's container gets its signal only when this has answered.

    async def _control(self) -> web.AppRunner:
        async def drain(_: web.Request) -> web.Response:
            drained = await self.drain()
            status = HTTPStatus.OK if drained else HTTPStatus.GATEWAY_TIMEOUT
            return web.json_response({"drained": drained}, status=status)

        app = web.Application()
        app.router.add_post("/drain", drain)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        if port := self._settings.control_port:
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
            except OSError as error:
                await runner.cleanup()
                raise UserError(
                    Problem(f"cannot listen on 127.0.0.1:{port}: {error}", "choose another port")
                ) from None
        return runner


def _wall() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def _all(work: Iterable[Coroutine[Any, Any, bool]]) -> bool:
    return all(await asyncio.gather(*work))


async def _cancel(task: asyncio.Future[Any] | None) -> None:
    """End a task; one that has failed has been looked at elsewhere."""
    if task is None:
        return
    if task.done():
        if not task.cancelled():
            task.exception()
        return
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
