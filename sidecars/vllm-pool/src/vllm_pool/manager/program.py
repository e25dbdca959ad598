"""The command `vllm-pool manager`: the control of one balancer, as the supervisor starts it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from aiohttp import web

from tandem_common import logs
from tandem_common.errors import ExitCode
from tandem_common.serve import HealthServer
from vllm_pool.dataplane import config
from vllm_pool.dataplane.config import MIB
from vllm_pool.manager.api import application
from vllm_pool.manager.loop import Manager
from vllm_pool.manager.metrics import Metrics
from vllm_pool.settings import PoolSettings
from vllm_pool.sources import file


def run(settings: PoolSettings) -> int:
    """Run the manager until it is told to end; return the exit code.

    Raises:
        UserError: Something that the user can mend.
    """
    logs.configure("vllm-pool-manager", level=settings.log_level)
    asyncio.run(_run(settings))
    return ExitCode.OK


async def _run(settings: PoolSettings) -> None:
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    manager = Manager(settings, metrics)
    work = asyncio.create_task(manager.run(*_sources(settings, manager)))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    async with AsyncExitStack() as stack:
        stack.enter_context(
            HealthServer(settings.metrics_host, settings.metrics_port, ready=manager.ready)
        )
        runner = web.AppRunner(
            application(manager, settings.max_body_mib * MIB), access_log=None,
            # A refit goes on when its client has left: the replicas are in the midst of it.
            handler_cancellation=False, shutdown_timeout=1.0,
        )  # fmt: skip
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        path = settings.run_dir / config.MANAGER_SOCKET
        # Of a manager that was killed; two never run at once, the supervisor sees to that.
        path.unlink(missing_ok=True)
        await web.UnixSite(runner, str(path)).start()
        path.chmod(0o600)
        with suppress(asyncio.CancelledError):
            await work


def _sources(settings: PoolSettings, manager: Manager) -> Sequence[Coroutine[Any, Any, None]]:
    found: list[Coroutine[Any, Any, None]] = []
    if settings.members_file is not None:
        found.append(file.follow(settings.members_file, manager.synced))
    if settings.slices:
        # The client of Kubernetes takes a third of the start and of the memory.
        from tandem_common.kube import load_config  # noqa: PLC0415
        from vllm_pool.sources import slices  # noqa: PLC0415

        cluster = load_config()
        namespace = settings.namespace or cluster.namespace
        found.append(
            slices.follow(cluster, settings.slices, namespace, settings.slices_port, manager.synced)
        )
    return found
