"""Addresses of servers in every form that people write, brought into one."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Port of a URL that names none.
DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_HOST_LENGTH = 253
_PORTS = range(1, 65536)
#: What Hydra's grammar reads as plain text in a value; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z0-9_./:%+@*?|$\\-]+")


class UrlError(ValueError):
    """A text that is no address of a server; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Url:
    """Where a server answers."""

    scheme: str
    #: Without brackets, also when it is an IPv6 address.
    host: str
    port: int
    #: "" or starts with a slash and does not end with one.
    path: str = ""

    def __str__(self) -> str:
        """Return the URL; the port always stands in it, since readers differ in their default."""
        return f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def netloc(self) -> str:
        """Host and port, brackets around an IPv6 address."""
        return f"{bracketed(self.host)}:{self.port}"

    def at(self, path: str) -> str:
        """Return the URL of a path below this one."""
        return f"{self}/{path.lstrip('/')}"


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def parse(text: str) -> Url:
    """Return the address that a text means: `http(s)://host[:port][/path]` or `host[:port]`.

    Raises:
        UrlError: It means none.
    """
    given = text.strip()
    if not given or any(char.isspace() or not char.isprintable() for char in given):
        raise UrlError(f"{text!r} is no URL: it is empty or holds white space")
    whole = given if "://" in given else f"http://{_bare(given)}"
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{text!r} is no URL: {error}") from error
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise UrlError(f"{text!r}: scheme {parts.scheme!r} is neither http nor https")
    if "@" in parts.netloc:
        raise UrlError("a URL with a user name or password in it would be shown in logs")
    if parts.query or parts.fragment or whole[-1] in "?#":
        raise UrlError(f"{text!r}: a server's address has no `?` and no `#`")
    if port is None and parts.netloc.endswith(":"):
        raise UrlError(f"{text!r}: no port behind the colon")
    if port is not None and port not in _PORTS:
        raise UrlError(f"{text!r}: port {port} is not within 1 to 65535")
    return Url(
        scheme,
        _host(parts.hostname or "", text),
        DEFAULT_PORTS[scheme] if port is None else port,
        parts.path.rstrip("/"),
    )


def _bare(given: str) -> str:
    """Return `host[:port][/path]`; an IPv6 address may come without its brackets here."""
    try:
        return f"[{ipaddress.IPv6Address(given)}]"
    except ValueError:
        return given


def _host(host: str, text: str) -> str:
    if not host:
        raise UrlError(f"{text!r} names no host")
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host).compressed
        except ValueError as error:
            raise UrlError(f"{text!r}: {error}") from error
    if re.fullmatch(r"[\d.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise UrlError(f"{text!r}: {error}") from error
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_LENGTH or not all(_HOST.fullmatch(label) for label in labels):
        raise UrlError(f"{text!r}: {host!r} is no name of a host")
    return host


def override(key: str, value: str) -> str:
    """Return the argument that adds a key to a Hydra config, quoted where Hydra's grammar asks.

    The brackets of an IPv6 address would otherwise begin a list.
    """
    if _PLAIN.fullmatch(value):
        return f"+{key}={value}"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"+{key}='{escaped}'"
