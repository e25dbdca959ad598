"""A control plane alone: etcd, kube-apiserver and kube-controller-manager on loopback.

For tests that need the real API (RBAC, admission, watches, garbage collection) but no
node. It uses free ports, and any number of them run side by side. The processes are those
of the full cluster (`components.py`).

    with ControlPlane(folder) as plane:
        config.load_kube_config(str(plane.kubeconfig))
"""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tandem.errors import ExitCode, Problem, UserError
from tandem.paths import BIN, ROOT
from tandem.process import tail
from tandem_host import components, config, pki, probes, processes
from tandem_host.layout import Layout
from tandem_host.probes import Api
from tandem_host.settings import Ports, Settings

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.03


class ControlPlane:
    """etcd, kube-apiserver and kube-controller-manager of one folder.

    Attributes:
        settings: Addresses, ports and folders in use.
        kubeconfig: Kubeconfig of the administrator, with the keys inside; there from
            `start` on.
        server: URL of the API server.
        api: A minimal client (`get`, `call`, `merge`, `apply`) for what needs no library.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ports: Ports | None = None,
        bin_folder: Path = BIN,
        scheduler: bool = False,
        start_seconds: float = 60.0,
    ) -> None:
        """Prepare a control plane; nothing is written or started yet.

        Args:
            folder: Folder of its own; it is made when missing and kept by `stop` (logs).
            ports: Ports to use; free ones by default.
            bin_folder: Folder with the binaries of `make tools`.
            scheduler: Start kube-scheduler too (for nodes that KWOK or a test makes).
            start_seconds: How long `start` waits before it gives up.
        """
        self.settings = Settings(
            state=folder.absolute(),
            bin=bin_folder,
            checkout=ROOT,
            address=_LOOPBACK,
            ports=ports or free_ports(),
        )
        self._layout = Layout(self.settings.state)
        self._scheduler = scheduler
        self._start_seconds = start_seconds
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = self._layout.root / "kubeconfig"
        self.server = self.settings.api_url
        self.api = Api(self.settings)

    def start(self) -> Self:
        """Start everything and return when the API server and the controllers are ready.

        Raises:
            UserError: A binary is missing, or a process ended or was not ready in time;
                the message repeats the end of its log. Nothing is left running.
        """
        wanted = components.control_plane(self.settings)
        if self._scheduler:
            wanted = (*wanted, components.scheduler(self.settings))
        missing = [c.name for c in wanted if not Path(c.argv[0]).is_file()]
        if missing:
            raise UserError(Problem(f"missing in ./bin: {', '.join(missing)}", "make tools"))
        pki.ensure(self.settings)
        for user in ("admin", "kube-controller-manager", "kube-scheduler"):
            text = config.kubeconfig(self.settings, user)
            config.write(self._layout.kubeconfig(user), text)
        config.write(self.kubeconfig, config.kubeconfig(self.settings, "admin", embed=True))
        deadline = time.monotonic() + self._start_seconds
        try:
            # One after the other only where a process gives up without the one before.
            for component in wanted:
                for name in component.needs:
                    self._await(next(c for c in wanted if c.name == name), deadline)
                self._running[component.name] = self._spawn(component)
            for component in wanted:
                self._await(component, deadline)
            self._await_controllers(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill everything and wait for the exits; the folder with the logs stays.

        The data is worthless afterwards, so nothing is asked to end politely.
        """
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def log(self, component: str) -> Path:
        """Return the log file of one component."""
        return self._layout.log(component)

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def _spawn(self, component: components.Component) -> subprocess.Popen[bytes]:
        marks = {processes.TEST_MARK: str(self._layout.root), **dict(component.env)}
        return processes.spawn(
            # The kernel ends the process when ours is killed: no orphans of a broken test.
            ["setpriv", "--pdeathsig", "KILL", *component.argv],
            log=self._layout.log(component.name),
            environ=processes.environment(self.settings.bin, marks),
        )

    def _await(self, component: components.Component, deadline: float) -> None:
        log = self._layout.log(component.name)
        while not probes.healthy(component.probe, self._layout):
            said = ""
            with suppress(OSError):
                said = tail(log.read_text(encoding="utf-8", errors="replace"))
            code = self._running[component.name].poll()
            if code is not None:
                raise UserError(
                    Problem(f"{component.name} ended with code {code}:\n{said}", f"read {log}"),
                    ExitCode.FAILURE,
                )
            if time.monotonic() > deadline:
                what = f"{component.name} was not ready in {self._start_seconds:.0f} s:\n{said}"
                raise UserError(Problem(what, f"read {log}"), ExitCode.FAILURE)
            time.sleep(_POLL_SECONDS)

    def _await_controllers(self, deadline: float) -> None:
        """Wait for the account that every pod needs: the proof that controllers work."""
        while self.api.get("/api/v1/namespaces/default/serviceaccounts/default") is None:
            if time.monotonic() > deadline:
                log = self._layout.log("kube-controller-manager")
                what = "the controllers made no ServiceAccount in namespace default"
                raise UserError(Problem(what, f"read {log}"), ExitCode.FAILURE)
            time.sleep(_POLL_SECONDS)


def free_ports() -> Ports:
    """Return ports of loopback that nothing listens on."""
    names = ("api", "etcd_client", "etcd_peer", "etcd_metrics", "controller_manager", "scheduler")
    sockets = [socket.socket() for _ in names]
    try:
        # All are held at once, so that no number comes twice.
        for one in sockets:
            one.bind((_LOOPBACK, 0))
        return Ports(**{n: s.getsockname()[1] for n, s in zip(names, sockets, strict=True)})
    finally:
        for one in sockets:
            one.close()
