"""Where the API server is and who we are: from the pod's service account or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tandem_common.errors import ExitCode, Problem, UserError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Everything needed to talk to one API server; secrets stay out of its representation."""

    server: str
    #: Namespace to use when a call names none; "" when nobody said one: never `default` by
    #: accident.
    namespace: str = ""
    ca_file: Path | None = None
    ca_data: bytes = b""
    client_cert: bytes = field(default=b"", repr=False)
    client_key: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    insecure: bool = False

    def ssl_context(self) -> ssl.SSLContext:
        """Return the TLS settings: the cluster's own authority, and our certificate."""
        context = ssl.create_default_context(
            cafile=str(self.ca_file) if self.ca_file else None,
            cadata=self.ca_data.decode() if self.ca_data else None,
        )
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert:
            # The ssl module reads certificates from files only; this one is gone at once.
            with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
                pem = Path(folder) / "client.pem"
                pem.touch(mode=0o600)
                pem.write_bytes(self.client_cert + b"\n" + self.client_key)
                context.load_cert_chain(pem)
        return context


class TokenSource:
    """The bearer token, read again when its file changes: the kubelet renews it hourly."""

    def __init__(self, config: ClusterConfig) -> None:
        """Take the token or its file from a configuration."""
        self._file = config.token_file
        self._token = config.token
        self._seen: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def get(self, *, force: bool = False) -> str:
        """Return the token now; `force` reads the file although it looks the same.

        A file that cannot be read leaves the token as it was: the API server judges it.
        """
        if self._file is None:
            return self._token
        with self._lock:
            try:
                # stat follows the links that the kubelet swaps, so a new file is a new inode.
                found = self._file.stat()
                seen = (found.st_mtime_ns, found.st_ino)
                if force or seen != self._seen:
                    self._token = self._file.read_text(encoding="utf-8").strip()
                    self._seen = seen
            except OSError:
                pass
            return self._token


def in_cluster(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT
) -> ClusterConfig:
    """Return the configuration of a pod with a service account token.

    Raises:
        UserError: This is no pod, or its token is not mounted; all that is missing.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    problems: list[Problem] = []
    if not host or not port:
        problems.append(
            Problem(
                "KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set: this is no pod",
                "set KUBECONFIG, or run it in a pod",
            )
        )
    problems += [
        Problem(
            f"{folder / name} is missing",
            "mount the account's token: automountServiceAccountToken, or a projected volume",
        )
        for name in ("token", "ca.crt")
        if not (folder / name).is_file()
    ]
    if problems:
        raise UserError(problems, ExitCode.PRECONDITION)
    namespace = folder / "namespace"
    address = f"[{host}]" if ":" in host else host
    return ClusterConfig(
        server=f"https://{address}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "",
        ca_file=folder / "ca.crt",
        token_file=folder / "token",
    )


def _named(entries: Any, name: str, key: str) -> Mapping[str, Any] | None:
    for entry in entries or []:
        if isinstance(entry, Mapping) and entry.get("name") == name:
            found = entry.get(key)
            return found if isinstance(found, Mapping) else {}
    return None


def _bytes(entry: Mapping[str, Any], key: str, folder: Path) -> bytes:
    """Return `<key>-data`, decoded, or the content of the file that `<key>` names."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"], validate=True)
    return (folder / str(entry[key])).read_bytes() if entry.get(key) else b""


def from_kubeconfig(path: Path, context: str = "") -> ClusterConfig:
    """Return the configuration of a kubeconfig's context, the current one by default.

    Raises:
        UserError: The file is missing, cannot be read, or asks for what we do not do.
    """

    def wrong(what: str, fix: str) -> UserError:
        return UserError(Problem(f"kubeconfig {path}: {what}", fix), ExitCode.PRECONDITION)

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise wrong(str(error), "set KUBECONFIG to a file that kubectl can use") from None
    if not isinstance(loaded, Mapping):
        raise wrong("no YAML object", "set KUBECONFIG to a file that kubectl can use")
    name = context or str(loaded.get("current-context") or "")
    chosen = _named(loaded.get("contexts"), name, "context")
    if chosen is None:
        raise wrong(f"no context {name!r}", "kubectl config use-context NAME")
    cluster = _named(loaded.get("clusters"), str(chosen.get("cluster")), "cluster")
    if not cluster or not cluster.get("server"):
        raise wrong(f"no server for context {name!r}", "kubectl config set-cluster")
    user = _named(loaded.get("users"), str(chosen.get("user")), "user") or {}
    helpers = sorted({"exec", "auth-provider", "username"} & set(user))
    if helpers:
        raise wrong(
            f"user of context {name!r} logs in by {', '.join(helpers)}, which is not done here",
            "kubectl create token ACCOUNT, then kubectl config set-credentials NAME --token=…",
        )
    try:
        return ClusterConfig(
            server=str(cluster["server"]).rstrip("/"),
            namespace=str(chosen.get("namespace") or ""),
            ca_data=_bytes(cluster, "certificate-authority", path.parent),
            client_cert=_bytes(user, "client-certificate", path.parent),
            client_key=_bytes(user, "client-key", path.parent),
            token=str(user.get("token") or ""),
            token_file=path.parent / str(user["tokenFile"]) if user.get("tokenFile") else None,
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
        )
    except (OSError, binascii.Error) as error:
        raise wrong(str(error), "mend the certificate or key that it names") from None


def load_config(environment: Mapping[str, str] = os.environ) -> ClusterConfig:
    """Return the configuration to use: KUBECONFIG, else the pod's, else ~/.kube/config.

    Raises:
        UserError: There is none; every place that was looked at is named.
    """
    if environment.get("KUBECONFIG"):
        return from_kubeconfig(Path(environment["KUBECONFIG"].split(os.pathsep)[0]))
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment)
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.is_file():
        return from_kubeconfig(home)
    raise UserError(
        Problem(
            f"no cluster: KUBECONFIG is not set, this is no pod, {home} does not exist",
            "set KUBECONFIG to a kubeconfig",
        ),
        ExitCode.PRECONDITION,
    )
