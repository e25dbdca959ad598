"""Named packet counters of netfilter (nfacct), which kube-proxy makes and never removes.

There is a command line program for them that few machines have; two messages of netlink
do the same.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

#: What kube-proxy calls its counters.
KUBE_PROXY = ("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts")

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 7 << 8
_GET, _DELETE = _SUBSYSTEM | 1, _SUBSYSTEM | 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_NAME = 1
_HEADER = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBH")
_TIMEOUT = 5.0


def names() -> list[str]:
    """Return the counters of this network namespace."""
    found = []
    with suppress(OSError):  # A kernel without them has none.
        for kind, body in _ask(_GET, _REQUEST | _DUMP, b""):
            if kind not in {_ERROR, _DONE}:
                found += list(_attribute(body[_GENERIC.size :]))
    return sorted(found)


def delete(name: str) -> bool:
    """Delete a counter; returns False when it is not there or a rule uses it."""
    value = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(value), _NAME) + value
    attribute += b"\0" * (-len(attribute) % 4)
    for kind, body in _ask(_DELETE, _REQUEST | _ACK, attribute):
        if kind == _ERROR:
            code: int = -struct.unpack_from("=i", body)[0]
            if code in {0, errno.ENOENT, errno.EBUSY}:
                return code == 0
            raise OSError(code, os.strerror(code))
    return False


def _ask(kind: int, flags: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Send one request and yield the messages of its answer."""
    body = _GENERIC.pack(socket.AF_UNSPEC, 0, 0) + payload
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as channel:
        channel.settimeout(_TIMEOUT)
        channel.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
        while True:
            data = channel.recv(65536)
            while data:
                length, answer, _, _, _ = _HEADER.unpack_from(data)
                yield answer, data[_HEADER.size : length]
                if answer in {_ERROR, _DONE}:
                    return
                data = data[(length + 3) & ~3 :]


def _attribute(data: bytes) -> Iterator[str]:
    """Yield the value of the attribute that is a name."""
    while len(data) >= 4:  # noqa: PLR2004 - an attribute's own header
        length, kind = struct.unpack_from("=HH", data)
        if kind == _NAME:
            yield data[4:length].rstrip(b"\0").decode()
        data = data[(length + 3) & ~3 :]
